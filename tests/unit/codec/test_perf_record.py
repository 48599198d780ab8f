# SPDX-License-Identifier: Apache-2.0
"""Record framing, trailers, and the walks over whole buffers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.perf_attr import (
    PerfEventAttr,
    ReadFormat,
    RecordType,
    SampleType,
    id_trailer_from,
    sample_time_offset,
)
from collectord.codec.perf_record import (
    PAGE_BYTES,
    RecordHeader,
    SampleId,
    body_end,
    encode_sample_id,
    frame,
    iter_records,
)
from collectord.errors import CodecError
from tests.support.golden import GOLDEN
from tests.support.perf_ids import decode_sample_id, identifier
from tests.support.samples import Sample, decode_sample, encode_sample
from tests.support.whole_records import WholeRecordWalk, last_whole_record

CAPTURES: Final = sorted(GOLDEN.glob("*.bin"))
ALL_IDS: Final = PerfEventAttr(
    sample_id_all=True,
    sample_type=SampleType.TID
    | SampleType.TIME
    | SampleType.ID
    | SampleType.STREAM_ID
    | SampleType.CPU
    | SampleType.IDENTIFIER,
)
CONTEXT_USER: Final = 2**64 - 512
READ: Final = SampleType.READ | SampleType.RAW
ONE: Final = (
    ReadFormat.TOTAL_TIME_ENABLED | ReadFormat.TOTAL_TIME_RUNNING | ReadFormat.ID | ReadFormat.LOST
)

if TYPE_CHECKING:
    from pathlib import Path


def lost(size: int = 24) -> bytes:
    """Return a LOST record of a size."""
    return frame(RecordType.LOST, 0, b"\x01" * (size - 8))


def auxtrace(payload: int) -> bytes:
    """Return an AUXTRACE record that says so many bytes follow it, and those."""
    body = struct.pack("<QQQIiiI", payload, 0, 0, 0, -1, 0, 0)
    return frame(RecordType.AUXTRACE, 0, body) + b"\xff" * payload


def test_frame_refuses_sizes_that_no_header_can_say() -> None:
    """A record is whole words and at most 65528 bytes."""
    assert frame(RecordType.FINISHED_ROUND, 0, b"") == struct.pack("<IHH", 68, 0, 8)
    assert len(frame(RecordType.FINISHED_INIT, 0, bytes(65520))) == 65528
    for body_bytes in (4, 65528):
        with pytest.raises(CodecError, match="record_size"):
            frame(RecordType.LOST, 0, bytes(body_bytes))


def test_trailer_order() -> None:
    """Ids stand in the order TID, TIME, ID, STREAM_ID, CPU, IDENTIFIER."""
    raw = encode_sample_id(ALL_IDS, SampleId(1, 2, 3, 4, 5, 6))
    assert raw == struct.pack("<IIQQQIIQ", 1, 2, 3, 4, 5, 6, 0, 4)
    assert encode_sample_id(PerfEventAttr(sample_type=ALL_IDS.sample_type), SampleId()) == b""


def test_trailer_needs_room() -> None:
    """A record that is shorter than its trailer is refused."""
    record = lost(48)
    with pytest.raises(CodecError, match="record_size"):
        decode_sample_id(record, next(iter_records(record)), ALL_IDS)


def test_user_records_and_samples_have_no_trailer() -> None:
    """The body of a record made by a recorder, and of a SAMPLE, reaches to its end."""
    for kind in (RecordType.FINISHED_INIT, RecordType.SAMPLE):
        assert body_end(RecordHeader(kind, 0, 24, 100), ALL_IDS) == 124
    assert body_end(RecordHeader(RecordType.LOST, 0, 72, 100), ALL_IDS) == 124


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_positions_of_time_and_id_in_kernel_records(path: Path) -> None:
    """Offsets that the native core is given find the times that the decoders find."""
    captured = path.read_bytes()
    attr, data = PerfEventAttr.decode(captured[:128]), captured[128:]
    records = list(iter_records(data))
    assert records
    for header in records:
        if header.type == RecordType.SAMPLE:
            sample = decode_sample(data, header, attr)
            found = (sample.time_ns, sample.id)
            at = header.offset + sample_time_offset(attr)
        else:
            ids = decode_sample_id(data, header, attr)
            found = (ids.time_ns, ids.id)
            at = header.offset + header.size - id_trailer_from(attr, SampleType.TIME)
        assert found == (int.from_bytes(data[at : at + 8], "little"), identifier(data, header))
        assert found[0] > 0
        assert found[1] > 0


@pytest.mark.parametrize(
    ("data", "offset", "reason"),
    [
        (lost() + bytes(4), 24, "short"),
        (lost() + bytes(8), 24, "record_size"),
        (lost() + struct.pack("<IHH", 9, 0, 20) + bytes(16), 24, "record_size"),
        (lost() + lost()[:-8], 24, "short"),
        (frame(RecordType.HEADER_TRACING_DATA, 0, bytes(8)), 0, "record_payload"),
        (lost() + frame(RecordType.AUXTRACE, 0, bytes(32)), 24, "record_size"),
        (lost() + auxtrace(12), 24, "record_size"),
        (lost() + auxtrace(64)[:-8], 24, "short"),
    ],
)
def test_iteration_stops_at_bad_sizes(data: bytes, offset: int, reason: str) -> None:
    """A record that cannot be whole is an error that says where, after those before it."""
    seen: list[RecordHeader] = []
    with pytest.raises(CodecError) as caught:
        seen.extend(iter_records(data))
    assert (caught.value.offset, caught.value.reason) == (offset, reason)
    assert len(seen) == offset // 24


def test_iteration_from_the_middle() -> None:
    """Iteration may begin at any record."""
    data = lost() + lost(32)
    assert list(iter_records(data, 24)) == [RecordHeader(RecordType.LOST, 0, 32, 24)]


def test_identifier_needs_room() -> None:
    """A bare header has no id."""
    data = frame(RecordType.FINISHED_ROUND, 0, b"")
    with pytest.raises(CodecError):
        identifier(data, next(iter_records(data)))


@pytest.mark.parametrize(
    "stop",
    [
        b"",
        b"\x02",
        bytes(16),
        struct.pack("<IHH", 2, 0, 0),
        struct.pack("<IHH", 2, 0, 4),
        struct.pack("<IHH", 2, 0, 12) + bytes(8),
        struct.pack("<IHH", 2, 0, 24),
        struct.pack("<IHH", 0, 0, 8),
        struct.pack("<IHH", 22, 0, 8),
        struct.pack("<IHH", 63, 0, 8),
        struct.pack("<IHH", 83, 0, 8),
        struct.pack("<IHH", 1 << 31, 0, 8),
    ],
)
def test_walk_stops_before_what_is_no_record(stop: bytes) -> None:
    """Whole records before an invalid header are kept, and none behind it."""
    assert last_whole_record(lost() + lost(32) + stop) == 56
    assert last_whole_record(stop) == 0


def test_walks_pass_a_payload_that_follows() -> None:
    """An AUXTRACE record is whole with its payload, whatever stands in that."""
    data = lost() + auxtrace(64) + auxtrace(0) + lost(32)
    assert [(h.type, h.offset) for h in iter_records(data)] == [
        *((RecordType.LOST, 0), (RecordType.AUXTRACE, 24)),
        *((RecordType.AUXTRACE, 136), (RecordType.LOST, 184)),
    ]
    assert last_whole_record(data) == len(data)
    for cut in range(24, 136):
        assert last_whole_record(data[:cut]) == 24
    for odd in (auxtrace(12), frame(RecordType.AUXTRACE, 0, bytes(48))):
        assert last_whole_record(lost() + odd + lost()) == 24


@pytest.mark.parametrize("kind", [1, 21, 64, 82])
def test_walk_passes_the_types_that_readers_know(kind: int) -> None:
    """The first and last of the kernel's and of the recorders' types are valid."""
    assert last_whole_record(frame(kind, 0, b"") + bytes(8)) == 8


def test_walk_drops_a_last_record_on_two_pages() -> None:
    """If the walk ends inside a page, a last record that began on the page before is dropped."""
    filler = lost(4088)
    crossing = lost(24)
    assert last_whole_record(filler + crossing) == 4088
    assert last_whole_record(filler + crossing + bytes(4096)) == 4088
    assert last_whole_record(filler + crossing + lost(24)) == 4136
    assert last_whole_record(filler + lost(8)) == PAGE_BYTES
    assert last_whole_record(filler + lost(4104) + bytes(8)) == 2 * PAGE_BYTES
    assert last_whole_record(lost(4096) + lost(24)) == 4120


def test_walk_in_pieces() -> None:
    """A walk that is fed pieces cut anywhere ends where a walk over the whole ends."""
    data = b"".join(lost(24 + 8 * (n % 5)) for n in range(400)) + auxtrace(4096) + lost()
    data += b"\0" * 100
    for step in (1, 7, 8, 24, 1000):
        walk = WholeRecordWalk()
        for at in range(0, len(data), step):
            walk.feed(data[at : at + step])
        assert walk.stopped
        assert not walk.feed(lost())
        assert walk.end == last_whole_record(data) == len(data) - 100


def only(raw: bytes, attr: PerfEventAttr) -> Sample:
    """Return the one sample of a buffer."""
    return decode_sample(raw, next(iter_records(raw)), attr)


def test_kernel_sample_with_every_field_up_to_raw() -> None:
    """All fields of a sample that the kernel wrote are found, READ passed by."""
    captured = (GOLDEN / "samples.bin").read_bytes()
    attr, data = PerfEventAttr.decode(captured[:128]), captured[128:]
    first, second = (decode_sample(data, header, attr) for header in iter_records(data))
    assert first.pid == first.tid > 1
    assert first.id == first.stream_id == second.id
    assert first.period == 1
    assert first.time_ns < second.time_ns
    assert first.callchain[:2] == (CONTEXT_USER, first.ip)
    assert len(first.callchain) == 3
    # common_type is the attr's config, common_pid the thread, and getppid is call 110.
    event, _, _, pid, number = struct.unpack_from("<HBBii", first.raw)
    assert (event, pid, number) == (attr.config, first.pid, 110)


def test_kernel_sample_is_encoded_to_the_same_bytes() -> None:
    """A sample without READ is written to the kernel's own bytes."""
    captured = (GOLDEN / "lost.bin").read_bytes()
    attr, data = PerfEventAttr.decode(captured[:128]), captured[128:]
    header = list(iter_records(data))[-1]
    sample = decode_sample(data, header, attr)
    assert encode_sample(sample, attr) == data[header.offset :]


