# SPDX-License-Identifier: Apache-2.0
"""Build-ids of files that are mapped: of a copy of /proc, of damaged files, and of this host."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
from pathlib import Path
from typing import Final

import pytest

from collectord.codec.perf_features import BuildId
from collectord.codec.perf_record import Misc
from collectord.codec.perf_sideband import Mmap2
from collectord.kernel.host import code_files

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


def _mapping(path: Path, *, name: bytes = b"/lib/x y.so", inode: int = 0) -> Mmap2:
    at = (70, 70, 0x7F0000001000, 0x2000, 0x2000)
    known = inode or path.stat().st_ino
    return Mmap2(*at, prot=5, flags=2, filename=name, inode=known)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a /proc with one process that maps a library."""
    library = tmp_path / "proc/70/root/lib/x y.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(_elf(NOTES))
    return tmp_path / "proc"


@pytest.fixture
def library(proc: Path) -> Path:
    """Return the library's path inside of the process."""
    return proc / "70/root/lib/x y.so"


def test_a_file_that_somebody_leased_is_not_waited_for(proc: Path, library: Path) -> None:
    """An open would wait until its owner gives the lease up, 45 s long."""
    with library.open("r+b") as owner:
        fcntl.fcntl(owner, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        before = signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            assert code_files.mapped_build_id(_mapping(library), proc) == b""
            with pytest.raises(BlockingIOError):  # the lease is still held: nobody waited
                os.close(os.open(library, os.O_RDONLY | os.O_NONBLOCK))
        finally:
            fcntl.fcntl(owner, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            signal.signal(signal.SIGIO, before)


def test_a_file_is_found_as_its_process_sees_it(proc: Path, library: Path) -> None:
    """The name is looked up below the process's root."""
    assert code_files.mapped_build_id(_mapping(library), proc) == BUILD_ID


def test_a_file_without_a_name_is_found_among_the_mappings(proc: Path, library: Path) -> None:
    """A deleted one is still there for as long as it is mapped."""
    mapped = proc / "70/map_files/7f0000001000-7f0000003000"
    mapped.parent.mkdir()
    library.rename(mapped)
    found = _mapping(mapped, name=b"/lib/x y.so (deleted)")
    assert code_files.mapped_build_id(found, proc) == BUILD_ID


def test_a_file_of_a_process_that_is_gone_is_found_by_its_name(proc: Path, library: Path) -> None:
    """The name suffices as long as its inode is unchanged."""
    place = proc.parent / "elsewhere.so"
    library.rename(place)
    assert code_files.mapped_build_id(_mapping(place, name=bytes(place)), proc) == BUILD_ID


def test_a_replaced_file_gives_no_build_id(proc: Path, library: Path) -> None:
    """A file of another inode under the mapping's name is not the mapped one."""
    mapping = _mapping(library)
    fresh = library.with_name("fresh")
    fresh.write_bytes(_elf(NOTES))
    fresh.replace(library)
    assert code_files.mapped_build_id(mapping, proc) == b""


def test_a_pipe_in_place_of_a_file_is_not_opened(proc: Path, library: Path) -> None:
    """Opening it could block, even if it has the mapping's inode number."""
    library.unlink()
    os.mkfifo(library)
    assert code_files.mapped_build_id(_mapping(library), proc) == b""


@pytest.mark.parametrize("name", [b"[stack]", b"//anon", b"anon_inode:[x]", b""])
def test_what_is_no_file_is_not_looked_for(proc: Path, library: Path, name: bytes) -> None:
    """Names that are no path lead nowhere."""
    assert code_files.mapped_build_id(_mapping(library, name=name), proc) == b""


def test_the_vdso_is_read_from_memory(proc: Path) -> None:
    """It has no file; that of 32-bit processes is another one, which is unknown."""
    found = code_files.mapped_build_id(_mapping(proc, name=b"[vdso]"), proc)
    assert len(found) == len(BUILD_ID)
    short = Mmap2(70, 70, 0xF7F00000, 0x2000, 0, prot=5, flags=2, filename=b"[vdso]")
    assert code_files.mapped_build_id(short, proc) == b""


def test_the_kernel_and_its_modules_have_their_notes(tmp_path: Path) -> None:
    """A module without a file is named in brackets; what has no note is left out."""
    for name in ("kernel", "module/mod_a/notes", "module/built_in"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "kernel/notes").write_bytes(NOTES)
    (tmp_path / "module/mod_a/notes/.note.gnu.build-id").write_bytes(NOTES)
    assert list(code_files.kernel_build_ids(tmp_path)) == [
        BuildId("[kernel.kallsyms]", BUILD_ID, cpumode=Misc.KERNEL),
        BuildId("[mod_a]", BUILD_ID, cpumode=Misc.KERNEL),
    ]


def test_a_module_that_was_loaded_again_is_read_again(tmp_path: Path) -> None:
    """It may be another one of the same name."""
    module = tmp_path / "module/mod_a"
    module.mkdir(parents=True)
    assert code_files.kernel_build_ids(tmp_path) == ()
    module.rename(tmp_path / "unloaded")
    (module / "notes").mkdir(parents=True)
    (module / "notes/.note.gnu.build-id").write_bytes(NOTES)
    assert [one.build_id for one in code_files.kernel_build_ids(tmp_path)] == [BUILD_ID]


def test_the_build_id_is_what_readelf_says() -> None:
    """Both agree on a file of this host."""
    path = Path("/bin/sh").resolve()
    notes = subprocess.run(["readelf", "-n", path], capture_output=True, check=True).stdout
    with path.open("rb") as file:
        assert f"Build ID: {code_files.file_build_id(file.fileno()).hex()}".encode() in notes


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
        assert code_files.file_build_id(file.fileno()) == b""


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
        assert code_files.file_build_id(file.fileno()) == BUILD_ID
