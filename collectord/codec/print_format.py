# SPDX-License-Identifier: Apache-2.0
r"""The kernel's print formats, which say how a record is shown, as operations.

    print fmt: "vec=%u [action=%s]", REC->vec, __print_symbolic(REC->vec, { 0, "HI" }, ...)

is a format of printf and its arguments.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from collectord.codec.c_tokens import Tokens, refusal
from collectord.codec.c_value import ADDRESS, UNKNOWN, Type, Value, cast
from collectord.codec.line_ops import (
    PRINT_ALTERNATE,
    PRINT_GIVEN,
    PRINT_LEFT,
    PRINT_PLUS,
    PRINT_PRECISION,
    PRINT_SPACE,
    PRINT_WIDTH,
    PRINT_ZERO,
    op,
)
from collectord.codec.print_argument import ArgumentReader
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from collectord.codec.ftrace_format import EventFormat
    from collectord.codec.line_ops import Op, Ops, Words

_TEXT_MAX: Final = 1 << 16
_OPS_MAX: Final = 1 << 14
# Each may append a whole field.
_PRINTS_MAX: Final = 128
# Widths of the parts of an operation, see `struct op` of the core.
_BITS: Final = (8, 16, 32, 64)
_CONVERSION: Final = re.compile(
    r"%(?P<flags>[-+ #0]*+)(?P<width>[1-9]\d{0,3}|\*)?(?:\.(?P<precision>\d{0,4}|\*))?"
    r"(?P<length>hh|ll|[hlLqjzt])?(?P<kind>%|p[A-Za-z0-9]*|[A-Za-z])"
)
_FLAGS: Final = {
    "-": PRINT_LEFT, "0": PRINT_ZERO, "+": PRINT_PLUS, " ": PRINT_SPACE, "#": PRINT_ALTERNATE
}  # fmt: skip
_LENGTHS: Final = {"hh": 1, "h": 2, None: 4}
_WIDTH_MAX: Final = 4096
_HEX_GAPS: Final = {"": " ", "C": ":", "D": "-", "N": "\0"}


def compile_format(
    layout: EventFormat, words: Words, readable: Callable[[str], str] = str
) -> Ops | None:
    """Return what appends the text of a record, None if the format cannot be carried out.

    A part of it whose value nothing tells is shown as "?".

    Args:
        layout: of the event.
        words: that the operations name.
        readable: makes the format's own text, which is of a file, fit to be shown.
    """
    text = layout.print_format.decode(errors="surrogateescape")
    if not text or len(text) > _TEXT_MAX:
        return None
    fields = {field.name: field for field in (*layout.common, *layout.fields)}
    try:
        tokens = Tokens(text)
        template = tokens.string().rstrip("\n")
        reader = ArgumentReader(tokens, fields, words)
        arguments = []
        while tokens.takes(","):
            arguments.append(reader.read())
        tokens.end()
        made = _printed(template, iter(arguments), lambda shown: words.literal(readable(shown)))
    except (CodecError, RecursionError, ValueError):  # as of a number of thousands of digits
        return None
    prints = sum(code == "print" for code, *_ in made)
    if len(made) > _OPS_MAX or prints > _PRINTS_MAX or not all(map(_fits, made)):
        return None
    return made


def _fits(made: Op) -> bool:
    return all(0 <= part < 1 << bits for part, bits in zip(made[1:], _BITS, strict=True))


def _printed(template: str, left: Iterator[Value], shown: Callable[[str], Op]) -> Ops:
    """Return what appends a format of printf.

    Args:
        template: the format.
        left: its arguments.
        shown: returns what appends a text.
    """
    if "\n" in template or "\t" in template:
        raise refusal("several lines")
    made: Ops = []
    at = 0
    literal = ""
    for found in _CONVERSION.finditer(template):
        literal += template[at : found.start()]
        at = found.end()
        if found["kind"] == "%":
            literal += "%"
            continue
        if literal:
            made.append(shown(literal))
            literal = ""
        made += _converted(found, left)
    literal += template[at:]
    if literal:
        made.append(shown(literal))
    return made


def _converted(found: re.Match[str], left: Iterator[Value]) -> Ops:
    """Return what appends a conversion, with the arguments that it takes of those left."""
    given: list[Value] = []
    flags = 0
    for flag in found["flags"]:
        flags |= _FLAGS[flag]
    width, precision = found["width"] or "0", found["precision"]
    kind = found["kind"]
    if width == "*":
        given.append(next(left, UNKNOWN))
        flags, width = flags | PRINT_WIDTH, "0"
    if precision is not None:
        flags |= PRINT_PRECISION
    if precision == "*":
        given.append(next(left, UNKNOWN))
        flags, precision = flags | PRINT_GIVEN, "0"
    value = next(left, UNKNOWN)
    columns = min(int(width), _WIDTH_MAX)
    if kind.startswith("p"):
        return _pointer(kind[1:], value, given, flags, columns)
    if kind in "diuxXo":
        size = _LENGTHS.get(found["length"], 8)
        value = cast(value, Type(size, signed=kind in "di"))
    elif kind not in "sc":
        raise refusal(f"conversion {found[0]}")
    sizes = columns | min(int(precision or 0), _WIDTH_MAX) << 16
    return [*_all(given), *value.ops, op("print", ord(kind), flags, sizes)]


def _all(values: Iterable[Value]) -> Ops:
    return [one for value in values for one in value.ops]


def _pointer(kind: str, value: Value, given: list[Value], flags: int, width: int) -> Ops:
    """Return what %p and the kernel's extensions of it append.

    Args:
        kind: the letters behind the p.
        value: the argument.
        given: the arguments before it: width and precision.
        flags: PRINT_LEFT and its like.
        width: the columns.
    """
    text = op("print", ord("s"), flags & PRINT_LEFT, width)
    if value.type.size:
        number = cast(value, ADDRESS)
        return [*_all(given), *number.ops, op("print", ord("p"), flags, width)]
    if kind[:2] in {"I4", "i4", "I6", "i6"}:
        return [*value.ops, op("address"), text]
    if kind[:1] == "M":
        return [*value.ops, op("hex", ord(":")), text]
    if kind[:1] == "h" and kind[1:] in _HEX_GAPS:
        cut = [*given[0].ops, op("cut", 1)] if flags & PRINT_WIDTH else []
        return [*value.ops, *cut, op("hex", ord(_HEX_GAPS[kind[1:]])), text]
    if kind[:1] == "b":
        return [*value.ops, op("mask"), text]
    return [*value.ops, op("plain", 1)]
