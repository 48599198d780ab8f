# SPDX-License-Identifier: Apache-2.0
"""The first scan, of a copy of /proc: names, parents, maps, build-ids, kernel and modules."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.perf_attr import EventType, PerfEventAttr, SampleType, SoftwareId
from collectord.codec.perf_record import Misc, decode_sample_id, iter_records
from collectord.codec.perf_sideband import Comm, Fork, Mmap, Mmap2, Record, decode
from collectord.kernel import build_id, proc

if TYPE_CHECKING:
    from pathlib import Path

ATTR: Final = PerfEventAttr(
    type=EventType.SOFTWARE,
    config=SoftwareId.DUMMY,
    sample_type=SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME | SampleType.CPU,
    sample_id_all=True,
    build_id=True,
)
BUILD_ID: Final = bytes(range(20))
NOTES: Final = (
    struct.pack("<III", 4, 6, 1) + b"XXX\0" + b"abcdef\0\0"
    + struct.pack("<III", 4, 20, 3) + b"GNU\0" + BUILD_ID
)  # fmt: skip


def _elf(notes: bytes, *, notes_at: int = 4096 * 2) -> bytes:
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 32, 64)
    struct.pack_into("<HH", header, 54, 56, 2)
    other = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, 64, 64, 4)
    segment = other + struct.pack("<IIQQQQQQ", 4, 4, notes_at, 0, 0, len(notes), len(notes), 4)
    return (bytes(header) + segment).ljust(notes_at, b"\0") + notes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with one module and one process of two threads that maps a library."""
    library = tmp_path / "proc/70/root/lib/x y.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(_elf(NOTES))
    inode = library.stat().st_ino
    process = tmp_path / "proc/70"
    (process / "stat").write_text("70 (od) d) x) S 7 70 70 0")
    for tid, name in ((70, "od) d) x"), (71, "helper")):
        (process / f"task/{tid}").mkdir(parents=True)
        (process / f"task/{tid}/comm").write_text(f"{name}\n")
    (process / "maps").write_text(
        f"1000-3000 r-xp 00002000 08:0a {inode}                    /lib/x y.so\n"
        f"3000-4000 rw-p 00004000 08:0a {inode}                    /lib/x y.so\n"
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
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/notes").write_bytes(NOTES)
    return tmp_path


def _scan(root: Path, attr: PerfEventAttr = ATTR, **options: tuple[int, ...]) -> list[Record]:
    data = proc.scan(attr, 5, proc=root / "proc", sys=root / "sys", **options)
    records = [decode(data, header, attr) for header in iter_records(data)]
    return [record for record in records if record is not None]


def test_kernel_and_modules_come_first(root: Path) -> None:
    """The kernel's text spans to _etext and has its build-id; a module has its address."""
    kernel, *modules = [r for r in _scan(root) if isinstance(r, Mmap | Mmap2) and r.pid != 70]
    assert isinstance(kernel, Mmap2)
    assert (kernel.pid, kernel.filename) == (0xFFFFFFFF, b"[kernel.kallsyms]_text")
    assert (kernel.addr, kernel.length) == (0xFFFFFFFF81000000, 0x1000000)
    assert (kernel.pgoff, kernel.build_id) == (0xFFFFFFFF81000000, BUILD_ID)
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
        Comm(70, 71, b"helper"),
    ]


def test_executable_mappings_only(root: Path) -> None:
    """Each executable mapping is told, with build-id if its file has one, else by inode."""
    maps = [r for r in _scan(root) if isinstance(r, Mmap2) and r.pid == 70]
    library, anonymous, gone, vsyscall = maps
    assert (library.filename, library.build_id) == (b"/lib/x y.so", BUILD_ID)
    assert (library.addr, library.length, library.pgoff) == (0x1000, 0x2000, 0x2000)
    assert (library.prot, library.flags) == (5, 2)
    assert (anonymous.filename, anonymous.prot) == (b"//anon", 7)
    assert (gone.filename, gone.build_id) == (b"/dev/shm/gone (deleted)", b"")
    assert (gone.major, gone.minor, gone.inode, gone.flags) == (0, 5, 99, 1)
    assert (vsyscall.filename, vsyscall.prot) == (b"[vsyscall]", 4)


