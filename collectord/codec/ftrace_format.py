# SPDX-License-Identifier: Apache-2.0
r"""Layouts of ftrace's records, as tracefs describes them in text.

    name: sched_switch
    ID: 372
    format:
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
    ...the other fields that all events share, an empty line, then the event's own
    print fmt: "prev_comm=%s ...", REC->prev_comm, ...

As kernel/trace/trace_events.c (`f_show`) and ring_buffer.c (`ring_buffer_print_page_header`)
write them. Records are read as little-endian.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from collectord.errors import CodecError

_NAME: Final = re.compile(rb"name: (.+)\n")
_ID: Final = re.compile(rb"ID: (\d+)\n")
_FORMAT: Final = re.compile(rb"format:\n")
_EMPTY: Final = re.compile(rb"\n")
_PRINT: Final = re.compile(rb"\nprint fmt: (.*?)\n?\Z", re.DOTALL)
# The kernel may append more properties of a field.
_FIELD: Final = re.compile(
    rb"\tfield: ?([^;\n]+);\toffset:(\d+);\tsize:(\d+);(?:\tsigned:([01]);)?[^\n]*\n"
)
# `T (*name)(ARGUMENTS)`, else `T name` with its dimension, if any, behind the name.
_FUNCTION: Final = re.compile(r"(?P<type>.*\(\*)(?P<name>\w+)(?P<rest>\).*)")
_PLAIN: Final = re.compile(r"(?P<type>.*\W)(?P<name>\w+)(?P<rest>)(?:\[(?P<dimension>[^]]*)\])?")
_CHARACTER: Final = "char"
# Element sizes for arrays whose text does not tell; elements of any other type are bytes.
_ELEMENT_BYTES: Final = {
    "short": 2, "unsigned short": 2, "u16": 2, "s16": 2, "__u16": 2, "uint16_t": 2,
    "int": 4, "unsigned int": 4, "unsigned": 4, "u32": 4, "s32": 4, "__u32": 4, "__s32": 4,
    "uint32_t": 4, "int32_t": 4, "pid_t": 4,
    "long": 8, "unsigned long": 8, "long long": 8, "unsigned long long": 8, "u64": 8, "s64": 8,
    "__u64": 8, "__s64": 8, "uint64_t": 8, "int64_t": 8, "size_t": 8,
}  # fmt: skip
_SIGNED_ELEMENTS: Final = frozenset(
    {"short", "int", "long", "long long", "s16", "s32", "__s32", "s64", "__s64", "pid_t"}
    | {"int32_t", "int64_t"}
)
_NUMBER_BYTES: Final = (1, 2, 4, 8)
_PLACE_DIGITS_MAX: Final = 9
_LOCATION_BYTES: Final = 4


class Placement(StrEnum):
    """The place of a field's value."""

    INLINE = "inline"
    DATA_LOC = "__data_loc"  # u32: size << 16 | offset from the record's start
    REL_LOC = "__rel_loc"  # as __data_loc, but the offset counts from behind this u32


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record.

    Attributes:
        name: of the field.
        type: of the value or its elements, as declared, without dimension and placement.
        offset: of the field, in bytes from the record's start.
        size_bytes: size of the field itself; 0: it reaches to the end of the record.
        signed: whether its numbers are signed.
        placement: inline, or where the field points to.
        element_bytes: size of an array's element: 1 for strings and bytes; 0: not an array.
        length: elements of an inline array; None: as many as there is room for, or not an array.
    """

    name: str
    type: str
    offset: int
    size_bytes: int
    signed: bool
    placement: Placement
    element_bytes: int
    length: int | None

    @property
    def is_string(self) -> bool:
        """Whether the value is text, which ends at the first NUL."""
        return self.element_bytes == 1 and self.type.removeprefix("const ") == _CHARACTER


@dataclass(frozen=True, slots=True)
class EventFormat:
    """Layout of one event's records.

    Attributes:
        name: of the event; its system is not in the text.
        id: `common_type` of its records; unique, and valid until the next boot.
        common: common fields of all events.
        fields: the event's own.
        print_format: how the kernel prints them.
    """

    name: str
    id: int
    common: tuple[Field, ...]
    fields: tuple[Field, ...]
    print_format: bytes = b""


class HeaderPage(NamedTuple):
    """Layout of a sub-buffer: offsets and sizes in bytes."""

    timestamp: Field
    commit: Field
    data: Field

    @property
    def sub_buffer_bytes(self) -> int:
        """The size of a sub-buffer of the text's instance, including the header."""
        return self.data.offset + self.data.size_bytes


