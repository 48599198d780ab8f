# SPDX-License-Identifier: Apache-2.0
"""Reading back a data section whose writer died: what stays is whole, and all that is whole."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from collectord._native._core import scan_records
from collectord.codec.aux_record import iter_pieces
from collectord.codec.perf_attr import sample_time_offset
from collectord.codec.perf_record import iter_records
from collectord.sink.scan import scan, scan_torn
from tests.support import segments as support
from tests.support.aux_pieces import encode_piece
from tests.support.whole_records import WholeRecordWalk, last_whole_record

TIME_OFFSET = sample_time_offset(support.ATTR)
DATA = b"".join(support.sample_chunks(180, per_chunk=60))
PAGES = len(DATA) // support.PAGE_BYTES


@given(st.integers(0, len(DATA)))
def test_section_that_was_cut(length: int) -> None:
    """Cut anywhere, a section keeps its whole records: only the one at the cut may go."""
    found = scan(memoryview(DATA)[:length], TIME_OFFSET)
    ends = [0, *(header.offset + header.size for header in iter_records(DATA))]
    assert found.end == max(end for end in ends if end <= length)
    assert bool(found.reason) == (found.end != length)


@given(st.integers(0, PAGES), st.integers(0, 3))
def test_section_with_missing_pages(whole_pages: int, empty_pages: int) -> None:
    """A writer that died between two pages leaves no record that was half written."""
    at = whole_pages * support.PAGE_BYTES
    data = memoryview(DATA[:at] + bytes(empty_pages * support.PAGE_BYTES))
    found = scan_torn(data, TIME_OFFSET)
    assert found.end <= at
    assert found.end == last_whole_record(data)
    kept = [header for header in iter_records(DATA) if header.offset + header.size <= at]
    assert found.end == (kept[-1].offset + kept[-1].size if kept else 0)
    assert found.samples == sum(header.type == 9 for header in kept)
    if found.samples:
        assert found.first_ns == support.TIME_NS
        assert found.last_ns == support.TIME_NS + (found.samples - 1) * 1000


@given(
    st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=6),
    st.integers(0, 2000),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=3),
)
def test_walks_agree_on_aux(
    pieces: list[tuple[int, bool]], cut: int, damage: list[tuple[int, int]]
) -> None:
    """The native walk and the codec's end at the same record, and see the same pieces."""
    data = bytearray(
        b"".join(
            support.sample_record(n) + encode_piece(bytes(size), offset=0, hidden=hidden)
            for n, (size, hidden) in enumerate(pieces)
        )[:cut]
    )
    for at, value in damage:
        if at < len(data):
            data[at] = value
    whole = bytes(data)
    found = scan(memoryview(whole), TIME_OFFSET)
    walk = WholeRecordWalk()
    walk.feed(whole)
    assert found.end == walk.whole
    if not damage:
        sizes = [piece.size for piece in iter_pieces(whole[: found.end])]
        native = scan_records(memoryview(whole)[: found.end], time_offset=TIME_OFFSET)
        assert (native.aux_pieces, native.aux_bytes) == (len(sizes), sum(sizes))


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """No bytes make the walk fail or leave the section."""
    for found in (scan(memoryview(data), TIME_OFFSET), scan_torn(memoryview(data), TIME_OFFSET)):
        assert 0 <= found.last <= found.end <= len(data)


def test_what_ends_a_torn_section() -> None:
    """An invalid record may have begun in the one before, which goes too; a short one did not."""
    record = support.sample_record(0)
    for header, kept in ((struct.pack("<IHH", 9, 0, 4), 1), (struct.pack("<IHH", 9, 0, 16), 2)):
        found = scan_torn(memoryview(record + record + header), TIME_OFFSET)
        assert found.end == kept * len(record)
        assert found.reason


def test_reasons() -> None:
    """The reason names what stands where the walk ended."""
    record = support.sample_record(0)
    for tail, reason in (
        (b"", ""),
        (b"\0\0\0", "a record header is cut short"),
        (struct.pack("<IHH", 9, 0, 4), "a record has size 4"),
        (struct.pack("<IHH", 9, 0, 13) + bytes(5), "a record has size 13"),
        (struct.pack("<IHH", 40, 0, 8), "a record has type 40"),
        (struct.pack("<IHH", 84, 0, 8), "a record has type 84"),
        (struct.pack("<IHH", 9, 0, 16), "a record is cut short"),
        (bytes(8), "a record has size 0"),
        (struct.pack("<IHH", 71, 0, 40) + bytes(32), "a record has size 40"),
        (struct.pack("<IHHQ", 71, 0, 48, 64) + bytes(32), "a record is cut short"),
    ):
        found = scan(memoryview(record + tail), TIME_OFFSET)
        assert (found.end, found.samples, found.reason) == (len(record), 1, reason)
