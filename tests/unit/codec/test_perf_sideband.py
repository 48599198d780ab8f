# SPDX-License-Identifier: Apache-2.0
"""Values of the records beside the samples, against records that a kernel wrote."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from collectord.codec.perf_attr import PerfEventAttr, RecordType, SampleType
from collectord.codec.perf_record import Misc, SampleId, frame, iter_records
from collectord.codec.perf_sideband import (
    KSYMBOL_UNREGISTER,
    Comm,
    Fork,
    Ksymbol,
    KsymbolType,
    Lost,
    LostSamples,
    Mmap,
    Mmap2,
)
from collectord.errors import CodecError
from tests.support.golden import GOLDEN
from tests.support.perf_ids import decode_sample_id
from tests.support.sideband import Exit, Record, Throttle, decode, encode

NO_IDS: Final = PerfEventAttr()
TIMED: Final = PerfEventAttr(sample_type=SampleType.TIME, sample_id_all=True)


def captured(name: str) -> list[tuple[Record, SampleId, bytes, PerfEventAttr]]:
    """Return the records of a capture but its samples: values, ids, bytes, attr."""
    raw = (GOLDEN / f"{name}.bin").read_bytes()
    attr, data = PerfEventAttr.decode(raw[:128]), raw[128:]
    found = []
    for header in iter_records(data):
        record = decode(data, header, attr)
        if record is not None:
            ids = decode_sample_id(data, header, attr)
            found.append((record, ids, data[header.offset :][: header.size], attr))
    return found


def values(name: str) -> list[Record]:
    """Return the values in a capture."""
    return [record for record, _, _, _ in captured(name)]


@pytest.mark.parametrize("name", ["tasks-build-id", "tasks-inode", "mmap", "ksymbol", "lost"])
def test_kernel_records_are_encoded_to_the_same_bytes(name: str) -> None:
    """Records decoded from the kernel's bytes are encoded to exactly those bytes."""
    records = captured(name)
    assert records
    for record, ids, raw, attr in records:
        assert encode(record, attr, ids) == raw


def test_life_of_a_process() -> None:
    """A process that was started is seen to fork, exec, map its files by build-id, and exit."""
    fork, comm, true, loader, vdso, libc, end = values("tasks-build-id")
    assert isinstance(fork, Fork)
    assert isinstance(end, Exit)
    assert (end.pid, end.ppid) == (fork.pid, fork.ppid)
    assert 0 < fork.time_ns < end.time_ns
    assert comm == Comm(fork.pid, fork.pid, b"true", is_exec=True)
    assert isinstance(true, Mmap2)
    assert (true.filename, true.prot, true.flags) == (b"/usr/bin/true", 5, 2)
    for file in (true, loader, libc):
        assert isinstance(file, Mmap2)
        assert (len(file.build_id), file.inode, file.cpumode) == (20, 0, Misc.USER)
    assert isinstance(vdso, Mmap2)
    assert (vdso.filename, vdso.build_id) == (b"[vdso]", b"")


def test_mapping_by_inode() -> None:
    """Without build-ids a mapping names its file by device and inode."""
    true = values("tasks-inode")[2]
    assert isinstance(true, Mmap2)
    assert (true.build_id, true.major, true.filename) == (b"", 254, b"/usr/bin/true")
    assert true.inode > 0


def test_plain_mapping() -> None:
    """An event with `mmap` alone gets MMAP records."""
    true = values("mmap")[1]
    assert isinstance(true, Mmap)
    assert (true.filename, true.length) == (b"/usr/bin/true", 16384)


def test_kernel_symbol_comes_and_goes() -> None:
    """A BPF program is announced when it is loaded and when it goes."""
    come, go = values("ksymbol")
    assert isinstance(come, Ksymbol)
    assert isinstance(go, Ksymbol)
    assert come.name.startswith(b"bpf_prog_")
    assert (come.ksym_type, come.flags) == (KsymbolType.BPF, 0)
    assert (go.addr, go.flags) == (come.addr, KSYMBOL_UNREGISTER)


