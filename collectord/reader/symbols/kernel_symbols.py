# SPDX-License-Identifier: Apache-2.0
"""Functions of the kernel, its modules and BPF programs, as /proc/kallsyms lists them.

Addresses differ from boot to boot, so a list belongs to a boot. The list of this boot is the
kernel's own; directories of sessions have those of boots before (`sink.symbol_list`).
"""

from __future__ import annotations

import bisect
import copy
import re
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE: Final = re.compile(rb"^([0-9a-f]{1,16}) ([tTwW]) (\S+)(?:\t\[(\S+)\])?$", re.MULTILINE)
# The kernel's symbols whose place perf records with the kernel's text.
_REFERENCES: Final = ("_text", "_stext")
_CORE: Final = ""


class KernelFunction(NamedTuple):
    """A function of the kernel; the kernel itself is the module ""."""

    name: str
    module: str
    begin: int


class KernelSymbols:
    """Functions by address.

    Args:
        text: of /proc/kallsyms.
        moved_by: how far a kernel of the same build was loaded behind the one of `text`.
        only_core: leave out modules and BPF programs, whose places another boot does not have.

    Attributes:
        references: addresses of the symbols whose place perf records, by name.
        modules: what is there instead beyond the kernel's own functions.
    """

    def __init__(self, text: bytes = b"", *, moved_by: int = 0, only_core: bool = False) -> None:
        best: dict[int, tuple[tuple[bool, bool, int, int], str, str]] = {}
        self.references: dict[str, int] = {}
        for address, name, module, rank in _listed(text):
            if only_core and module:
                continue
            if name in _REFERENCES and not module:
                self.references[name] = address
            if address not in best or rank < best[address][0]:
                best[address] = rank, name, module
        ordered = sorted(best)
        core = [one for one in ordered if best[one][2] == _CORE]
        self._core = range(core[0] + moved_by, core[-1] + moved_by) if core else range(0)
        self.modules: KernelSymbols | None = None
        self._addresses = array("Q", ((one + moved_by) % (1 << 64) for one in ordered))
        self._names = [best[one][1:] for one in ordered]

    def __len__(self) -> int:
        """Return the number of places that have names."""
        return len(self._names)

    def with_modules(self, modules: KernelSymbols) -> KernelSymbols:
        """Return the functions with others of modules: what is not the kernel's own changes."""
        made = copy.copy(self)
        made.modules = modules
        return made

    def find(self, address: int) -> KernelFunction | None:
        """Return the function at an address."""
        if self.modules is not None and address not in self._core:
            return self.modules.find(address)
        at = bisect.bisect_right(self._addresses, address) - 1
        # Behind the last one nothing tells where it ends.
        if not 0 <= at < len(self._names) - 1:
            return None
        return KernelFunction(*self._names[at], self._addresses[at])


def _listed(text: bytes) -> Iterator[tuple[int, str, str, tuple[bool, bool, int, int]]]:
    """Yield {address, name, module, rank}; of several at an address the least rank is perf's.

    It prefers strong symbols, then global ones, then fewer underscores, then the longer name.
    """
    for found in _LINE.finditer(text):
        address = int(found[1], 16)
        if not address:
            continue  # hidden from this user
        kind, name = found[2], found[3].decode(errors="backslashreplace")
        module = found[4].decode(errors="backslashreplace") if found[4] else _CORE
        underscores = len(name) - len(name.lstrip("_"))
        yield address, name, module, (kind in b"wW", kind != b"T", underscores, -len(name))
