# SPDX-License-Identifier: Apache-2.0
"""The list of the kernel's functions that belongs to a recording."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.codec import elf
from collectord.codec.perf_sideband import KERNEL_FILE
from collectord.errors import UnsafePath
from collectord.folders.trust import PROC
from collectord.folders.walk import open_folder
from collectord.reader.symbols.kernel_symbols import KernelSymbols
from collectord.sink.symbol_list import kept_modules, kept_symbols, read_symbols

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectord.reader.event_file import EventFile

    Ask = Callable[[str], Iterable[tuple[Any, ...]]]

_NOTES: Final = Path("/sys/kernel/notes")
_TEXT: Final = re.compile(r"\[kernel\.kallsyms\](_s?text)")
_LISTS: Final = 4
_PLACES: Final = f"SELECT DISTINCT file, file_offset FROM mappings WHERE file ^@ '{KERNEL_FILE}'"  # noqa: S608


def is_of_this_boot(file: EventFile) -> bool:
    """Whether a file says that it was recorded since this host was started."""
    return file.manifest is not None and file.manifest.boot_id == _boot_id()


def symbols_of(file: EventFile, ask: Ask) -> KernelSymbols:
    """Return the functions of the kernel that a file's samples are of, as far as they are known.

    They are those of the running kernel, if the file is of this boot; else those that a session
    has kept of the file's boot; else, if a kernel of the same build runs, those of its own code,
    moved to where the file says that it was. Modules and BPF programs are not in the latter. Those
    that are listed beside the file take the place of others.

    Args:
        file: of the samples.
        ask: of all its records.
    """
    found = _all_of(file, ask)
    text = kept_modules(file.path)
    return found.with_modules(_modules(text)) if text else found


def _all_of(file: EventFile, ask: Ask) -> KernelSymbols:
    if is_of_this_boot(file):
        return _running()
    if file.manifest is not None:
        found = _kept(file.path.parent, file.manifest.boot_id)
        if len(found):
            return found
    return _same_build(file, ask)


def _same_build(file: EventFile, ask: Ask) -> KernelSymbols:
    build_id = file.build_ids().get(KERNEL_FILE, b"")
    if not build_id or build_id != _running_build_id():
        return KernelSymbols()
    running = _running()
    for name, address in ask(_PLACES):
        found = _TEXT.fullmatch(name)
        here = running.references.get(found[1]) if found else None
        if here is not None:
            return _moved(address - here)
    return KernelSymbols()


@lru_cache(maxsize=1)
def _boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


@lru_cache(maxsize=1)
def _running_build_id() -> bytes:
    with suppress(OSError):
        return elf.from_notes(_NOTES.read_bytes())
    return b""


@lru_cache(maxsize=1)
def _text() -> bytes:
    with suppress(OSError):
        return read_symbols(PROC / "kallsyms")
    return b""


@lru_cache(maxsize=1)
def _running() -> KernelSymbols:
    return KernelSymbols(_text())


@lru_cache(maxsize=_LISTS)
def _moved(moved_by: int) -> KernelSymbols:
    return KernelSymbols(_text(), moved_by=moved_by, only_core=True)


@lru_cache(maxsize=_LISTS)
def _modules(text: bytes) -> KernelSymbols:
    return KernelSymbols(text)


@lru_cache(maxsize=_LISTS)
def _kept(place: Path, boot_id: str) -> KernelSymbols:
    with suppress(OSError, UnsafePath), open_folder(place) as folder:
        return KernelSymbols(kept_symbols(folder, boot_id))
    return KernelSymbols()
