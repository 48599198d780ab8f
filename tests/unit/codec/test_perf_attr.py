# SPDX-License-Identifier: Apache-2.0
"""`struct perf_event_attr` against the kernel's header and against perf's own bytes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import pytest

from collectord.codec.perf_attr import (
    ATTR_SIZES_BYTES,
    EventType,
    PerfEventAttr,
    ReadFormat,
    SampleType,
    SoftwareId,
    id_trailer_bytes,
    id_trailer_from,
    sample_time_offset,
)
from collectord.errors import CodecError

GOLDEN: Final = Path(__file__).parents[2] / "golden"
# Field to (offset, bytes), from include/uapi/linux/perf_event.h.
OFFSETS: Final = {
    "type": (0, 4),
    "config": (8, 8),
    "sample_period": (16, 8),
    "sample_type": (24, 8),
    "read_format": (32, 8),
    "wakeup": (48, 4),
    "bp_type": (52, 4),
    "config1": (56, 8),
    "config2": (64, 8),
    "branch_sample_type": (72, 8),
    "sample_regs_user": (80, 8),
    "sample_stack_user": (88, 4),
    "clockid": (92, 4),
    "sample_regs_intr": (96, 8),
    "aux_watermark": (104, 4),
    "sample_max_stack": (108, 2),
    "aux_sample_size": (112, 4),
    "aux_action": (116, 4),
    "sig_data": (120, 8),
    "config3": (128, 8),
}
FLAG_BITS: Final = {
    "disabled": 0,
    "inherit": 1,
    "pinned": 2,
    "exclusive": 3,
    "exclude_user": 4,
    "exclude_kernel": 5,
    "exclude_hv": 6,
    "exclude_idle": 7,
    "mmap": 8,
    "comm": 9,
    "freq": 10,
    "inherit_stat": 11,
    "enable_on_exec": 12,
    "task": 13,
    "watermark": 14,
    "mmap_data": 17,
    "sample_id_all": 18,
    "exclude_host": 19,
    "exclude_guest": 20,
    "exclude_callchain_kernel": 21,
    "exclude_callchain_user": 22,
    "mmap2": 23,
    "comm_exec": 24,
    "use_clockid": 25,
    "context_switch": 26,
    "write_backward": 27,
    "namespaces": 28,
    "ksymbol": 29,
    "bpf_event": 30,
    "aux_output": 31,
    "cgroup": 32,
    "text_poke": 33,
    "build_id": 34,
    "inherit_thread": 35,
    "remove_on_exec": 36,
    "sigtrap": 37,
}
ALL_IDS: Final = (
    SampleType.TID
    | SampleType.TIME
    | SampleType.ID
    | SampleType.STREAM_ID
    | SampleType.CPU
    | SampleType.IDENTIFIER
)


@pytest.mark.parametrize("name", OFFSETS)
def test_fields_stand_at_their_offsets(name: str) -> None:
    """Each value fills its own bytes and no others."""
    offset, size = OFFSETS[name]
    value = (1 << 8 * size - 1) - 1
    values: dict[str, Any] = {name: value}
    raw = bytearray(PerfEventAttr(**values).encode(136))
    assert int.from_bytes(raw[offset : offset + size], "little") == value
    raw[offset : offset + size] = bytes(size)
    assert raw == PerfEventAttr().encode(136)


@pytest.mark.parametrize("name", FLAG_BITS)
def test_flags_stand_at_their_bits(name: str) -> None:
    """Each flag sets its own bit."""
    raw = PerfEventAttr(**{name: True}).encode()
    assert int.from_bytes(raw[40:48], "little") == 1 << FLAG_BITS[name]


def test_every_field_is_covered() -> None:
    """The tables above name every field of the class."""
    named = {field.name for field in fields(PerfEventAttr)}
    assert named == {*OFFSETS, *FLAG_BITS, "precise_ip"}


def test_precise_ip_takes_two_bits() -> None:
    """precise_ip is bits 15 and 16, and nothing above 3."""
    assert int.from_bytes(PerfEventAttr(precise_ip=3).encode()[40:48], "little") == 3 << 15
    with pytest.raises(CodecError, match="precise_ip"):
        PerfEventAttr(precise_ip=4).encode()


def test_size_field_says_what_is_written() -> None:
    """Every published size is written, and stands in the size field."""
    for size in ATTR_SIZES_BYTES:
        raw = PerfEventAttr(type=EventType.RAW, config=0x1C2).encode(size)
        assert len(raw) == int.from_bytes(raw[4:8], "little") == size
        assert PerfEventAttr.decode(raw).config == 0x1C2


@pytest.mark.parametrize(
    ("attr", "size_bytes", "reason"),
    [
        (PerfEventAttr(config3=1), 128, "attr_size"),
        (PerfEventAttr(sig_data=1), 112, "attr_size"),
        (PerfEventAttr(), 100, "attr_size"),
        (PerfEventAttr(config=-1), 128, "attr_value"),
        (PerfEventAttr(wakeup=1 << 32), 128, "attr_value"),
    ],
)
def test_values_that_do_not_fit(attr: PerfEventAttr, size_bytes: int, reason: str) -> None:
    """A value that would be cut is refused."""
    with pytest.raises(CodecError) as caught:
        attr.encode(size_bytes)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (4, b"\x3f", "attr_size"),
        (4, b"\x41", "attr_size"),
        (4, b"\x90", "attr_size"),
        (44, b"\x40", "attr_unknown"),
        (47, b"\x80", "attr_unknown"),
    ],
)
def test_damaged_attrs(at: int, value: bytes, reason: str) -> None:
    """A size that contradicts the data and bits that nobody knows are refused."""
    raw = bytearray(PerfEventAttr().encode())
    raw[at : at + len(value)] = value
    with pytest.raises(CodecError) as caught:
        PerfEventAttr.decode(bytes(raw))
    assert caught.value.reason == reason


def test_attrs_of_later_kernels() -> None:
    """Fields that a later kernel added may follow as long as they are 0."""
    raw = bytearray(PerfEventAttr(config=7).encode(136) + bytes(8))
    raw[4] = 144
    assert PerfEventAttr.decode(bytes(raw)).config == 7
    raw[140] = 1
    with pytest.raises(CodecError) as caught:
        PerfEventAttr.decode(bytes(raw))
    assert (caught.value.reason, caught.value.offset) == ("attr_unknown", 136)
    with pytest.raises(CodecError):
        PerfEventAttr.decode(bytes(raw[:63]))


def test_attr_that_perf_wrote() -> None:
    """An attr of perf 6.1 is read, and written again to the same bytes."""
    raw = (GOLDEN / "perf-6.1/head.bin").read_bytes()[152 + 2 * 144 :][:128]
    attr = PerfEventAttr.decode(raw)
    assert attr == PerfEventAttr(
        type=EventType.SOFTWARE,
        config=SoftwareId.DUMMY,
        sample_period=1,
        sample_type=SampleType.IDENTIFIER
        | SampleType.IP
        | SampleType.TID
        | SampleType.TIME
        | SampleType.CPU,
        read_format=ReadFormat.ID | ReadFormat.LOST,
        **dict.fromkeys(
            (
                *("inherit", "mmap", "comm", "task", "sample_id_all", "mmap2", "comm_exec"),
                *("ksymbol", "bpf_event", "build_id"),
            ),
            True,
        ),
    )
    assert attr.encode() == raw


def test_breakpoint_names() -> None:
    """A breakpoint's address and length are config1 and config2."""
    attr = PerfEventAttr(type=EventType.BREAKPOINT, config1=0x1000, config2=4)
    assert (attr.config1, attr.config2) == (0x1000, 4)