def test_raw_is_padded_to_whole_words() -> None:
    """RAW's size counts the padding, as the kernel's does."""
    attr = PerfEventAttr(sample_type=SampleType.RAW)
    raw = encode_sample(Sample(raw=b"12345"), attr)
    assert raw == struct.pack("<IHHI12s", 9, 0, 24, 12, b"12345")


@pytest.mark.parametrize(
    ("read_format", "words"),
    [
        (0, 1),
        (ReadFormat.LOST, 2),
        (ONE, 5),
        (ReadFormat.GROUP, 1 + 2),
        (ReadFormat.GROUP | ONE, 1 + 2 + 2 * 3),
    ],
)
def test_read_is_passed_by(read_format: int, words: int) -> None:
    """The size of READ follows from read_format; a group of two counts its members."""
    attr = PerfEventAttr(sample_type=READ, read_format=read_format)
    body = struct.pack(f"<{words}Q", *([2] * words)) + struct.pack("<I4s", 4, b"true")
    assert only(frame(RecordType.SAMPLE, 2, body), attr) == Sample(misc=2, raw=b"true")


@pytest.mark.parametrize(
    ("sample_type", "body", "reason"),
    [
        (SampleType.IP | SampleType.TID, bytes(8), "short"),
        (SampleType.CALLCHAIN, struct.pack("<QQ", 2, 0), "callchain"),
        (SampleType.CALLCHAIN, struct.pack("<Q", 2**64 - 1), "callchain"),
        (SampleType.RAW, struct.pack("<II", 5, 0), "raw"),
        (SampleType.RAW, b"", "short"),
        (READ, struct.pack("<QQ", 2**64 - 1, 0), "read"),
    ],
)
def test_damaged_samples(sample_type: SampleType, body: bytes, reason: str) -> None:
    """Counts and sizes that reach past the record are refused."""
    attr = PerfEventAttr(sample_type=sample_type, read_format=ReadFormat.GROUP)
    with pytest.raises(CodecError) as caught:
        only(frame(RecordType.SAMPLE, 0, body), attr)
    assert caught.value.reason == reason


@pytest.mark.parametrize("bit", [SampleType.READ, SampleType.BRANCH_STACK, SampleType.AUX])
def test_fields_that_are_not_written(bit: SampleType) -> None:
    """A sample that would lack a field of its event is not written."""
    with pytest.raises(CodecError, match="sample_type"):
        encode_sample(Sample(), PerfEventAttr(sample_type=bit | SampleType.IP))


def test_values_that_do_not_fit() -> None:
    """A value that its field cannot hold is refused."""
    with pytest.raises(CodecError, match="record_value"):
        encode_sample(Sample(cpu=-1), PerfEventAttr(sample_type=SampleType.CPU))
