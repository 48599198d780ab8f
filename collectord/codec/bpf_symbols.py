# SPDX-License-Identifier: Apache-2.0
"""Names in loaded BPF programs: types in BTF, and functions as perf and kallsyms name them.

BTF is laid out by include/uapi/linux/btf.h. Types follow one another, each with the length of its
kind, and are numbered from 1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_bpf import ARRAY_PLACES, BpfArray
from collectord.codec.perf_sideband import BpfEvent, BpfEventType, Ksymbol, KsymbolType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from collectord.codec.perf_bpf import BpfImage, Btf

# struct bpf_prog_info of include/uapi/linux/bpf.h.
_TAG_AT: Final = 8
_TAG_BYTES: Final = 8
_LOAD_TIME: Final = struct.Struct("<40xQ")
_NAME: Final = struct.Struct("<64x16s")
_UNNAMED: Final = b"F"  # perf's name for a function that only types would name
_NAME_MAX_BYTES: Final = 511  # KSYM_NAME_LEN without its NUL
_MAGIC: Final = b"\x9f\xeb"
# struct btf_header: magic, version, flags, length; types, strings: offset and length behind it.
_HEADER: Final = struct.Struct("<HBBIIIII")
_TYPE: Final = struct.Struct("<III")  # name, kind and count of members, size or type
_KIND_AT: Final = 24
_KIND_MASK: Final = 0x1F
_COUNT_MASK: Final = 0xFFFF
_FUNCTION: Final = 12
_STRUCT: Final = 4
_COMPOUND: Final = (_STRUCT, 5)  # or a union
_DEEPEST: Final = 16  # of structs without a name in others
_MEMBER: Final = _TYPE  # name, type, offset in bits
_BITFIELD: Final = 1 << 31  # of a struct: offsets have the width of bitfields in their upper byte
# Bytes behind a type, by kind: once, and for each member.
_BEHIND: Final = {
    1: (4, 0),  # INT
    2: (0, 0),  # PTR
    3: (12, 0),  # ARRAY
    4: (0, 12),  # STRUCT
    5: (0, 12),  # UNION
    6: (0, 8),  # ENUM
    7: (0, 0),  # FWD
    8: (0, 0),  # TYPEDEF
    9: (0, 0),  # VOLATILE
    10: (0, 0),  # CONST
    11: (0, 0),  # RESTRICT
    12: (0, 0),  # FUNC
    13: (0, 8),  # FUNC_PROTO
    14: (4, 0),  # VAR
    15: (0, 12),  # DATASEC
    16: (0, 0),  # FLOAT
    17: (4, 0),  # DECL_TAG
    18: (0, 0),  # TYPE_TAG
    19: (0, 12),  # ENUM64
}


@dataclass(frozen=True, slots=True)
class BpfFunction:
    """A function's place in the kernel; address and length in bytes."""

    name: bytes
    addr: int
    length: int


@dataclass(frozen=True, slots=True)
class BpfSymbols:
    """The identity of a loaded program.

    Attributes:
        id: the kernel's number of the program.
        tag: of its code.
        loaded_ns: CLOCK_BOOTTIME.
        functions: empty without a JIT, or if addresses are hidden.
    """

    id: int
    tag: bytes
    loaded_ns: int
    functions: tuple[BpfFunction, ...]

    def records(self) -> Iterator[Ksymbol | BpfEvent]:
        """Yield the records that the kernel writes when the program is loaded."""
        for function in self.functions:
            yield Ksymbol(function.addr, function.length, KsymbolType.BPF, 0, function.name)
        yield BpfEvent(BpfEventType.LOAD, 0, self.id, self.tag)


def symbols_of(image: BpfImage, types: Btf | None) -> BpfSymbols:
    """Name the functions of a program, as synthesize_bpf_prog_name() of perf does.

    The name is `bpf_prog_TAG_NAME`, with the function's own tag and its name in the types; without
    types NAME is the program's name, if it has a single function.
    """
    addresses = _numbers(image, BpfArray.JITED_KSYMS, "Q")
    lengths = _numbers(image, BpfArray.JITED_FUNC_LENS, "I")
    tags = image.arrays.get(BpfArray.PROG_TAGS, b"")
    own = image.info[_TAG_AT : _TAG_AT + _TAG_BYTES]
    names = _names(image, types, len(addresses))
    functions = []
    for index, (addr, length) in enumerate(zip(addresses, lengths, strict=False)):
        tag = tags[index * _TAG_BYTES : (index + 1) * _TAG_BYTES] or own
        parts = (b"bpf_prog", tag.hex().encode(), names[index])
        if addr:
            name = b"_".join(filter(None, parts))[:_NAME_MAX_BYTES]
            functions.append(BpfFunction(name, addr, length))
    (loaded_ns,) = _LOAD_TIME.unpack_from(image.info)
    return BpfSymbols(image.id, own, loaded_ns, tuple(functions))


