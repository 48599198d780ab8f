# SPDX-License-Identifier: Apache-2.0
"""Records of ftrace, decoded by the formats in a file's head: names, values, text, filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.codec.ftrace_format import (
    EventFormat,
    Field,
    Placement,
    decode_field,
    parse_format,
)
from collectord.codec.record_filter import array_refusal, number_test, text_test
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectord.codec.ftrace_format import Value
    from collectord.codec.record_filter import Term
    from collectord.codec.trace_dat_head import Metadata

    Predicate = Callable[[bytes], bool]

_FTRACE: Final = "ftrace"
_UNKNOWN: Final = "unknown"
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
    layout = EventFormat(str(number), number, (_COMMON_PID,), (_DATA,), "")
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