def test_loss_in_a_full_ring() -> None:
    """2000 records of 64 bytes into 65536 bytes: 1023 fitted, as one byte must stay free."""
    ((lost, ids, _, _),) = captured("lost")
    assert isinstance(lost, Lost)
    assert (lost.lost, lost.id) == (2000 - 1023, ids.id)


@pytest.mark.parametrize(
    ("record", "kind", "misc", "body"),
    [
        (LostSamples(5), 13, 0, struct.pack("<Q", 5)),
        (LostSamples(5, by_bpf=True), 13, 1 << 15, struct.pack("<Q", 5)),
        (Throttle(1, 2, 3), 5, 0, struct.pack("<QQQ", 1, 2, 3)),
        (Throttle(1, 2, 3, resumed=True), 6, 0, struct.pack("<QQQ", 1, 2, 3)),
        (Comm(1, 2, b"1234567"), 3, 0, struct.pack("<II8s", 1, 2, b"1234567")),
        (Comm(1, 2, b"12345678"), 3, 0, struct.pack("<II16s", 1, 2, b"12345678")),
        (
            Mmap(2**32 - 1, 0, 3, 4, 5, b"[k]_text", Misc.KERNEL),
            *(1, 1, struct.pack("<iIQQQ16s", -1, 0, 3, 4, 5, b"[k]_text")),
        ),
        (
            Mmap2(1, 2, 3, 4, 5, 6, 7, b"f", build_id=b"\xaa\xbb", is_data=True),
            *(10, 2 | 1 << 13 | 1 << 14),
            struct.pack("<IIQQQBBH20sII8s", 1, 2, 3, 4, 5, 2, 0, 0, b"\xaa\xbb", 6, 7, b"f"),
        ),
        (
            Mmap2(1, 2, 3, 4, 5, 6, 7, b"f", major=8, minor=9, inode=10, inode_generation=11),
            *(10, 2, struct.pack("<IIQQQIIQQII8s", 1, 2, 3, 4, 5, 8, 9, 10, 11, 6, 7, b"f")),
        ),
    ],
)
def test_layouts(record: Record, kind: int, misc: int, body: bytes) -> None:
    """Bodies and misc bits are laid out as perf_event.h says, in both directions."""
    raw = encode(record, TIMED, SampleId(time_ns=99))
    assert raw == frame(kind, misc, body + struct.pack("<Q", 99))
    assert decode(raw, next(iter_records(raw)), TIMED) == record


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Comm(1, 2, b"a\0b"), "string"),
        (Comm(1, 1 << 32, b"a"), "record_value"),
        (Mmap2(1, 2, 3, 4, 5, 6, 7, b"f", build_id=bytes(21)), "build_id"),
        (Mmap(1, 2, 3, 4, 5, b"f" * 65528), "record_size"),
        (LostSamples(-1), "record_value"),
    ],
)
def test_values_that_do_not_fit(record: Record, reason: str) -> None:
    """A value that its field cannot hold is refused."""
    with pytest.raises(CodecError) as caught:
        encode(record, NO_IDS, SampleId())
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (frame(RecordType.COMM, 0, struct.pack("<II8s", 1, 2, b"12345678")), "string"),
        (frame(RecordType.COMM, 0, b""), "record_size"),
        (frame(RecordType.FORK, 0, bytes(16)), "record_size"),
        (frame(RecordType.MMAP2, 0, bytes(64)), "string"),
        (frame(RecordType.MMAP2, 0, bytes(32)), "record_size"),
        (frame(RecordType.MMAP2, 1 << 14, bytes(32) + b"\x15" + bytes(39)), "build_id"),
        (frame(RecordType.LOST, 0, bytes(8)), "record_size"),
    ],
)
def test_damaged_records(raw: bytes, reason: str) -> None:
    """A record that is too short for its type, or whose string has no end, is refused."""
    data = bytes(16) + raw
    with pytest.raises(CodecError) as caught:
        decode(data, next(iter_records(data, 16)), NO_IDS)
    assert (caught.value.offset, caught.value.reason) == (16, reason)


def test_other_types_have_no_value() -> None:
    """A type without a class gives None, not an error."""
    raw = frame(RecordType.NAMESPACES, 0, bytes(16))
    assert decode(raw, next(iter_records(raw)), NO_IDS) is None