class _Lines:
    """A position in a text whose next line must have a given form."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.at = 0

    def next_if(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        found = pattern.match(self._text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def next(self, pattern: re.Pattern[bytes], what: str) -> re.Match[bytes]:
        found = self.next_if(pattern)
        if found is None:
            raise CodecError(f"no {what}", offset=self.at, reason="format")
        return found

    def fields(self) -> tuple[Field, ...]:
        found: list[Field] = []
        while (match := self.next_if(_FIELD)) is not None:
            found.append(_field(match))
        return tuple(found)

    def end(self) -> None:
        if self.at != len(self._text):
            raise CodecError("line of unknown kind", offset=self.at, reason="format")


def parse_format(text: bytes) -> EventFormat:
    """Read `events/SYSTEM/EVENT/format`.

    Raises:
        CodecError: a line is missing or has the wrong form, two fields have the same name, or a
            field has an impossible size.
    """
    lines = _Lines(text)
    name = _text(lines.next(_NAME, "name")[1])
    number = int(lines.next(_ID, "ID")[1])
    lines.next(_FORMAT, "format")
    common = lines.fields()
    lines.next(_EMPTY, "empty line behind the common fields")
    fields = lines.fields()
    printed = lines.next(_PRINT, "print fmt")[1]
    names = [field.name for field in (*common, *fields)]
    for one in names:
        if names.count(one) > 1:
            raise CodecError(f"two fields {one} in {name}", offset=0, reason="duplicate")
    return EventFormat(name, number, common, fields, printed)


def parse_header_page(text: bytes) -> HeaderPage:
    """Read `events/header_page` of an instance.

    Raises:
        CodecError: a field is missing or a line has an unknown form.
    """
    lines = _Lines(text)
    fields = {field.name: field for field in lines.fields()}
    lines.end()
    for name in HeaderPage._fields:
        if name not in fields:
            raise CodecError(f"no field {name}", offset=0, reason="format")
    return HeaderPage(*(fields[name] for name in HeaderPage._fields))


def _text(raw: bytes) -> str:
    """Decode untrusted bytes to printable text."""
    return raw.decode(errors="backslashreplace")


def _field(match: re.Match[bytes]) -> Field:
    at, declared = match.start(), _text(match[1]).strip()
    placement = Placement.INLINE
    for other in (Placement.DATA_LOC, Placement.REL_LOC):
        if declared.startswith(other + " "):
            placement, declared = other, declared.removeprefix(other).strip()
    # `T[] name` if the value is elsewhere, `T name[N]` if it is inline
    found = _FUNCTION.fullmatch(declared) or _PLAIN.fullmatch(declared)
    if found is None:
        raise CodecError(f"declaration {declared!r}", offset=at, reason="declaration")
    dimension = found["dimension"] if found.re is _PLAIN else None
    of_type = (found["type"].removesuffix("(*") + found["rest"].removeprefix(")")).strip()
    if max(len(match[2]), len(match[3])) > _PLACE_DIGITS_MAX:
        raise CodecError("a field beyond any record", offset=at, reason="size")
    offset, size = int(match[2]), int(match[3])
    if placement is not Placement.INLINE:
        if size != _LOCATION_BYTES:
            raise CodecError(f"{placement} of {size} bytes", offset=at, reason="size")
        of_type = of_type.removesuffix("[]").strip()
        element, length = _ELEMENT_BYTES.get(of_type, 1), None
        signed = of_type in _SIGNED_ELEMENTS
    else:
        element, length = _elements(of_type, dimension, size)
        signed = match[4] == b"1"
    return Field(found["name"], of_type, offset, size, signed, placement, element, length)


def _elements(of_type: str, dimension: str | None, size: int) -> tuple[int, int | None]:
    """Return the size in bytes of an inline field's elements, and their number if it is fixed."""
    if dimension is None:
        return (0, None) if size in _NUMBER_BYTES else (1, size or None)
    element = _ELEMENT_BYTES.get(of_type, 1)
    # older kernels give the dimension as the name of a constant
    if dimension.isdecimal() and int(dimension) and not size % int(dimension):
        told = size // int(dimension)
        element = told if told in _NUMBER_BYTES else 1
    elif size % element:
        element = 1
    return element, size // element or None
