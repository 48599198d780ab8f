# SPDX-License-Identifier: Apache-2.0
"""Records of ftrace by the formats that a file's own head has: names, values, text, filters.

A filter is a part of the kernel's own language (Documentation/trace/events.rst, "Event
filtering"): `FIELD OP VALUE`, and more of them behind `&&`.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.ftrace_format import (
    EventFormat,
    Field,
    Placement,
    decode_field,
    parse_format,
)
from collectord.errors import CodecError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from collectord.codec.ftrace_format import Value
    from collectord.codec.trace_dat_head import Metadata

    Predicate = Callable[[bytes], bool]

_FTRACE: Final = "ftrace"
_UNKNOWN: Final = "unknown"
_INLINE: Final = Placement.INLINE
# As every kernel since 2.6.39 has it; for records whose event has no format in the file.
_COMMON_PID: Final = Field("common_pid", "int", 4, 4, True, _INLINE, 0, None)  # noqa: FBT003
_DATA: Final = Field("data", "u8", 8, 0, False, _INLINE, 1, None)  # noqa: FBT003
_NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "&": lambda value, mask: bool(value & mask),
}
_TEXTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "~": fnmatchcase,
}
OPERATORS: Final = tuple(dict.fromkeys((*_NUMBERS, *_TEXTS)))
_TERM: Final = re.compile(
    r"\s*(?P<field>\w+)\s*(?P<operator>[=!<>&|~^]+)\s*"
    r"(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>[^\s=!<>&|~^\"'][^\s&|\"']*))\s*"
)
_AND: Final = "&&"


@dataclass(frozen=True, slots=True)
class KnownEvent:
    """An event of a file.

    Attributes:
        name: SYSTEM:NAME, text that UTF-8 can encode.
        layout: of its records.
        pid: the field that tells the task.
    """

    name: str
    layout: EventFormat
    pid: Field

    @property
    def fields(self) -> tuple[Field, ...]:
        """Those that all events share, then its own."""
        return (*self.layout.common, *self.layout.fields)


def known_events(metadata: Metadata) -> dict[int, KnownEvent]:
    """Give the events whose formats are in the head, by `common_type`.

    Raises:
        CodecError: one of the formats is none.
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
    """Stand in for an event without a format: its records are bytes."""
    layout = EventFormat(str(number), number, (_COMMON_PID,), (_DATA,), "")
    return KnownEvent(f"{_UNKNOWN}:{number}", layout, _COMMON_PID)


def is_named(event: KnownEvent, globs: Iterable[str]) -> bool:
    """Tell whether one of the globs fits SYSTEM:NAME or NAME."""
    names = (event.name, event.layout.name)
    return any(fnmatchcase(name, glob) for glob in globs for name in names)


def id_of(record: bytes) -> int:
    """Give the `common_type` of a record; 0, which no event has, of an empty one."""
    return int.from_bytes(record[:2], "little")


def value_of(record: bytes, field: Field) -> Value | None:
    """Give the value of one field, None if it, or what it points to, is past the record's end."""
    try:
        return decode_field(record, field)
    except CodecError:
        return None


def pid_of(record: bytes, event: KnownEvent) -> int | None:
    """Give the thread that made a record, None if the record is cut before it."""
    pid = value_of(record, event.pid)
    return pid if isinstance(pid, int) else None


def value_text(value: Value | None, field: Field) -> str:
    """A value for people: addresses are hexadecimal, bytes are hex digits, `?` what is cut."""
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


class Term(NamedTuple):
    """A comparison of a filter, as it was written; `value` is without its quotes."""

    field: str
    operator: str
    value: str


def parse_filter(text: str) -> tuple[Term, ...]:
    r"""Read a filter such as `prev_prio < 100 && prev_comm ~ "kworker*"`.

    Raises:
        UsageError: it does not parse, or has an operator that there is not.
    """
    terms: list[Term] = []
    at = 0
    while True:
        found = _TERM.match(text, at)
        if found is None:
            raise UsageError(
                f"filter does not parse at {text[at:]!r}",
                text=text,
                hint=f"terms are FIELD OP VALUE, joined by {_AND}",
            )
        if found["operator"] not in OPERATORS:
            raise UsageError(
                f"no operator {found['operator']!r}",
                text=text,
                hint=f"one of {' '.join(OPERATORS)}",
            )
        (value,) = (
            found[kind] for kind in ("double", "single", "bare") if found[kind] is not None
        )
        terms.append(Term(found["field"], found["operator"], value))
        at = found.end()
        if at == len(text):
            return tuple(terms)
        if not text.startswith(_AND, at):
            raise UsageError(
                f"filter goes on with {text[at:]!r}", text=text, hint=f"join terms by {_AND}"
            )
        at += len(_AND)


def lacking(terms: Iterable[Term], event: KnownEvent) -> set[str]:
    """Give the fields of a filter that an event does not have."""
    return {term.field for term in terms} - {field.name for field in event.fields}


def bind(terms: Iterable[Term], event: KnownEvent) -> Predicate:
    """Make a filter one for the records of an event, which has all its fields.

    The predicate is false for a record that is cut before the end of such a field.

    Raises:
        UsageError: a field cannot be compared like that, or with that.
    """
    by_name = {field.name: field for field in event.fields}
    predicates = [_bind(term, by_name[term.field]) for term in terms]
    return lambda record: all(predicate(record) for predicate in predicates)


def _bind(term: Term, field: Field) -> Predicate:
    if field.is_string:
        compare, text = _TEXTS[_fit(term, "text", _TEXTS)], term.value

        def fits_text(record: bytes) -> bool:
            value = value_of(record, field)
            return isinstance(value, str) and compare(value, text)

        return fits_text
    if field.element_bytes or field.placement is not Placement.INLINE:
        raise UsageError(
            f"field {field.name} is an array, which cannot be compared",
            text=term.field,
            hint="filters compare numbers and text",
        )
    compare_numbers = _NUMBERS[_fit(term, "a number", _NUMBERS)]
    try:
        number = int(term.value, 0)
    except ValueError:
        message = f"field {field.name} is a number, {term.value!r} is none"
        raise UsageError(message, text=term.value, hint="such as 42, -1 or 0x2a") from None

    def fits_number(record: bytes) -> bool:
        value = value_of(record, field)
        return isinstance(value, int) and compare_numbers(value, number)

    return fits_number


def _fit(term: Term, kind: str, known: Iterable[str]) -> str:
    if term.operator not in known:
        raise UsageError(
            f"field {term.field} is {kind}: {term.operator} does not compare it",
            text=term.operator,
            hint=f"one of {' '.join(known)}",
        )
    return term.operator
