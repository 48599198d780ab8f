# SPDX-License-Identifier: Apache-2.0
"""Fields of a SAMPLE."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import pytest

from collectord.codec.perf_attr import PerfEventAttr, ReadFormat, RecordType, SampleType
from collectord.codec.perf_record import frame, iter_records
from collectord.errors import CodecError
from tests.support.samples import Sample, decode_sample, encode_sample

KERNEL: Final = Path(__file__).parents[2] / "golden/kernel-6.18"
CONTEXT_USER: Final = 2**64 - 512
READ: Final = SampleType.READ | SampleType.RAW
ONE: Final = (
    ReadFormat.TOTAL_TIME_ENABLED | ReadFormat.TOTAL_TIME_RUNNING | ReadFormat.ID | ReadFormat.LOST
)


def only(raw: bytes, attr: PerfEventAttr) -> Sample:
    """Return the one sample of a buffer."""
    return decode_sample(raw, next(iter_records(raw)), attr)


def test_kernel_sample_with_every_field_up_to_raw() -> None:
    """All fields of a sample that the kernel wrote are found, READ passed by."""
    captured = (KERNEL / "samples.bin").read_bytes()
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
    captured = (KERNEL / "lost.bin").read_bytes()
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
