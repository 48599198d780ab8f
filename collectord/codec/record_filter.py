# SPDX-License-Identifier: Apache-2.0
"""Filters of decoded records: terms `FIELD OP VALUE`, joined by `&&`.

They are a part of the kernel's own language (Documentation/trace/events.rst, "Event filtering").
"""

from __future__ import annotations

import operator
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
    r"\s*(?P<field>[\w.\[\]]+)\s*(?P<operator>[=!<>&|~^]+)\s*"
    r"(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>[^\s=!<>&|~^\"'][^\s&|\"']*))\s*"
)
_AND: Final = "&&"


class Term(NamedTuple):
    """A comparison in a filter, as it was written; `value` is without its quotes."""

    field: str
    operator: str
    value: str


def parse_filter(text: str) -> tuple[Term, ...]:
    r"""Read a filter such as `prev_prio < 100 && prev_comm ~ "kworker*"`.

    Raises:
        UsageError: it does not parse, or has an unknown operator.
    """
    terms: list[Term] = []
    at = 0
    while True:
        found = _TERM.match(text, at)
        if found is None:
            raise UsageError(
                f"filter does not parse at {text[at:]!r}",
                hint=f"terms must be FIELD OP VALUE, joined by {_AND}",
            )
        if found["operator"] not in OPERATORS:
            raise UsageError(
                f"no operator {found['operator']!r}",
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
                f"the filter continues with {text[at:]!r}", hint=f"join terms by {_AND}"
            )
        at += len(_AND)


def number_test(term: Term) -> Callable[[int], bool]:
    """Return the test of a number field's value for a term.

    Raises:
        UsageError: its operator is not one for numbers, or its value is not a number.
    """
    compare = _NUMBERS[_fit(term, "a number", _NUMBERS)]
    try:
        number = int(term.value, 0)
    except ValueError:
        message = f"field {term.field} is a number, {term.value!r} is not"
        raise UsageError(message, hint="such as 42, -1 or 0x2a") from None
    return lambda value: compare(value, number)


def text_test(term: Term) -> Callable[[str], bool]:
    """Return the test of a text field's value for a term.

    Raises:
        UsageError: its operator is not one for text.
    """
    compare = _TEXTS[_fit(term, "text", _TEXTS)]
    return lambda value: compare(value, term.value)


def array_refusal(term: Term) -> UsageError:
    """Return the error for a field that terms cannot compare."""
    return UsageError(
        f"field {term.field} is an array, which cannot be compared",
        hint="filters compare numbers and text",
    )


def _fit(term: Term, kind: str, known: Iterable[str]) -> str:
    if term.operator not in known:
        raise UsageError(
            f"field {term.field} is {kind}: {term.operator} does not compare it",
            hint=f"one of {' '.join(known)}",
        )
    return term.operator
