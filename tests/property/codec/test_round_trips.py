# SPDX-License-Identifier: Apache-2.0
"""Codecs read what they write, and fail only in defined ways on any input."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from hypothesis import assume, given
from hypothesis import strategies as st

from collectord.codec.aux_record import iter_pieces
from collectord.codec.perf_attr import PerfEventAttr, SampleType
from collectord.codec.perf_data import (
    HEADER_BYTES,
    AttrSection,
    Section,
    build_head,
    build_tail,
    decode_event_desc,
    head_bytes,
    parse_feature_table,
    parse_head,
    parse_header,
)
from collectord.codec.perf_features import Features, decode_auxtrace_index
from collectord.codec.perf_record import PAGE_BYTES, RecordHeader, SampleId, frame, iter_records
from collectord.codec.perf_sideband import (
    BpfEvent,
    Comm,
    Fork,
    Ksymbol,
    Lost,
    LostSamples,
    Mmap,
    Mmap2,
)
from collectord.codec.tracing_data import TracingData, build
from collectord.errors import CodecError
from tests.support.aux_pieces import encode_piece
from tests.support.aux_records import decode as decode_aux
from tests.support.perf_ids import decode_sample_id, identifier
from tests.support.samples import Sample, decode_sample, encode_sample
from tests.support.sideband import Exit, Record, Throttle, decode, encode
from tests.support.tracing_data import parse
from tests.support.whole_records import WholeRecordWalk, last_whole_record

if TYPE_CHECKING:
    from collections.abc import Callable

# A loaded machine makes no example wrong.
U64_BYTES: Final = 8
U16: Final = st.integers(0, 2**16 - 1)
U32: Final = st.integers(0, 2**32 - 1)
U64: Final = st.integers(0, 2**64 - 1)
PIECE: Final = encode_piece(bytes(8), offset=0)
HIDDEN: Final = encode_piece(bytes(8), offset=0, hidden=True)
TEXT: Final = st.binary(max_size=80).map(lambda raw: raw.replace(b"\0", b"_"))
ID_BITS: Final = (
    *(SampleType.TID, SampleType.TIME, SampleType.ID, SampleType.STREAM_ID),
    *(SampleType.CPU, SampleType.IDENTIFIER),
)
SAMPLE_BITS: Final = (
    *ID_BITS,
    *(SampleType.IP, SampleType.ADDR, SampleType.PERIOD, SampleType.CALLCHAIN, SampleType.RAW),
)
WIDTHS: Final = {
    **dict.fromkeys(("type", "wakeup", "bp_type", "sample_stack_user", "aux_watermark"), U32),
    **dict.fromkeys(("aux_sample_size", "aux_action"), U32),
    "sample_max_stack": U16,
    "precise_ip": st.integers(0, 3),
    "clockid": st.integers(-(2**31), 2**31 - 1),
}


def _attr_fields() -> dict[str, st.SearchStrategy[Any]]:
    defaults = {field.name: field.default for field in fields(PerfEventAttr)}
    return {
        name: st.booleans() if isinstance(default, bool) else WIDTHS.get(name, U64)
        for name, default in defaults.items()
    }


def _bits(bits: tuple[SampleType, ...]) -> st.SearchStrategy[int]:
    return st.sets(st.sampled_from(bits)).map(lambda chosen: sum(map(int, chosen)))


ATTRS: Final = st.builds(PerfEventAttr, **_attr_fields())
ID_ATTRS: Final = st.builds(PerfEventAttr, sample_type=_bits(ID_BITS), sample_id_all=st.booleans())
SAMPLE_ATTRS: Final = st.builds(PerfEventAttr, sample_type=_bits(SAMPLE_BITS))
SAMPLE_IDS: Final = st.builds(SampleId, U32, U32, U64, U64, U64, U32)
MAPPING: Final = (U32, U32, U64, U64, U64)
CPUMODE: Final = st.integers(0, 7)
RECORDS: Final[st.SearchStrategy[Record]] = st.one_of(
    st.builds(Comm, U32, U32, TEXT, st.booleans()),
    st.builds(Mmap, *MAPPING, TEXT, CPUMODE, st.booleans()),
    st.builds(
        Mmap2,
        *(*MAPPING, U32, U32, TEXT),
        build_id=st.binary(min_size=1, max_size=20),
        cpumode=CPUMODE,
        is_data=st.booleans(),
    ),
    st.builds(
        Mmap2, *(*MAPPING, U32, U32, TEXT, st.just(b""), U32, U32, U64, U64), cpumode=CPUMODE
    ),
    st.builds(Fork, U32, U32, U32, U32, U64),
    st.builds(Exit, U32, U32, U32, U32, U64),
    st.builds(Ksymbol, U64, U32, U16, U16, TEXT),
    st.builds(BpfEvent, U16, U16, U32, st.binary(min_size=8, max_size=8)),
    st.builds(Lost, U64, U64),
    st.builds(LostSamples, U64, st.booleans()),
    st.builds(Throttle, U64, U64, U64, st.booleans()),
)
FORMATS: Final = st.lists(st.binary(min_size=1, max_size=30), max_size=3).map(tuple)
NAMES: Final = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=70)


@given(ATTRS)
def test_attr(attr: PerfEventAttr) -> None:
    """Every attr is read back, in 136 bytes and, without config3, in a file's 128."""
    assert PerfEventAttr.decode(attr.encode(136)) == attr
    short = replace(attr, config3=0)
    assert PerfEventAttr.decode(short.encode()) == short


