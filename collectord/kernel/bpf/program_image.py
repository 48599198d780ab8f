# SPDX-License-Identifier: Apache-2.0
"""BPF programs as the kernel has them loaded: their code, functions, lines and types.

Sizes come from the kernel and are checked again: a program's sizes are fixed once it is loaded,
but never more is read than there was room for.
"""

from __future__ import annotations

import functools
import struct
from itertools import islice
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from collectord._native import _syscalls
from collectord.codec.bpf_symbols import symbols_of
from collectord.codec.cursor import U32, U64
from collectord.codec.perf_bpf import ARRAY_PLACES, BpfArray, BpfImage, Btf, LoadedBpf
from collectord.errors import KernelError
from collectord.folders.folder import opened
from collectord.kernel.bpf import bpf_calls

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from collectord.codec.bpf_symbols import BpfSymbols
    from collectord.codec.perf_bpf import ArrayPlace

# Arrays that name the functions of a program; a few bytes for each of them.
NAMING: Final = (
    BpfArray.JITED_KSYMS,
    BpfArray.JITED_FUNC_LENS,
    BpfArray.FUNC_INFO,
    BpfArray.PROG_TAGS,
)
# Arrays that annotate its code.
ANNOTATING: Final = (BpfArray.JITED_INSNS, BpfArray.LINE_INFO, BpfArray.JITED_LINE_INFO)
_ARRAY_MAX_BYTES: Final = 4 << 20
_BTF_MAX_BYTES: Final = 4 << 20
_PROGRAMS_MAX: Final = 4096
# struct bpf_btf_info: pointer, room or size.
_BTF_INFO: Final = struct.Struct("<QI4x")


class LoadedPrograms:
    """A reader of programs and types that reads each once while somebody holds the result.

    Every stream of a daemon has them, so a copy for each would use memory without limit. A number
    is not reused while it matters: the kernel counts on through 31 bits.
    """

    def __init__(self) -> None:
        self._images: WeakValueDictionary[tuple[int, tuple[BpfArray, ...]], BpfImage] = (
            WeakValueDictionary()
        )
        self._types: WeakValueDictionary[int, Btf] = WeakValueDictionary()

    def read(self, ids: Iterable[int], room_bytes: int) -> LoadedBpf:
        """Read programs and the types that they were loaded with, as far as there is room.

        Names come ahead of code: without room for its code, a program gets only the addresses of
        its functions. Programs that are unloaded meanwhile, and those that find no room, are left
        out.
        """
        images: list[BpfImage] = []
        types: dict[int, Btf] = {}
        left = room_bytes
        for number in islice(ids, _PROGRAMS_MAX):
            image = self._image(number, NAMING + ANNOTATING)
            if image is not None and image.size_bytes > left:
                image = self._image(number, NAMING)
            if image is None or image.size_bytes > left:
                continue
            left -= image.size_bytes
            images.append(image)
            if image.btf_id and image.btf_id not in types and left > 0:
                btf = self._btf(image.btf_id)
                if btf is not None and len(btf.data) <= left:
                    left -= len(btf.data)
                    types[btf.id] = btf
        return LoadedBpf(tuple(images), tuple(types.values()))

    def _image(self, number: int, arrays: tuple[BpfArray, ...]) -> BpfImage | None:
        image = self._images.get((number, arrays)) or read_by_id(number, arrays)
        if image is not None:
            self._images[number, arrays] = image
        return image

    def _btf(self, number: int) -> Btf | None:
        btf = self._types.get(number) or read_btf(number)
        if btf is not None:
            self._types[number] = btf
        return btf


def read_by_id(number: int, arrays: Collection[BpfArray]) -> BpfImage | None:
    """Read a program by its number as `read_image` does; None if it is gone."""
    try:
        with opened(_syscalls.bpf_open_id("program", number)) as fd:
            return read_image(fd, arrays)
    except (OSError, KernelError):
        return None


def read_image(fd: int, arrays: Collection[BpfArray]) -> BpfImage:
    """Read a program with these arrays, as far as this kernel has them.

    Args:
        fd: descriptor of the program.
        arrays: the wanted arrays. Addresses need the privilege that /proc/kallsyms needs.

    Raises:
        KernelError: the kernel refuses the query.
    """
    known = bpf_calls.object_info(fd, "BPF program")
    rooms = {array: _array_bytes(known, ARRAY_PLACES[array]) for array in arrays}
    rooms = {array: size for array, size in rooms.items() if 0 < size <= _ARRAY_MAX_BYTES}
    asked = bytearray(len(known))
    for array in rooms:
        place = ARRAY_PLACES[array]
        for at in filter(None, (place.count_at, place.size_at)):
            asked[at : at + U32.size] = known[at : at + U32.size]
    told, copies = _syscalls.bpf_object_info(
        fd, bytes(asked), [(ARRAY_PLACES[array].at, size) for array, size in rooms.items()]
    )
    given = bytearray(told)
    found = {
        array: copy[: _array_bytes(given, ARRAY_PLACES[array])]
        for array, copy in zip(rooms, copies, strict=True)
    }
    found = {array: data for array, data in found.items() if data}
    # perf lists those that a program has none of, lines without types for one, as empty arrays.
    found |= {
        array: b""
        for array in arrays
        if _has_place(known, ARRAY_PLACES[array]) and not _array_bytes(known, ARRAY_PLACES[array])
    }
    # A reader trusts the struct about these, and would read arrays that are not there.
    for array in (*NAMING, *ANNOTATING):
        place = ARRAY_PLACES[array]
        if array not in found and place.count_at + U32.size <= len(given):
            U32.pack_into(given, place.count_at, 0)
    return BpfImage(bytes(given), found)


def read_btf(number: int) -> Btf | None:
    """Read the types of programs by the kernel's number; None if they are gone."""
    try:
        fd = _syscalls.bpf_open_id("btf", number)
    except OSError:
        return None
    with opened(fd):
        size = _BTF_INFO.unpack_from(bpf_calls.object_info(fd, "BTF"))[1]
        if not 0 < size <= _BTF_MAX_BYTES:
            return None
        _, (data,) = _syscalls.bpf_object_info(fd, _BTF_INFO.pack(0, size), [(0, size)])
        return Btf(number, data)


def _has_place(info: bytes | bytearray, place: ArrayPlace) -> bool:
    """Whether this kernel's struct is long enough to describe the array."""
    ends = (place.at + U64.size, place.count_at + U32.size, place.size_at + U32.size)
    return len(info) >= max(ends)


def _array_bytes(info: bytes | bytearray, place: ArrayPlace) -> int:
    """Return the size of an array from its struct; 0 where this kernel's struct is too short."""
    if not _has_place(info, place):
        return 0
    count: int = U32.unpack_from(info, place.count_at)[0]
    if place.size_at:
        size: int = U32.unpack_from(info, place.size_at)[0]
        return count * size
    return count * place.entry_bytes


def symbols(ids: Iterable[int]) -> Iterator[BpfSymbols]:
    """Yield the symbols of these programs; those unloaded meanwhile are left out."""
    types = functools.cache(read_btf)  # several programs often share them
    for number in ids:
        image = read_by_id(number, NAMING)
        if image is not None:
            yield symbols_of(image, types(image.btf_id) if image.btf_id else None)
