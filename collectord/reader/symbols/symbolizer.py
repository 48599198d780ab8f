# SPDX-License-Identifier: Apache-2.0
"""Call chains of samples as frames with names."""

from __future__ import annotations

from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_record import SHORT_ADDRESS_END, ChainMark
from collectord.codec.perf_sideband import KERNEL_FILE
from collectord.reader.symbols.code_file import NOTHING, VDSO, CodeFile, open_code, own_vdso
from collectord.reader.symbols.frame import UNKNOWN, Frame, Located, Place, frames_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from collectord.reader.symbols.address_spaces import AddressSpaces
    from collectord.reader.symbols.address_spaces import Mapping as Mapped
    from collectord.reader.symbols.kernel_symbols import KernelSymbols
    from collectord.reader.symbols.perf_map import PerfMap
    from collectord.reader.symbols.symbol_cache import SymbolCache

    # {offset in the function, place}, the innermost first.
    _Places = tuple[tuple[int | None, Place], ...]

_KERNEL: Final = "kernel"
# Names of memory without a file, as perf knows them.
_MEMORY: Final = ("//", "/memfd:", "/dev/zero", "/anon_hugepage", "/SYSV")
_PLACES_MAX: Final = 1 << 18  # that are remembered
_FILES_MAX: Final = 4096
_PIDS: Final = 8  # whose roots are looked into


class Symbolizer:
    """Names for the addresses of one file's samples.

    Args:
        spaces: what was mapped.
        kernel: its functions.
        build_ids: of files by name, where the mappings do not have them.
        made: returns the functions that a process made.
        is_live: the recording is of this boot: processes may still be there.
        cache: of what was read before.
        shown: makes unprintable characters visible.

    Attributes:
        lacks_kernel: addresses of the kernel have no names.
    """

    def __init__(
        self,
        spaces: AddressSpaces,
        kernel: KernelSymbols,
        build_ids: Mapping[str, bytes],
        made: Callable[[int], PerfMap],
        *,
        is_live: bool,
        cache: SymbolCache | None,
        shown: Callable[[str], str],
    ) -> None:
        self._spaces = spaces
        self._kernel = kernel
        self._build_ids = build_ids
        self._made = made
        self._is_live = is_live
        self._cache = cache
        self._shown = shown
        self.lacks_kernel = False
        self._files: dict[tuple[str, bytes, int], CodeFile] = {}
        self._maps: dict[int, PerfMap] = {}
        self._kernel_places: dict[int, _Places] = {}
        self._user_places: dict[tuple[Mapped | int, int], _Places] = {}

    def frames(self, pid: int | None, since_ns: int | None, chain: Sequence[int]) -> list[Frame]:
        """Return the frames of a call chain, the outermost first; arguments as of `located`."""
        return frames_of(self.located(pid, since_ns, chain))

    def epoch(self, pid: int, at_ns: int) -> int:
        """Return the number of the epoch that a process is in at a time."""
        return self._spaces.epoch(pid, at_ns)

    def located(
        self, pid: int | None, since_ns: int | None, chain: Sequence[int]
    ) -> Iterator[Located]:
        """Yield the places of a call chain, the innermost first.

        What is inlined at an address comes before the function that it is a part of.

        Args:
            pid: the process.
            since_ns: the epoch of its address space, or a time in it.
            chain: addresses from the innermost on, with perf's marks.
        """
        in_kernel: bool | None = None
        is_first = True
        addresses = iter(chain)
        for address in addresses:
            if address >= ChainMark.FIRST:
                if address == ChainMark.USER_DEFERRED:
                    next(addresses, None)  # the cookie of the user's part, which is elsewhere
                in_kernel = address == ChainMark.KERNEL
                is_first = True
                continue
            if in_kernel is None:  # of one address without a mark, or of another recorder
                in_kernel = address >> 63 == 1
            # A return address is behind its call, and may be behind the function.
            past = 0 if is_first or not address else 1
            is_first = False
            place = address - past
            found = self._kernel_place(place) if in_kernel else self._user(pid, since_ns, place)
            for offset, at in found:
                yield Located(address, None if offset is None else offset + past, at)

    def _kernel_place(self, address: int) -> _Places:
        places = self._kernel_places.get(address)
        if places is None:
            named = self._kernel.find(address)
            if named is None:
                self.lacks_kernel = True
                frame = Frame(f"[{_KERNEL}+{address:#x}]", _KERNEL, is_kernel=True)
                places = ((None, Place(frame)),)
            else:
                name, module = self._shown(named.name), self._shown(named.module)
                frame = Frame(name, module or _KERNEL, is_kernel=True)
                build_id = b"" if module else self._build_ids.get(KERNEL_FILE, b"")
                places = ((address - named.begin, Place(frame, True, build_id)),)  # noqa: FBT003
            if len(self._kernel_places) < _PLACES_MAX:
                self._kernel_places[address] = places
        return places

    def _user(self, pid: int | None, since_ns: int | None, address: int) -> _Places:
        """Return the places at an address, the innermost first."""
        mapping = self._spaces.find(pid, since_ns, address) if pid is not None else None
        of_file = mapping is not None and _is_file(mapping)
        key = (mapping if mapping is not None and of_file else pid or 0, address)
        places = self._user_places.get(key)
        if places is None:
            places = self._named(pid, mapping, address)
            if len(self._user_places) < _PLACES_MAX:
                self._user_places[key] = places
        return places

    def _named(self, pid: int | None, mapping: Mapped | None, address: int) -> _Places:
        if mapping is None or not _is_file(mapping):
            made = self._made_by(pid).find(address) if pid is not None else None
            if made is not None:
                return ((None, Place(Frame(self._shown(made), "perf map"), is_named=True)),)
        if mapping is None:
            return ((None, Place(Frame(UNKNOWN))),)
        module = self._shown(mapping.file)
        offset = address - mapping.begin + mapping.file_offset
        build_id = self._build_id(mapping)
        functions = self._file(mapping).find(offset)
        if not functions:
            short = PurePosixPath(module).name.strip("[]") or module
            return ((None, Place(Frame(f"[{short}+{offset:#x}]", module), build_id=build_id)),)
        return tuple(
            (
                one.offset,
                Place(
                    Frame(self._shown(one.name), module),
                    is_named=True,
                    build_id=build_id,
                    source=self._shown(one.source),
                    line=one.line,
                    is_inlined=number < len(functions),
                ),
            )
            for number, one in enumerate(functions, start=1)
        )

    def _build_id(self, mapping: Mapped) -> bytes:
        return mapping.build_id or self._build_ids.get(mapping.file, b"")

    def _made_by(self, pid: int) -> PerfMap:
        found = self._maps.get(pid)
        if found is None:
            found = self._maps[pid] = self._made(pid)
        return found

    def _file(self, mapping: Mapped) -> CodeFile:
        if not _is_file(mapping):
            is_own = self._is_live and mapping.file == VDSO and mapping.begin >= SHORT_ADDRESS_END
            return own_vdso() if is_own else NOTHING
        build_id = self._build_id(mapping)
        key = (mapping.file, build_id, mapping.inode)
        found = self._files.get(key)
        if found is None:
            if len(self._files) >= _FILES_MAX:
                return NOTHING
            pids = islice(self._spaces.mapping(mapping), _PIDS) if self._is_live else iter(())
            found = self._files[key] = open_code(mapping, build_id, pids, self._cache)
        return found


def _is_file(mapping: Mapped) -> bool:
    """Whether it is a file, and not such as `//anon` or `[vdso]`."""
    return mapping.file.startswith("/") and not mapping.file.startswith(_MEMORY)