@given(st.binary(max_size=160))
def test_any_bytes_as_attr(data: bytes) -> None:
    """Bytes of any kind are an attr that can be written again, or a CodecError."""
    try:
        attr = PerfEventAttr.decode(data)
    except CodecError:
        return
    assert PerfEventAttr.decode(attr.encode(136)) == attr


@given(RECORDS, ID_ATTRS, SAMPLE_IDS)
def test_record(record: Record, attr: PerfEventAttr, ids: SampleId) -> None:
    """A record and its trailer are read back, and its size is whole words."""
    raw = encode(record, attr, ids)
    (header,) = iter_records(raw)
    assert header.size == len(raw)
    assert decode(raw, header, attr) == record
    found = decode_sample_id(raw, header, attr)
    assert encode(record, attr, found) == raw


@given(SAMPLE_ATTRS, st.data())
def test_sample(attr: PerfEventAttr, data: st.DataObject) -> None:
    """The fields that a sample's event carries are read back."""
    sample = data.draw(
        st.builds(
            Sample,
            *(U16, U64, U64, U32, U32, U64, U64, U64, U32, U64),
            callchain=st.lists(U64, max_size=5).map(tuple),
            raw=st.integers(0, 5).flatmap(
                lambda n: st.binary(min_size=n * 8 + 4, max_size=n * 8 + 4)
            ),
        )
    )
    raw = encode_sample(sample, attr)
    (header,) = iter_records(raw)
    found = decode_sample(raw, header, attr)
    assert encode_sample(found, attr) == raw
    if attr.sample_type == sum(map(int, SAMPLE_BITS)):
        assert found == sample