def _names(image: BpfImage, types: Btf | None, count: int) -> list[bytes]:
    if types is not None:
        numbers = _type_numbers(image)
        known = type_names(types.data, set(numbers))
        found = [known.get(number, b"") for number in numbers]
        if found:
            return (found + [b""] * count)[:count]
    if count == 1:
        return [_NAME.unpack_from(image.info)[0].partition(b"\0")[0]]
    return [_UNNAMED] * count


def _type_numbers(image: BpfImage) -> list[int]:
    """Return the type of each function; struct bpf_func_info has an instruction and a type."""
    place = ARRAY_PLACES[BpfArray.FUNC_INFO]
    (size,) = struct.unpack_from("<I", image.info, place.size_at)
    data = image.arrays.get(BpfArray.FUNC_INFO, b"")
    whole = len(data) // size if size >= struct.calcsize("<II") else 0
    return [struct.unpack_from("<II", data, index * size)[1] for index in range(whole)]


def _numbers(image: BpfImage, array: BpfArray, kind: str) -> tuple[int, ...]:
    data = image.arrays.get(array, b"")
    return struct.unpack(f"<{len(data) // struct.calcsize(kind)}{kind}", data)


class _Types:
    """The types of BTF and their names. Data without its mark or too short for it have none."""

    def __init__(self, data: bytes) -> None:
        self._types, self._names = memoryview(b""), b""
        if len(data) >= _HEADER.size and data.startswith(_MAGIC):
            _, _, _, head, types_at, types_bytes, names_at, names_bytes = _HEADER.unpack_from(data)
            self._types = memoryview(data)[head + types_at :][:types_bytes]
            self._names = data[head + names_at :][:names_bytes]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield place of the name and kind, as far as data are whole and kinds are known."""
        at = 0
        while at + _TYPE.size <= len(self._types):
            name_at, info, _ = _TYPE.unpack_from(self._types, at)
            kind = info >> _KIND_AT & _KIND_MASK
            behind = _BEHIND.get(kind)
            if behind is None:
                return
            yield name_at, kind
            at += _TYPE.size + behind[0] + behind[1] * (info & _COUNT_MASK)

    def members(self, name: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield names and offsets in bits of the members of a struct, and of those in it."""
        wanted = self.place(name)
        places: list[int] = []  # of types, by number - 1
        at = 0
        while at + _TYPE.size <= len(self._types):
            _, info, _ = _TYPE.unpack_from(self._types, at)
            behind = _BEHIND.get(info >> _KIND_AT & _KIND_MASK)
            if behind is None:
                return
            places.append(at)
            at += _TYPE.size + behind[0] + behind[1] * (info & _COUNT_MASK)
        for at in places:
            name_at, info, _ = _TYPE.unpack_from(self._types, at)
            if name_at == wanted and info >> _KIND_AT & _KIND_MASK == _STRUCT:
                yield from self._members(at, places, 0, _DEEPEST)
                return

    def _members(
        self, at: int, places: Sequence[int], begin: int, deeper: int
    ) -> Iterator[tuple[bytes, int]]:
        """Yield members of a struct or union at a place, that begins at a bit of another one."""
        _, info, _ = _TYPE.unpack_from(self._types, at)
        if info >> _KIND_AT & _KIND_MASK not in _COMPOUND or not deeper:
            return
        mask = 0xFFFFFF if info & _BITFIELD else 0xFFFFFFFF
        size = (info & _COUNT_MASK) * _MEMBER.size
        behind = self._types[at + _TYPE.size :][:size]
        if len(behind) < size:
            return
        for name_at, number, offset in _MEMBER.iter_unpack(behind):
            first = begin + (offset & mask)
            if name_at:
                yield self.name(name_at), first
            elif 0 < number <= len(places):
                yield from self._members(places[number - 1], places, first, deeper - 1)

    def name(self, at: int) -> bytes:
        """Return the name at a place."""
        return self._names[at:].partition(b"\0")[0]

    def place(self, name: bytes) -> int:
        """Return the place of a name, -1 if it is absent."""
        found = self._names.find(b"\0" + name + b"\0")
        return found + 1 if found >= 0 else -1


def type_names(data: bytes, wanted: AbstractSet[int]) -> dict[int, bytes]:
    """Return names of types by number."""
    types = _Types(data)
    numbered = islice(enumerate(types, start=1), max(wanted, default=0))
    return {number: types.name(at) for number, (at, _) in numbered if number in wanted}


def function_id(data: bytes, name: bytes) -> int:
    """Return the number of a function, 0 if it is absent."""
    types = _Types(data)
    wanted = (types.place(name), _FUNCTION)
    return next((number for number, found in enumerate(types, start=1) if found == wanted), 0)


def member_offset(data: bytes, struct_name: bytes, member: bytes) -> int:
    """Return the offset in bytes of a struct's member, -1 if it is absent.

    Members of structs and unions without a name are those of the struct that they are in.
    """
    members = dict(_Types(data).members(struct_name))
    return members[member] // 8 if member in members else -1
