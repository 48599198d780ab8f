# SPDX-License-Identifier: Apache-2.0
"""perf.data files with samples of a profile, their tasks and mappings, as a test chooses them."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord.codec import tracing_data
from collectord.codec.ftrace_format import parse_format
from collectord.codec.perf_attr import EventType, PerfEventAttr, RecordType, SampleType, SoftwareId
from collectord.codec.perf_data import AttrSection, Head, build_head, build_tail
from collectord.codec.perf_features import Features
from collectord.codec.perf_record import SampleId, frame
from collectord.codec.perf_sideband import Cgroup, Comm, Fork, Mmap2
from collectord.codec.tracing_data import TracingData
from tests.support.golden import GOLDEN
from tests.support.sideband import encode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EVENT: Final = "cpu-clock"
# Marks of perf in call chains.
KERNEL: Final = (1 << 64) - 128
USER: Final = (1 << 64) - 512
_ID: Final = 7
ATTR: Final = PerfEventAttr(
    type=EventType.SOFTWARE,
    config=SoftwareId.CPU_CLOCK,
    sample_type=SampleType.IDENTIFIER
    | SampleType.IP
    | SampleType.TID
    | SampleType.TIME
    | SampleType.CPU
    | SampleType.PERIOD
    | SampleType.CALLCHAIN,
    sample_id_all=True,
)

_FORMAT: Final = (GOLDEN / "sched_switch.format").read_bytes()
_SWITCH: Final = struct.Struct("<HBBi16siiq16sii")
SWITCH_ATTR: Final = replace(
    ATTR,
    type=EventType.TRACEPOINT,
    config=parse_format(_FORMAT).id,
    sample_type=ATTR.sample_type | SampleType.RAW,
)
CGROUP_ATTR: Final = replace(ATTR, sample_type=ATTR.sample_type | SampleType.CGROUP)
SWITCH_CGROUP_ATTR: Final = replace(
    SWITCH_ATTR, sample_type=SWITCH_ATTR.sample_type | SampleType.CGROUP
)


def _at(time_ns: int, pid: int) -> SampleId:
    return SampleId(pid % (1 << 32), pid % (1 << 32), time_ns, id=_ID)


def sample(
    time_ns: int,
    pid: int,
    *chain: int,
    cpu: int = 0,
    attr: PerfEventAttr = ATTR,
    cgroup: int | None = None,
) -> bytes:
    """Return a sample with a call chain, from the innermost address on, with marks."""
    ip = next((one for one in chain if one < KERNEL - 4095), 0)
    body = struct.pack("<QQIIQIIQ", _ID, ip, pid, pid, time_ns, cpu, 0, 1)
    if attr.sample_type & SampleType.CALLCHAIN:
        body += struct.pack(f"<{len(chain) + 1}Q", len(chain), *chain)
    return frame(RecordType.SAMPLE, 0, body + _placed(cgroup))


def _placed(cgroup: int | None) -> bytes:
    return b"" if cgroup is None else struct.pack("<Q", cgroup)


def cgroup(time_ns: int, number: int, path: bytes) -> bytes:
    """Return a record of a cgroup."""
    return encode(Cgroup(number, path), ATTR, _at(time_ns, 0))


def switch(
    time_ns: int,
    tid: int,
    next_tid: int,
    chain: Sequence[int] = (),
    state: int = 1,
    *,
    cpu: int = 0,
    cgroup: int | None = None,
) -> bytes:
    """Return a switch from one thread to another, with the call chain of the first."""
    ip = chain[0] if chain else 0
    body = struct.pack("<QQIIQIIQ", _ID, ip, tid, tid, time_ns, cpu, 0, 1)
    body += struct.pack(f"<{len(chain) + 1}Q", len(chain), *chain)
    raw = _SWITCH.pack(SWITCH_ATTR.config, 0, 0, tid, b"a", tid, 120, state, b"b", next_tid, 120)
    body += struct.pack("<I", len(raw) + 4) + raw + bytes(4)
    return frame(RecordType.SAMPLE, 0, body + _placed(cgroup))


def comm(time_ns: int, pid: int, name: bytes, *, execs: bool = False) -> bytes:
    """Return a record of a process's name, or of its new program."""
    return encode(Comm(pid, pid, name, is_exec=execs), ATTR, _at(time_ns, pid))


def fork(time_ns: int, parent: int, child: int) -> bytes:
    """Return a record of a process's start."""
    return encode(Fork(child, parent, child, parent, time_ns), ATTR, _at(time_ns, parent))


def mapped(
    time_ns: int,
    pid: int,
    file: Path | str,
    *,
    addr: int,
    length: int = 0x10000,
    pgoff: int = 0,
    inode: int = 0,
    build_id: bytes = b"",
) -> bytes:
    """Return a record of a mapping; the kernel's process is -1."""
    record = Mmap2(
        pid=pid % (1 << 32),
        tid=pid % (1 << 32),
        addr=addr,
        length=length,
        pgoff=pgoff,
        prot=5,
        flags=2,
        filename=str(file).encode(),
        inode=inode,
        build_id=build_id,
    )
    return encode(record, ATTR, _at(time_ns, pid))


def write(
    path: Path,
    *records: bytes,
    features: Features | None = None,
    event: str = EVENT,
    attr: PerfEventAttr = ATTR,
) -> Path:
    """Write a file of these records."""
    head = build_head([AttrSection(attr, (_ID,), event)], features=features or Features())
    return _write(path, head, records)


def write_switches(
    path: Path,
    *records: bytes,
    features: Features | None = None,
    attr: PerfEventAttr = SWITCH_ATTR,
    modifiers: str = "",
) -> Path:
    """Write a file of these switches and other records."""
    layouts = TracingData(
        header_page=(GOLDEN / "header_page").read_bytes(),
        header_event=(GOLDEN / "header_event").read_bytes(),
        page_size_bytes=4096,
        events={"sched": [_FORMAT]},
    )
    head = build_head(
        [AttrSection(attr, (_ID,), f"sched:sched_switch{modifiers}")],
        tracing_data.build(layouts),
        features=features or Features(),
    )
    return _write(path, head, records)


def _write(path: Path, head: Head, records: Sequence[bytes]) -> Path:
    data = b"".join(records)
    tail = build_tail(head, len(head.first_records) + len(data))
    path.write_bytes(tail.header + head.image[len(tail.header) :] + data + tail.tail)
    return path
