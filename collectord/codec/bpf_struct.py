# SPDX-License-Identifier: Apache-2.0
"""Structs of BPF programs, as BCC describes their C types, and records decoded by them.

BCC's description is JSON: for a scalar the type's name, for a struct or union

- ["NAME", [MEMBER...], "struct_packed" | "struct" | "union"]

with members ["NAME", TYPE], ["NAME", TYPE, [COUNT]] for arrays, ["NAME", TYPE, BITS] for bit
fields, and for anonymous members the nested description alone. A "struct_packed" has its padding
as separate members, `__pad_N` and `__pad_end`; a "struct" has bit fields or a flexible array.
Enums are described as integers and pointers as `unsigned long long`. Arrays of arrays, arrays by
typedef and vectors are described only in part, so the members must add up to the compiler's size.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeGuard

import msgspec

from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable

Scalar = int | float | bool
Value = Scalar | str | bytes | list[int] | list[float] | list[bool]
Kind = Literal["uint", "int", "char", "bool", "float", "bytes"]

_PACKED: Final = "struct_packed"
_UNION: Final = "union"
_PADDING: Final = re.compile(r"__pad_(\d+|end)")
# Size in bytes and kind of the types' own names, as clang prints them for BPF (LP64).
_SCALARS: Final[dict[str, tuple[int, Kind]]] = {
    "char": (1, "int"), "signed char": (1, "int"), "unsigned char": (1, "uint"),
    "short": (2, "int"), "unsigned short": (2, "uint"),
    "int": (4, "int"), "unsigned int": (4, "uint"),
    "long": (8, "int"), "unsigned long": (8, "uint"),
    "long long": (8, "int"), "unsigned long long": (8, "uint"),
    "__int128": (16, "int"), "unsigned __int128": (16, "uint"),
    "_Bool": (1, "bool"), "float": (4, "float"), "double": (8, "float"),
}  # fmt: skip
_ARRAY_KINDS: Final[dict[str, Kind]] = {"char": "char", "unsigned char": "bytes"}
_CODES: Final[dict[tuple[int, Kind], str]] = {
    (1, "int"): "b", (2, "int"): "h", (4, "int"): "i", (8, "int"): "q",
    (1, "uint"): "B", (2, "uint"): "H", (4, "uint"): "I", (8, "uint"): "Q",
    (1, "bool"): "?", (4, "float"): "f", (8, "float"): "d",
}  # fmt: skip
_WIDE_BYTES: Final = 16
_WIDE: Final = frozenset({(_WIDE_BYTES, "int"), (_WIDE_BYTES, "uint")})
_BYTE_KINDS: Final = frozenset({"char", "bytes"})
# A record is at most 64 KiB, and a table with more columns is unreadable.
_SIZE_MAX_BYTES: Final = 1 << 16
_FIELDS_MAX: Final = 1024
_DEPTH_MAX: Final = 32
_LAYOUTS_KEPT: Final = 64


class Field(msgspec.Struct, frozen=True):
    """A member that is a number, a text, or an array of them.

    Attributes:
        name: "a.b" for nested structs, "a[1].b" for arrays of them; "" for a type that is a
            scalar.
        ctype: C type of the member or its elements, as clang names it.
        offset: in bytes from the record's start.
        size: in bytes, of all elements.
        count: number of elements of an array, 0 for a scalar.
        kind: of the elements. An array of `char` is text, one of `unsigned char` is bytes.
    """

    name: str
    ctype: str
    offset: int
    size: int
    count: int
    kind: Kind


class Layout(msgspec.Struct, frozen=True):
    """A C type: `size` in bytes, padding included. The members of a union overlap."""

    name: str
    size: int
    fields: tuple[Field, ...]


class _Place(NamedTuple):
    """The size and alignment of a part of a description, in bytes."""

    size: int
    align: int


class _Reader:
    """Walks a description and collects the fields."""

    def __init__(self) -> None:
        self.fields: list[Field] = []

    def read(self, type_: object, name: str, at: int, depth: int = 0) -> _Place:
        """Read a type at offset `at`."""
        if isinstance(type_, str):
            return self._scalar(type_, name, at)
        if depth > _DEPTH_MAX or not _is_composite(type_):
            raise _refusal(name, type_, "is not a description of BCC", at)
        _, members, kind = type_
        if kind == _UNION:
            return self._union(members, name, at, depth)
        place = self._struct(members, name, at, depth)
        if kind == _PACKED or not members:
            return place
        own, ctype, *_ = members[-1]
        raise _refusal(_join(name, own), ctype, "is an array without a size", at)

    def _struct(self, members: list[object], name: str, at: int, depth: int) -> _Place:
        start, align, packed = at, 1, False
        for member in members:
            if _is_padding(member):
                at += member[2][0]
                continue
            place = self._member(member, name, at, depth)
            align = max(align, place.align)
            packed |= (at - start) % place.align > 0
            at += place.size
        packed |= (at - start) % align > 0
        return _Place(at - start, 1 if packed else align)

    def _union(self, members: list[object], name: str, at: int, depth: int) -> _Place:
        places = [self._member(member, name, at, depth) for member in members]
        align = max((place.align for place in places), default=1)
        size = max((place.size for place in places), default=0)
        return _Place(size + -size % align, align)

    def _member(self, member: object, name: str, at: int, depth: int) -> _Place:
        if _is_composite(member) and isinstance(member[0], str):  # anonymous
            return self.read(member, name, at, depth + 1)
        match member:
            case [str(own), type_]:
                return self.read(type_, _join(name, own), at, depth + 1)
            case [str(own), type_, [count]] if _is_count(count):
                return self._array(type_, _join(name, own), count, at, depth)
            case [str(own), type_, bits] if _is_count(bits):
                raise _refusal(_join(name, own), type_, f"is a bit field of {bits}", at)
        raise _refusal(name, member, "is not a member as BCC describes them", at)

    def _array(self, type_: object, name: str, count: int, at: int, depth: int) -> _Place:
        if isinstance(type_, str):
            return self._scalar(type_, name, at, count)
        if count > _FIELDS_MAX:
            raise _refusal(name, type_, f"has {count} elements, which are too many", at)
        place = _Place(0, 1)
        for index in range(count):
            place = self.read(type_, f"{name}[{index}]", at + index * place.size, depth + 1)
        return _Place(place.size * count, place.align)

    def _scalar(self, ctype: str, name: str, at: int, count: int | None = None) -> _Place:
        if ctype not in _SCALARS:
            raise _refusal(name, ctype, "is of a type that is not read", at)
        each, kind = _SCALARS[ctype]
        if count == 0:  # takes no room; the program accesses its elements itself
            return _Place(0, each)
        size = each * (count or 1)
        if at + size > _SIZE_MAX_BYTES or len(self.fields) == _FIELDS_MAX:
            raise _refusal(name, ctype, "makes the record too large", at)
        if count:
            kind = _ARRAY_KINDS.get(ctype, kind)
        self.fields.append(Field(name, ctype, at, size, count or 0, kind))
        return _Place(size, each)


def from_bcc(description: object, size: int, name: str) -> Layout:
    """Read BCC's description of a type.

    Args:
        description: the JSON that BCC returns for a table's key or leaf, decoded.
        size: the compiler's size of the type in bytes.
        name: for the layout.

    Raises:
        CodecError: a member is of an unsupported kind (bit fields, `long double`), or BCC does not
            fully describe it; the message names the member and its type.
    """
    reader = _Reader()
    place = reader.read(description, "", 0)
    if place.size != size:
        told, suspect = f"its members take {place.size} bytes of {size}", _suspect(reader.fields)
        if suspect is None:
            raise CodecError(f"{name}: {told}", offset=0, reason="description")
        why = (
            f"is not fully described by BCC, {told}: arrays of arrays, arrays by typedef, vectors "
            "and aligned unions cannot be read"
        )
        raise _refusal(suspect.name, suspect.ctype, why, suspect.offset)
    seen: set[str] = set()
    for field in reader.fields:
        if field.name in seen:
            raise _refusal(field.name, field.ctype, "is there twice", field.offset)
        seen.add(field.name)
    return Layout(name, size, tuple(reader.fields))


@lru_cache(_LAYOUTS_KEPT)
def decoder(layout: Layout) -> Callable[[bytes | memoryview], dict[str, Value]]:
    r"""Return a function for the records of a layout: it returns their fields, by name.

    They are in the layout's order. Text ends at its first NUL; bytes that are not UTF-8 are shown
    as `\xNN`. The bytes of a payload behind the layout's size are padding; the function raises
    CodecError for a shorter one.

    Raises:
        CodecError: the layout contradicts itself or is too large: its manifest is damaged.
    """
    _check(layout)
    passes = [_Pass(layout.size, fields) for fields in _without_overlap(layout)]
    if len(passes) == 1:
        return passes[0].values
    names = [field.name for field in layout.fields]

    def values(payload: bytes | memoryview) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for one in passes:
            found |= one.values(payload)
        return {name: found[name] for name in names}

    return values


def _without_overlap(layout: Layout) -> list[list[Field]]:
    """Distribute the fields so that those of one share do not overlap."""
    shares: list[list[Field]] = []
    for field in sorted(layout.fields, key=lambda one: one.offset):
        for share in shares:
            if share[-1].offset + share[-1].size <= field.offset:
                share.append(field)
                break
        else:
            shares.append([field])
    return shares or [[]]


class _Pass:
    """Fields that are unpacked together."""

    def __init__(self, size: int, fields: list[Field]) -> None:
        self._size = size
        self._names = [field.name for field in fields]
        self._mends: list[tuple[int, Callable[[bytes], Value]]] = []
        form, at = "<", 0
        for index, field in enumerate(fields):
            code, mend = _code(field)
            form += f"{field.offset - at}x{code}"
            at = field.offset + field.size
            if mend is not None:
                self._mends.append((index, mend))
        self._unpack = struct.Struct(form).unpack_from

    def values(self, payload: bytes | memoryview) -> dict[str, Value]:
        """Return the values by name. Raises CodecError."""
        if len(payload) < self._size:
            message = f"{len(payload)} bytes of a record of {self._size}"
            raise CodecError(message, offset=len(payload), reason="short")
        found = [*self._unpack(payload)]
        for index, mend in self._mends:
            found[index] = mend(found[index])
        return dict(zip(self._names, found, strict=True))


def _check(layout: Layout) -> None:
    """Refuse a layout that `from_bcc` would never make."""
    if not 0 <= layout.size <= _SIZE_MAX_BYTES or len(layout.fields) > _FIELDS_MAX:
        raise CodecError(
            f"{len(layout.fields)} members in {layout.size} bytes cannot be a record",
            offset=0,
            reason="layout",
        )
    seen: set[str] = set()
    for field in layout.fields:
        if not _is_sound(field, layout.size):
            raise _refusal(field.name, field.ctype, "does not fit its record", field.offset)
        if field.name in seen:
            raise _refusal(field.name, field.ctype, "is there twice", field.offset)
        seen.add(field.name)


def _is_sound(field: Field, size: int) -> bool:
    if min(field.offset, field.count) < 0 or field.size <= 0 or field.offset + field.size > size:
        return False
    each, rest = divmod(field.size, field.count or 1)
    if field.kind in _BYTE_KINDS:
        known = each == 1
    else:
        known = (each, field.kind) in _CODES or (each, field.kind) in _WIDE
    return known and not rest


def _code(field: Field) -> tuple[str, Callable[[bytes], Value] | None]:
    """Return a field's code for `struct`, and the function that converts the unpacked value."""
    each = field.size // (field.count or 1)
    taken = f"{field.size}s"
    if field.kind == "char":
        return taken, _text
    if field.kind == "bytes":
        return taken, None
    if each == _WIDE_BYTES:
        return taken, _wide_numbers(signed=field.kind == "int", is_array=field.count > 0)
    code = _CODES[each, field.kind]
    if not field.count:
        return code, None
    elements = struct.Struct(f"<{field.count}{code}").unpack
    return taken, lambda raw: [*elements(raw)]


