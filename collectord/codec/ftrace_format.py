# SPDX-License-Identifier: Apache-2.0
r"""Layouts of ftrace's records, as tracefs describes them in text, and records decoded by them.

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
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.record_filter import array_refusal, number_test, text_test
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectord.codec.record_filter import Term
    from collectord.codec.trace_dat_head import Metadata

    Predicate = Callable[[bytes], bool]

Value = int | str | bytes | tuple[int, ...]

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
_LOCATION_BYTES: Final = 4
_FTRACE: Final = "ftrace"
_UNKNOWN: Final = "unknown"


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
    """

    name: str
    id: int
    common: tuple[Field, ...]
    fields: tuple[Field, ...]


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
    lines.next(_PRINT, "print fmt")
    names = [field.name for field in (*common, *fields)]
    for one in names:
        if names.count(one) > 1:
            raise CodecError(f"two fields {one} in {name}", offset=0, reason="duplicate")
    return EventFormat(name, number, common, fields)


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


def decode_field(record: bytes, field: Field) -> Value:
    r"""Return the value of one field.

    Text ends at its first NUL; bytes that are not UTF-8 are shown as `\xNN`. Arrays of one-byte
    numbers, and of types of unknown size, are bytes.

    Args:
        record: payload of an event in a sub-buffer or a perf sample.
        field: of the event that `id_of(record)` names.

    Raises:
        CodecError: the field, or the value that it points to, reaches past the record's end.
    """
    if field.placement is not Placement.INLINE:
        where = int.from_bytes(_part(record, field.offset, _LOCATION_BYTES), "little")
        start, size = where & 0xFFFF, where >> 16
        if field.placement is Placement.REL_LOC:
            start += field.offset + _LOCATION_BYTES
        return _array(_part(record, start, size), field)
    if not field.element_bytes:
        part = _part(record, field.offset, field.size_bytes)
        return int.from_bytes(part, "little", signed=field.signed)
    size = field.size_bytes
    if not size or field.element_bytes > 1:
        # kernel_stack declares 8 entries, but its records hold only as many as there were.
        rest = max(0, len(record) - field.offset)
        size = min(size or rest, rest)
    return _array(_part(record, field.offset, size), field)


def _part(record: bytes, start: int, size: int) -> bytes:
    if start + size > len(record):
        message = f"{size} bytes reach past the end of a record of {len(record)}"
        raise CodecError(message, offset=start, reason="short")
    return record[start : start + size]


def _array(part: bytes, field: Field) -> Value:
    if field.is_string:
        return _text(part.partition(b"\0")[0])
    step = field.element_bytes
    if step == 1:
        return part
    whole = len(part) - len(part) % step
    return tuple(
        int.from_bytes(part[at : at + step], "little", signed=field.signed)
        for at in range(0, whole, step)
    )


_INLINE: Final = Placement.INLINE
# As every kernel since 2.6.39 has it; for records whose event has no format in the file.
_COMMON_PID: Final = Field("common_pid", "int", 4, 4, True, _INLINE, 0, None)  # noqa: FBT003
_DATA: Final = Field("data", "u8", 8, 0, False, _INLINE, 1, None)  # noqa: FBT003


@dataclass(frozen=True, slots=True)
class KnownEvent:
    """An event of a file.

    Attributes:
        name: SYSTEM:NAME, text that UTF-8 can encode.
        layout: of its records.
        pid: the field with the task's id.
    """

    name: str
    layout: EventFormat
    pid: Field

    @property
    def fields(self) -> tuple[Field, ...]:
        """The common fields of all events, then its own."""
        return (*self.layout.common, *self.layout.fields)


def known_events(metadata: Metadata) -> dict[int, KnownEvent]:
    """Return the events whose formats are in the head, by `common_type`.

    Raises:
        CodecError: one of the formats is invalid.
    """
    found = {}
    for raw, texts in (*metadata.events.items(), (_FTRACE, metadata.ftrace_events)):
        system = raw.encode(errors="surrogateescape").decode(errors="backslashreplace")
        for text in texts:
            layout = parse_format(text)
            pid = next((field for field in layout.common if field.name == "common_pid"), None)
            name = f"{system}:{layout.name}"
            found[layout.id] = KnownEvent(name, layout, pid or _COMMON_PID)
    return found


def unknown_event(number: int) -> KnownEvent:
    """Return a substitute for an event without a format: its records are bytes."""
    layout = EventFormat(str(number), number, (_COMMON_PID,), (_DATA,))
    return KnownEvent(f"{_UNKNOWN}:{number}", layout, _COMMON_PID)


def id_of(record: bytes) -> int:
    """Return the `common_type` of a record; for an empty one 0, which no event has."""
    return int.from_bytes(record[:2], "little")


def value_of(record: bytes, field: Field) -> Value | None:
    """Return the value of one field, None if it, or its target, is past the record's end."""
    try:
        return decode_field(record, field)
    except CodecError:
        return None


def pid_of(record: bytes, event: KnownEvent) -> int | None:
    """Return the thread that made a record, None if the record is cut before it."""
    pid = value_of(record, event.pid)
    return pid if isinstance(pid, int) else None


def value_text(value: Value | None, field: Field) -> str:
    """Format a value: addresses are hexadecimal, bytes are hex digits, `?` if it is cut off."""
    if value is None:
        return "?"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        return value.rstrip("\n")
    number = "{:#x}" if "*" in field.type or field.type == "unsigned long" else "{}"
    if isinstance(value, int):
        return number.format(value)
    return f"[{','.join(map(number.format, value))}]"


def bind(terms: Iterable[Term], event: KnownEvent) -> Predicate:
    """Bind a filter to an event, which must have all its fields.

    The predicate is false for a record that is cut before the end of such a field.

    Raises:
        UsageError: a field cannot be compared by this operator, or with this value.
    """
    by_name = {field.name: field for field in event.fields}
    predicates = [_bind(term, by_name[term.field]) for term in terms]
    return lambda record: all(predicate(record) for predicate in predicates)


def _bind(term: Term, field: Field) -> Predicate:
    if field.is_string:
        is_text = text_test(term)

        def fits_text(record: bytes) -> bool:
            value = value_of(record, field)
            return isinstance(value, str) and is_text(value)

        return fits_text
    if field.element_bytes or field.placement is not Placement.INLINE:
        raise array_refusal(term)
    is_number = number_test(term)

    def fits_number(record: bytes) -> bool:
        value = value_of(record, field)
        return isinstance(value, int) and is_number(value)

    return fits_number
