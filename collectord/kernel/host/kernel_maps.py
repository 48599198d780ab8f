# SPDX-License-Identifier: Apache-2.0
"""Addresses of the kernel's own code: its text and its modules."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_sideband import KERNEL_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ADDRESS_END: Final = (1 << 64) - 1
# perf relocates by the first of these that it finds.
_REFERENCES: Final = (b"_text", b"_stext")
_READ_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class KernelImage:
    """A piece of kernel code as an MMAP record describes it; addresses and lengths in bytes.

    Attributes:
        name: "[kernel.kallsyms]_text", or a module's file or "[module]".
        addr: address of its first byte.
        length: its length.
        pgoff: for the kernel the address of the reference symbol, else 0.
    """

    name: bytes
    addr: int
    length: int
    pgoff: int = 0


def kernel_images(proc: Path) -> Iterator[KernelImage]:
    """Yield the kernel's text, then its modules; those without a readable address are left out."""
    text = _kernel_text(proc)
    if text is not None:
        yield text
    yield from _modules(proc)


def _kernel_text(proc: Path) -> KernelImage | None:
    found = _symbols(proc / "kallsyms", {*_REFERENCES, b"_etext"})
    reference = next((name for name in _REFERENCES if found.get(name)), None)
    if reference is None:  # no kallsyms, or kernel.kptr_restrict shows zeros
        return None
    addr = found[reference]
    return KernelImage(
        KERNEL_FILE.encode() + reference,
        addr,
        found.get(b"_etext", _ADDRESS_END) - addr,
        addr,
    )


def _symbols(path: Path, wanted: set[bytes]) -> dict[bytes, int]:
    """Return the addresses of some symbols; the list is read only as far as the last of them.

    The kernel writes its own symbols first, and those of modules end in the module's name, so that
    a name at the end of its line is the kernel's.
    """
    found: dict[bytes, int] = {}
    rest = b"\n"
    try:
        with path.open("rb", buffering=0) as file:
            while len(found) < len(wanted) and (piece := file.read(_READ_BYTES)):
                text = rest + piece
                for name in wanted - found.keys():
                    at = text.find(b" " + name + b"\n")
                    if at >= 0:
                        line = text[text.rindex(b"\n", 0, at) + 1 : at]
                        found[name] = int(line.split()[0], 16)
                rest = text[text.rindex(b"\n") :]
    except OSError:
        return {}
    return found


def _modules(proc: Path) -> Iterator[KernelImage]:
    """Yield the modules of /proc/modules: name, size, references, users, state, address."""
    lines = _read(proc / "modules").splitlines()
    files = module_files(os.uname().release) if lines else {}
    for line in lines:
        name, size, *_, addr = line.split()[:6]
        if int(addr, 16) == 0:
            continue
        yield KernelImage(files.get(name, b"[" + name + b"]"), int(addr, 16), int(size))


def module_files(release: str) -> dict[bytes, bytes]:
    """Return module name to file by depmod's list; files say `-` where the kernel says `_`."""
    folder = os.fsencode(f"/lib/modules/{release}/")
    found = {}
    try:
        with open(folder + b"modules.dep", "rb") as listing:  # noqa: PTH123 - bytes path
            for line in listing:
                path = line.partition(b":")[0]
                name = path.rpartition(b"/")[2].partition(b".ko")[0].replace(b"-", b"_")
                found[name] = folder + path
    except OSError:
        return {}
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
