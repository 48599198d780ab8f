# SPDX-License-Identifier: Apache-2.0
"""Build-ids of the files that code runs from: programs, libraries, the kernel and its modules."""

from __future__ import annotations

import functools
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from collectord.codec import elf
from collectord.codec.perf_features import BuildId
from collectord.codec.perf_record import SHORT_ADDRESS_END, Misc
from collectord.codec.perf_sideband import KERNEL_FILE
from collectord.folders.folder import opened, reopen
from collectord.kernel.host import kernel_maps

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.codec.perf_sideband import Mmap2

_VDSO: Final = b"[vdso]"


def mapped_build_id(mapping: Mmap2, proc: Path) -> bytes:
    """Return the build-id of a mapped file, empty if it cannot be read.

    The name leads to the file only while nobody has replaced it, and a process may have put a pipe
    or device there: what is opened must be a regular file of the mapping's inode. The name is
    looked up as the process sees it; then the file among the process's mappings, which is certain
    to be the right one but needs CAP_CHECKPOINT_RESTORE; and, for a process that is gone, as this
    one sees it.

    Args:
        mapping: the kernel's description, with device and inode.
        proc: root of procfs.
    """
    if mapping.filename == _VDSO:
        return own_vdso_build_id() if mapping.addr >= SHORT_ADDRESS_END else b""
    if not mapping.filename.startswith(b"/"):
        return b""
    process = os.fsencode(proc / str(mapping.pid))
    span = b"%x-%x" % (mapping.addr, mapping.addr + mapping.length)
    ways = (
        process + b"/root" + mapping.filename,
        process + b"/map_files/" + span,
        mapping.filename,
    )
    for path in ways:
        with suppress(OSError), opened(os.open(path, os.O_PATH | os.O_CLOEXEC)) as place:
            status = os.fstat(place)
            if stat.S_ISREG(status.st_mode) and status.st_ino == mapping.inode:
                return _at(place)
    return b""


def inode_at(name: bytes) -> int:
    """Return the inode that a path leads to from here; 0 if there is none."""
    try:
        return os.stat(name).st_ino  # noqa: PTH116 - as what follows
    except OSError:
        return 0


@functools.cache
def own_vdso_build_id() -> bytes:
    """Return the build-id of the code that the kernel maps into every process; empty if none."""
    try:
        with open("/proc/self/maps", "rb") as maps:  # noqa: PTH123 - as what follows
            line = next((line for line in maps if line.endswith(_VDSO + b"\n")), b"0-")
        with open("/proc/self/mem", "rb", buffering=0) as memory:  # noqa: PTH123
            return file_build_id(memory.fileno(), int(line.partition(b"-")[0], 16))
    except OSError:
        return b""


def kernel_build_ids(sys: Path) -> tuple[BuildId, ...]:
    """Return the build-ids of the kernel and of the loaded modules that have one.

    They are read again when other modules are loaded: a reloaded module has another inode.

    Args:
        sys: root of sysfs.
    """
    try:
        with os.scandir(sys / "module") as entries:
            modules = tuple(sorted((entry.name, entry.inode()) for entry in entries))
    except OSError:
        modules = ()
    return _kernel_build_ids(sys, modules)


@functools.lru_cache(maxsize=1)
def _kernel_build_ids(sys: Path, modules: tuple[tuple[str, int], ...]) -> tuple[BuildId, ...]:
    kernel = _of_notes(sys / "kernel/notes")
    found = [BuildId(KERNEL_FILE, kernel, cpumode=Misc.KERNEL)] if kernel else []
    files = kernel_maps.module_files(os.uname().release)
    for module, _ in modules:
        if one := _of_notes(sys / "module" / module / "notes/.note.gnu.build-id"):
            name = os.fsencode(module)
            file = os.fsdecode(files.get(name, b"[" + name + b"]"))
            found.append(BuildId(file, one, cpumode=Misc.KERNEL))
    return tuple(found)


def _of_notes(path: Path) -> bytes:
    try:
        return elf.from_notes(path.read_bytes())
    except OSError:
        return b""


def _at(place: int) -> bytes:
    # O_NONBLOCK: opening a file that its owner leased for writing would wait 45 s for the owner.
    with opened(reopen(place, os.O_RDONLY | os.O_NONBLOCK)) as fd:
        return file_build_id(fd)


def file_build_id(fd: int, begin: int = 0) -> bytes:
    """Return the build-id of an ELF file that begins at a byte of `fd`. Raises OSError."""
    return elf.build_id(lambda size, offset: os.pread(fd, size, begin + offset))
