# SPDX-License-Identifier: Apache-2.0
"""The first scan, of a copy of /proc: names, parents, maps, kernel and modules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.perf_attr import EventType, PerfEventAttr, SampleType, SoftwareId
from collectord.codec.perf_record import Misc, iter_records
from collectord.codec.perf_sideband import Cgroup, Comm, Fork, Mmap, Mmap2
from collectord.kernel.host import processes
from tests.support.perf_ids import decode_sample_id
from tests.support.sideband import Record, decode

if TYPE_CHECKING:
    from pathlib import Path

ATTR: Final = PerfEventAttr(
    type=EventType.SOFTWARE,
    config=SoftwareId.DUMMY,
    sample_type=SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME | SampleType.CPU,
    sample_id_all=True,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a machine with one module and one process of two threads that maps a library."""
    process = tmp_path / "proc/70"
    process.mkdir(parents=True)
    (process / "stat").write_text("70 (od) d) x) S 7 70 70 0")
    for tid, name in ((70, "od) d) x"), (71, "helper/0:1-events_unbound")):
        (process / f"task/{tid}").mkdir(parents=True)
        (process / f"task/{tid}/comm").write_text(f"{name}\n")
    (process / "maps").write_text(
        "1000-3000 r-xp 00002000 08:0a 77                    /lib/x y.so\n"
        "3000-4000 rw-p 00004000 08:0a 77                    /lib/x y.so\n"
        "5000-6000 rwxp 00000000 00:00 0 \n"
        "7000-8000 r-xs 00000000 00:05 99    /dev/shm/gone (deleted)\n"
        "ffff0000-ffff1000 --xp 00000000 00:00 0                  [vsyscall]\n"
    )
    (tmp_path / "proc/kallsyms").write_text(
        "0000000000000000 A fixed_percpu_data\nffffffff80000000 T _text_other\n"
        "ffffffff81000000 T _stext\nffffffff81000000 T _text\n"
        "ffffffff82000000 T _etext\nffffffffc0001000 t _text\t[mod_a]\n"
    )
    (tmp_path / "proc/modules").write_text(
        "mod_a 16384 0 - Live 0xffffffffc0001000\nhidden 4096 0 - Live 0x0000000000000000\n"
    )
    return tmp_path


def _scan(root: Path, attr: PerfEventAttr = ATTR, **options: tuple[int, ...]) -> list[Record]:
    data = processes.scan(attr, 5, proc=root / "proc", **options)
    records = [decode(data, header, attr) for header in iter_records(data)]
    return [record for record in records if record is not None]


def test_kernel_and_modules_come_first(root: Path) -> None:
    """The kernel's text spans to _etext; a module has its address."""
    kernel, *modules = [r for r in _scan(root) if isinstance(r, Mmap | Mmap2) and r.pid != 70]
    assert isinstance(kernel, Mmap)
    assert (kernel.pid, kernel.filename) == (0xFFFFFFFF, b"[kernel.kallsyms]_text")
    assert (kernel.addr, kernel.length) == (0xFFFFFFFF81000000, 0x1000000)
    assert kernel.pgoff == 0xFFFFFFFF81000000
    assert kernel.cpumode == Misc.KERNEL
    assert [(m.filename, m.addr, m.length) for m in modules] == [
        (b"[mod_a]", 0xFFFFFFFFC0001000, 16384)
    ]


def test_threads_have_names_and_parents(root: Path) -> None:
    """A process's parent is its parent process, a thread's is its process."""
    records = _scan(root)
    assert [r for r in records if isinstance(r, Fork)] == [
        Fork(70, 7, 70, 7, 0),
        Fork(70, 70, 71, 70, 0),
    ]
    assert [r for r in records if isinstance(r, Comm)] == [
        Comm(70, 70, b"od) d) x"),
        Comm(70, 71, b"helper/0:1-even"),
    ]


def test_executable_mappings_only(root: Path) -> None:
    """Each executable mapping is told, its file by device and inode."""
    maps = [r for r in _scan(root) if isinstance(r, Mmap2) and r.pid == 70]
    library, anonymous, gone, vsyscall = maps
    assert (library.filename, library.inode) == (b"/lib/x y.so", 77)
    assert (library.major, library.minor, library.build_id) == (8, 10, b"")
    assert (library.addr, library.length, library.pgoff) == (0x1000, 0x2000, 0x2000)
    assert (library.prot, library.flags) == (5, 2)
    assert (anonymous.filename, anonymous.prot) == (b"//anon", 7)
    assert gone.filename == b"/dev/shm/gone (deleted)"
    assert (gone.major, gone.minor, gone.inode, gone.flags) == (0, 5, 99, 1)
    assert (vsyscall.filename, vsyscall.prot) == (b"[vsyscall]", 4)


def test_data_of_files_where_stacks_are_unwound(root: Path) -> None:
    """Files' readable mappings are told too, in the order of addresses, and as data."""
    maps = [r for r in _scan(root, replace(ATTR, mmap_data=True)) if isinstance(r, Mmap2)]
    assert [m.is_data for m in maps] == [False, True, False, False, False]
    assert (maps[1].filename, maps[1].addr, maps[1].pgoff) == (b"/lib/x y.so", 0x3000, 0x4000)
    assert maps[1].prot == 3


def test_cgroups_where_samples_have_them(root: Path) -> None:
    """Each has its path and the inode of its directory, and outer ones come first."""
    top = root / "cg"
    inner = top / "a.slice/b c.service"
    inner.mkdir(parents=True)
    (top / "cgroup.procs").write_text("")
    (top / "link").symlink_to(root)
    (root / "proc/self").mkdir()
    mount = f"26 23 0:24 / {top} rw - cgroup2 cgroup2 rw"
    (root / "proc/self/mountinfo").write_text(mount)
    found = [r for r in _scan(root, replace(ATTR, cgroup=True)) if isinstance(r, Cgroup)]
    assert found == [
        Cgroup(top.stat().st_ino, b"/"),
        Cgroup(inner.parent.stat().st_ino, b"/a.slice"),
        Cgroup(inner.stat().st_ino, b"/a.slice/b c.service"),
    ]
    assert not [r for r in _scan(root) if isinstance(r, Cgroup)]


def test_trailer_sorts_before_every_sample(root: Path) -> None:
    """Every record has time 0, the sideband event's id and its own task; forks say exec."""
    data = processes.scan(ATTR, 5, proc=root / "proc")
    for header in iter_records(data):
        ids = decode_sample_id(data, header, ATTR)
        assert (ids.time_ns, ids.id) == (0, 5)
        if isinstance(decode(data, header, ATTR), Fork):
            assert header.misc == Misc.FORK_EXEC


def test_forks_precede_maps(root: Path) -> None:
    """A reader that copies maps at a fork finds none to copy."""
    kinds = [type(r) for r in _scan(root) if not isinstance(r, Mmap) and r != _scan(root)[0]]
    assert Fork not in kinds[kinds.index(Mmap2) :]


def test_only_wanted_processes(root: Path) -> None:
    """A scan of named processes leaves the others out; one that is gone is no error."""
    records = _scan(root, pids=(12_345,))
    assert not [r for r in records if isinstance(r, Comm)]


def test_hidden_kernel_addresses_leave_the_kernel_out(root: Path) -> None:
    """If kallsyms reads as zeros, no kernel map is made up."""
    (root / "proc/kallsyms").write_text("0000000000000000 T _text\n0000000000000000 T _etext\n")
    (root / "proc/modules").unlink()
    assert not [r for r in _scan(root) if isinstance(r, Mmap2) and r.pid != 70]
