# SPDX-License-Identifier: Apache-2.0
"""Running tasks, mappings and cgroups as records: the state that a new ring's sideband continues.

As in perf: the maps of the kernel and its modules, a FORK and a COMM for every thread, an MMAP2
for every executable mapping, and, where stacks are unwound, for every mapping of a file that may
be read. All forks precede all maps, so that a reader which copies a parent's maps at a fork finds
none yet. Cgroups are described if the event has records of new ones. Records have time 0: readers
process those at once, in file order, ahead of every sample.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_record import Misc, SampleId
from collectord.codec.perf_sideband import (
    KERNEL_PID,
    Cgroup,
    Comm,
    Fork,
    Mmap,
    Mmap2,
    Written,
    encode,
)
from collectord.folders.folder import opened
from collectord.folders.trust import PROC
from collectord.kernel.host import cgroups, kernel_maps, process_traits
from collectord.kernel.host.task_comms import as_comm

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from collectord.codec.perf_attr import PerfEventAttr

# start-end perms offset major:minor inode name.
_MAPS_LINE: Final = (
    rb"^([0-9a-f]+)-([0-9a-f]+) (%b) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (%b) *(.*)$"
)
_CODE: Final = re.compile(_MAPS_LINE % (rb"..x.", rb"\d+"), re.MULTILINE)
_FILES: Final = re.compile(_MAPS_LINE % (rb"r.-.", rb"[1-9]\d*"), re.MULTILINE)
_PROT: Final = {ord("r"): 1, ord("w"): 2, ord("x"): 4}
_MAP_SHARED: Final = 1
_MAP_PRIVATE: Final = 2
_ANON_NAME: Final = b"//anon"  # the kernel's name for an executable mapping without a file
_READ_BYTES: Final = 1 << 20
_MISC_AT: Final = 4
# Longer names do not fit a record; the kernel cuts at PATH_MAX itself.
_NAME_MAX_BYTES: Final = 4096


def scan(
    attr: PerfEventAttr,
    event_id: int,
    *,
    pids: Iterable[int] | None = None,
    proc: Path = PROC,
) -> bytes:
    """Describe what runs, as whole records with the trailer of the sideband event.

    Tasks that exit meanwhile or may not be read (CAP_SYS_PTRACE for the maps of other users,
    CAP_SYSLOG for kernel addresses) are left out.

    Args:
        attr: attributes of the sideband event.
        event_id: its id.
        pids: processes to describe, None for all.
        proc: root of procfs.
    """
    out = _Writer(attr, event_id)
    for image in kernel_maps.kernel_images(proc):
        place = (KERNEL_PID, 0, image.addr, image.length, image.pgoff)
        out.add(Mmap(*place, image.name, Misc.KERNEL), KERNEL_PID, 0)
    if attr.cgroup:
        _add_cgroups(out, proc)
    processes = process_traits.running(proc) if pids is None else sorted(pids)
    return b"".join(out.records) + describe(attr, event_id, processes, 0, proc=proc)


def describe(
    attr: PerfEventAttr, event_id: int, processes: Iterable[int], time_ns: int, *, proc: Path
) -> bytes:
    """Describe processes as `scan` does, as of a time of the event's clock; 0: from the start."""
    out = _Writer(attr, event_id, time_ns)
    root = os.fspath(proc)
    described = [pid for pid in processes if _add_tasks(out, root, pid)]
    for pid in described:
        _add_maps(out, root, pid)
    return b"".join(out.records)


@dataclass(slots=True)
class _Writer:
    attr: PerfEventAttr
    event_id: int
    time_ns: int = 0
    records: list[bytes] = field(default_factory=list)

    def add(self, record: Written, pid: int, tid: int) -> None:
        ids = SampleId(
            pid=pid, tid=tid, time_ns=self.time_ns, id=self.event_id, stream_id=self.event_id
        )
        data = encode(record, self.attr, ids)
        if isinstance(record, Fork):
            # FORK_EXEC: the maps are described one by one, and a reader must not copy the
            # parent's.
            misc = struct.pack("<H", Misc.FORK_EXEC)
            data = data[:_MISC_AT] + misc + data[_MISC_AT + len(misc) :]
        self.records.append(data)


def _add_cgroups(out: _Writer, proc: Path) -> None:
    """Add the cgroups of the hierarchy that samples name."""
    root = cgroups.cgroup_root(_read(f"{proc}/self/mountinfo"))
    for number, path in cgroups.existing(root) if root is not None else ():
        if len(path) <= _NAME_MAX_BYTES:
            out.add(Cgroup(number, path), 0, 0)


def _add_tasks(out: _Writer, root: str, pid: int) -> bool:
    """Add the process's threads; return whether it existed."""
    try:
        parent = process_traits.parent_of(_read(f"{root}/{pid}/stat"))
        tids = sorted(map(int, os.listdir(f"{root}/{pid}/task")))  # noqa: PTH208
    except OSError:
        return False
    for tid in tids:
        try:
            comm = as_comm(_read(f"{root}/{pid}/task/{tid}/comm"))
        except OSError:
            continue
        before = parent if tid == pid else pid
        out.add(Fork(pid, before, tid, before, out.time_ns), pid, tid)
        out.add(Comm(pid, tid, comm), pid, tid)
    return True


def _add_maps(out: _Writer, root: str, pid: int) -> None:
    """Add the executable mappings of a process, and those of files if the event has them too."""
    try:
        text = _read(f"{root}/{pid}/maps")
    except OSError:
        return
    found = [(match, False) for match in _CODE.finditer(text)]
    if out.attr.mmap_data:
        found += [(match, True) for match in _FILES.finditer(text)]
        found.sort(key=lambda entry: entry[0].start())
    for match, is_data in found:
        start, end, perms, offset, major, minor, inode, name = match.groups()
        addr = int(start, 16)
        record = Mmap2(
            *(pid, pid, addr, int(end, 16) - addr, int(offset, 16)),
            prot=sum(_PROT.get(letter, 0) for letter in perms[:3]),
            flags=_MAP_SHARED if perms.endswith(b"s") else _MAP_PRIVATE,
            filename=name[:_NAME_MAX_BYTES] or _ANON_NAME,
            major=int(major, 16),
            minor=int(minor, 16),
            inode=int(inode),
            is_data=is_data,
        )
        out.add(record, pid, pid)


def _read(path: str) -> bytes:
    """Read all of a file of procfs, whose size is unknown."""
    with opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        return b"".join(iter(lambda: os.read(fd, _READ_BYTES), b""))