@given(st.integers(0, 90), U16, st.binary(max_size=200), ATTRS)
def test_any_bytes_as_record(kind: int, misc: int, body: bytes, attr: PerfEventAttr) -> None:
    """Decoders give a value or a CodecError, whatever the body and the attr."""
    body = body[: len(body) // 8 * 8]
    raw = frame(kind, misc, body)
    header = RecordHeader(kind, misc, len(raw), 0)
    for read in (decode, decode_aux, decode_sample_id, decode_sample):
        try:
            read(raw, header, attr)
        except CodecError:
            continue
    if body:
        assert identifier(raw, header) >= 0


@given(st.binary(max_size=300))
def test_any_bytes_as_sections(data: bytes) -> None:
    """Parsers of sections give a CodecError, or what takes no more bytes than there are."""
    readers: tuple[tuple[Callable[[bytes], Any], Callable[[Any], int]], ...] = (
        (parse, lambda found: len(found.header_page + found.header_event + found.printk_formats)),
        (parse_head, lambda found: len(found.image)),
        (head_bytes, lambda _: HEADER_BYTES),
        (decode_event_desc, lambda found: sum(U64_BYTES * len(event.ids) for event in found)),
        (decode_auxtrace_index, lambda found: U64_BYTES * (1 + 2 * len(found))),
        (lambda raw: list(iter_records(raw)), lambda found: sum(one.size for one in found)),
        (lambda raw: list(iter_pieces(raw)), lambda found: sum(one.size for one in found)),
    )
    for read, taken in readers:
        for raw in (data, PIECE[:8] + data, HIDDEN[:16] + data):
            try:
                found = read(raw)
            except CodecError:
                continue
            assert taken(found) <= len(raw)


@given(
    st.builds(
        TracingData,
        *(st.binary(max_size=50), st.binary(max_size=50), U32),
        st.dictionaries(NAMES.filter(bool), FORMATS, max_size=3),
        *(FORMATS, st.sampled_from((4, 8)), st.binary(max_size=50), st.binary(max_size=50)),
    )
)
def test_tracing_data(tracing: TracingData) -> None:
    """The section is read back."""
    assert parse(build(tracing)) == tracing


@given(
    st.lists(
        st.tuples(ATTRS, st.lists(U64, min_size=1, max_size=4), NAMES), min_size=1, max_size=4
    ),
    st.none() | st.binary(max_size=5000),
    st.integers(0, 4).map(lambda pages: pages * PAGE_BYTES),
    NAMES,
)
def test_file(
    events: list[tuple[PerfEventAttr, list[int], str]],
    tracing_data: bytes | None,
    data_size: int,
    hostname: str,
) -> None:
    """A head is read back, and what completes it points at its own sections."""
    ids = [i for _, row, _ in events for i in row]
    assume(len(set(ids)) == len(ids))
    attrs = tuple(
        AttrSection(
            replace(
                attr,
                sample_id_all=True,
                config3=0,
                sample_type=attr.sample_type | SampleType.IDENTIFIER,
            ),
            tuple(row),
            name,
        )
        for attr, row, name in events
    )
    head = build_head(attrs, tracing_data, features=Features(hostname=hostname))
    assert parse_head(head.image) == head
    assert head.attrs == attrs
    assert head.write_offset % PAGE_BYTES == 0
    size = len(head.first_records) + data_size
    tail = build_tail(head, size, Features(sample_time=(1, 2)))
    header = parse_header(tail.header)
    assert header.data == Section(head.data_offset, size)
    end = head.data_offset + size + len(tail.tail)
    table = parse_feature_table(tail.tail, header, end)
    assert {**table, **head.sections} == table


@given(st.data())
def test_damaged_heads(data: st.DataObject) -> None:
    """A head with any of its bytes changed is a CodecError, or what is read lies within it."""
    events = (
        AttrSection(PerfEventAttr(sample_type=SampleType.IDENTIFIER), (1, 2), "a"),
        AttrSection(PerfEventAttr(sample_type=SampleType.IDENTIFIER), (3,), "b"),
    )
    image = bytearray(build_head(events, b"formats").image[:1024])
    for _ in range(data.draw(st.integers(1, 3))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    image[40:48] = image[112:120] = (1024).to_bytes(8, "little")
    try:
        head = parse_head(bytes(image))
    except CodecError:
        return
    assert len(head.image) == head_bytes(bytes(image)) <= len(image)
    for place in (head.header.attrs, *head.sections.values()):
        assert place.offset + place.size <= len(head.image)
    count = head.header.attrs.size // head.header.attr_size_bytes
    assert len(head.attrs) == count > 0
    assert all(U64_BYTES * len(event.ids) <= len(head.image) for event in head.attrs)


SIZES: Final = st.lists(st.integers(1, 700).map(lambda words: 8 * words), max_size=40)


@given(SIZES, st.integers(0, 40000), st.binary(max_size=20))
def test_walk_of_a_torn_write(sizes: list[int], cut: int, behind: bytes) -> None:
    """After a write of which only the first pages arrived, no kept record has missing bytes."""
    whole = b"".join(frame(9, 0, b"\xff" * (size - 8)) for size in sizes)
    arrived = whole[: cut // PAGE_BYTES * PAGE_BYTES]
    torn = arrived.ljust(len(whole), b"\0") + bytes(PAGE_BYTES)
    end = last_whole_record(torn)
    ends = {0}
    for size in sizes:
        ends.add(max(ends) + size)
    assert end in ends
    kept = torn[:end]
    # A record whose second part is missing can only survive if it ends exactly on a page.
    assert kept == whole[:end] or end % PAGE_BYTES == 0
    assert max(e for e in ends if e <= len(arrived)) - end <= max(sizes, default=0)
    walk = WholeRecordWalk()
    step = 1 + len(behind) * 64
    for at in range(0, len(torn), step):
        walk.feed(torn[at : at + step])
    assert walk.end == end