def test_without_build_ids_files_are_told_by_inode(root: Path) -> None:
    """An event that did not ask for build-ids gets device and inode."""
    attr = PerfEventAttr(sample_type=ATTR.sample_type, sample_id_all=True)
    maps = [r for r in _scan(root, attr) if isinstance(r, Mmap2)]
    assert [r.build_id for r in maps] == [b""] * 4
    assert maps[0].inode > 0
    assert (maps[0].major, maps[0].minor) == (8, 10)


def test_replaced_file_gives_no_build_id(root: Path) -> None:
    """A file of another inode under the mapping's name is not the mapped one."""
    library = root / "proc/70/root/lib/x y.so"
    fresh = library.with_name("fresh")
    fresh.write_bytes(_elf(NOTES))
    fresh.replace(library)
    maps = [r for r in _scan(root) if isinstance(r, Mmap2) and r.pid == 70]
    assert maps[0].build_id == b""


def test_pipe_in_place_of_a_file_is_not_opened(root: Path) -> None:
    """What lies under the name may block its opener, even with the mapping's inode number."""
    library = root / "proc/70/root/lib/x y.so"
    library.unlink()
    os.mkfifo(library)
    line = f"1000-3000 r-xp 00002000 08:0a {library.stat().st_ino} /lib/x y.so\n"
    (root / "proc/70/maps").write_text(line)
    (found,) = [r for r in _scan(root) if isinstance(r, Mmap2) and r.pid == 70]
    assert found.build_id == b""


def test_trailer_sorts_before_every_sample(root: Path) -> None:
    """Every record has time 0, the sideband event's id and its own task; forks say exec."""
    data = proc.scan(ATTR, 5, proc=root / "proc", sys=root / "sys")
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
    """Where kallsyms reads as zeros no kernel map is made up."""
    (root / "proc/kallsyms").write_text("0000000000000000 T _text\n0000000000000000 T _etext\n")
    (root / "proc/modules").unlink()
    assert not [r for r in _scan(root) if isinstance(r, Mmap2) and r.pid != 70]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x7fELF",
        b"\x7fELF\x02\x01",
        _elf(NOTES)[:64],
        _elf(NOTES)[:100],
        _elf(NOTES)[:8200],
        _elf(NOTES[:-4]),
        _elf(struct.pack("<III", 0xFFFFFFFF, 0xFFFFFFFF, 3)),
        _elf(struct.pack("<III", 4, 64, 3) + b"GNU\0" + bytes(64)),
        b"\x7fELF\x02\x01" + b"\xff" * 4090,
    ],
)
def test_damaged_elf_has_no_build_id(tmp_path: Path, damage: bytes) -> None:
    """Any bytes may be mapped executable; what is no whole note gives nothing."""
    path = tmp_path / "file"
    path.write_bytes(damage)
    with path.open("rb") as file:
        assert build_id.from_elf(file.fileno()) == b""


def test_short_elf_class_is_read(tmp_path: Path) -> None:
    """A 32-bit file's notes are found too."""
    header = bytearray(52)
    header[:6] = b"\x7fELF\x01\x01"
    struct.pack_into("<I", header, 28, 52)
    struct.pack_into("<HH", header, 42, 32, 1)
    segment = struct.pack("<IIIIIIII", 4, 84, 0, 0, len(NOTES), len(NOTES), 4, 4)
    path = tmp_path / "file"
    path.write_bytes(bytes(header) + segment + NOTES)
    with path.open("rb") as file:
        assert build_id.from_elf(file.fileno()) == BUILD_ID