def _wide_numbers(*, signed: bool, is_array: bool) -> Callable[[bytes], Value]:
    def numbers(raw: bytes) -> list[int]:
        return [
            int.from_bytes(raw[at : at + _WIDE_BYTES], "little", signed=signed)
            for at in range(0, len(raw), _WIDE_BYTES)
        ]

    return numbers if is_array else lambda raw: numbers(raw)[0]


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode(errors="backslashreplace")


def _suspect(fields: list[Field]) -> Field | None:
    """Return the member that most likely is larger than described."""
    for before, field in pairwise(fields):
        if field.offset > before.offset and field.offset % (field.size // (field.count or 1)):
            return before
    arrays = [field for field in fields if field.count]
    return next(iter(arrays or reversed(fields)), None)


def _is_composite(type_: object) -> TypeGuard[list[Any]]:
    match type_:
        case [_, [*_], "struct_packed" | "struct" | "union"]:
            return True
    return False


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_padding(member: object) -> TypeGuard[list[Any]]:
    match member:
        case [str(name), "char", [count]]:
            return _PADDING.fullmatch(name) is not None and _is_count(count)
    return False


def _join(outer: str, name: str) -> str:
    return f"{outer}.{name}" if outer and name else outer or name


def _refusal(name: str, type_: object, why: str, offset: int) -> CodecError:
    shown = type_ if isinstance(type_, str) else "struct"
    return CodecError(f"member {name or '?'} ({shown}) {why}", offset=offset, reason="member")