@pytest.mark.parametrize(
    ("sample_type", "offset"),
    [
        (SampleType.TIME, 8),
        (SampleType.TID | SampleType.TIME, 16),
        (SampleType.IDENTIFIER | SampleType.IP | SampleType.TID | SampleType.TIME, 32),
        (SampleType.TIME | SampleType.ADDR | SampleType.ID | SampleType.CPU, 8),
        (SampleType.IP | SampleType.TID, 0),
    ],
)
def test_sample_time_offset(sample_type: SampleType, offset: int) -> None:
    """TIME follows IDENTIFIER, IP and TID; 0 says there is none."""
    assert sample_time_offset(PerfEventAttr(sample_type=sample_type)) == offset


@pytest.mark.parametrize(
    ("sample_type", "trailer_bytes", "time_from_end"),
    [
        (ALL_IDS, 48, 40),
        (SampleType.TID | SampleType.TIME | SampleType.CPU | SampleType.IDENTIFIER, 32, 24),
        (SampleType.TIME | SampleType.IP | SampleType.PERIOD, 8, 8),
        (SampleType.TID | SampleType.IDENTIFIER, 16, 0),
        (SampleType.IP, 0, 0),
    ],
)
def test_trailer(sample_type: SampleType, trailer_bytes: int, time_from_end: int) -> None:
    """The trailer counts only id fields, and TIME lies before ID, STREAM_ID, CPU, IDENTIFIER."""
    attr = PerfEventAttr(sample_type=sample_type, sample_id_all=True)
    assert (id_trailer_bytes(attr), id_trailer_from(attr, SampleType.TIME)) == (
        trailer_bytes,
        time_from_end,
    )
    without = replace(attr, sample_id_all=False)
    assert (id_trailer_bytes(without), id_trailer_from(without, SampleType.TIME)) == (0, 0)
