# SPDX-License-Identifier: Apache-2.0
"""Operations that make lines of records, as the core's machine carries them out.

What each does is told in `_native/lines/machine.h`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.ftrace_format import Placement
from collectord.codec.record_filter import array_refusal, number_test, text_test

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from collectord.codec import bpf_struct
    from collectord.codec.ftrace_format import Field
    from collectord.codec.record_filter import Term

Op = tuple[str, int, int, int, int]
Ops = list[Op]

_TEXT: Final = 3  # enum value_kind
_BYTES: Final = 4
_LIST: Final = 5
_SIGNED: Final = 0x100
_WORD_BYTES: Final = 8
_PLACES: Final = {
    Placement.INLINE: "span",
    Placement.DATA_LOC: "data_loc",
    Placement.REL_LOC: "rel_loc",
}
# A value that no record has.
MISSING: Final[Op] = ("inline", 1, 0, (1 << 32) - 1, 0)
PRINT_LEFT: Final = 1
PRINT_ZERO: Final = 2
PRINT_PLUS: Final = 4
PRINT_SPACE: Final = 8
PRINT_ALTERNATE: Final = 16
PRINT_WIDTH: Final = 32
PRINT_PRECISION: Final = 64
PRINT_GIVEN: Final = 128
HEX, DECIMAL, DEVICE = range(3)  # of a number without a symbol


def op(name: str, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> Op:
    """Return an operation."""
    return (name, a, b, c, d)


class Words:
    """The texts, tables and widths that the programs of a file share."""

    def __init__(self) -> None:
        self.tables: list[Sequence[tuple[int, int]]] = []
        self.widths: list[int] = []
        self._texts: dict[bytes, int] = {}
        self._known: dict[tuple[tuple[int, int], ...], int] = {}

    @property
    def texts(self) -> list[bytes]:
        """All texts, in their order."""
        return [*self._texts]

    def text(self, text: str | bytes) -> int:
        """Return the number of a text."""
        raw = text.encode(errors="backslashreplace") if isinstance(text, str) else text
        return self._texts.setdefault(raw, len(self._texts))

    def literal(self, text: str | bytes) -> Op:
        """Append a text."""
        return op("literal", c=self.text(text))

    def symbols(self, names: Iterable[tuple[int, str | bytes]]) -> int:
        """Return the number of a table for `symbol` and `errno`; the first of equals counts."""
        first: dict[int, str | bytes] = {}
        for value, name in names:
            first.setdefault(value & ((1 << 64) - 1), name)
        return self._table((value, self.text(first[value])) for value in sorted(first))

    def flags(self, names: Iterable[tuple[int, str | bytes]]) -> int:
        """Return the number of a table for `flags`."""
        return self._table((mask & ((1 << 64) - 1), self.text(name)) for mask, name in names)

    def width(self, characters: int) -> int:
        """Return the number of a new width."""
        self.widths.append(characters)
        return len(self.widths) - 1

    def _table(self, entries: Iterable[tuple[int, int]]) -> int:
        made = tuple(entries)
        if made not in self._known:
            self._known[made] = len(self.tables)
            self.tables.append(made)
        return self._known[made]


class Pushed(NamedTuple):
    """A field of a record.

    Attributes:
        name: of the field.
        op: pushes its value.
        kind: "number", "float", "text" or "array".
        signed: whether it is a signed number.
        is_hex: its numbers are shown as addresses.
        is_bool: it is shown as true or false in data.
        common: all events have it: it is not shown as text.
        addresses: pushes the addresses of functions that it has, None if it has none.
    """

    name: str
    op: Op
    kind: str
    signed: bool = False
    is_hex: bool = False
    is_bool: bool = False
    common: bool = False
    addresses: Op | None = None

    @property
    def plain(self) -> Ops:
        """Append it as text."""
        return [self.op, op("plain", int(self.is_hex))]

    @property
    def quoted(self) -> Ops:
        """Append it as JSON."""
        return [self.op, op("quoted", int(self.is_bool))]

    @property
    def cell(self) -> Ops:
        """Append it as CSV."""
        return [self.op, op("cell")]


def span(field: Field, kind: int | None = None) -> Op:
    """Push the text, bytes or list of an array of a tracepoint."""
    if kind is None:
        kind = _TEXT if field.is_string else _LIST if field.element_bytes > 1 else _BYTES
    signed = _SIGNED if field.signed and "*" not in field.type else 0
    element = field.element_bytes if field.element_bytes <= _WORD_BYTES else 1
    return op(_PLACES[field.placement], kind, element | signed, field.offset, field.size_bytes)


def tracepoint_field(field: Field, *, common: bool = False) -> Pushed:
    """Return a field of a tracepoint."""
    is_hex = "*" in field.type or field.type == "unsigned long"
    if field.element_bytes or field.placement is not Placement.INLINE:
        kind = "text" if field.is_string else "array"
        return Pushed(field.name, span(field), kind, is_hex=is_hex, common=common)
    signed = field.signed and "*" not in field.type
    push = op("inline", field.size_bytes, int(signed), field.offset)
    return Pushed(field.name, push, "number", signed, is_hex=is_hex, common=common)


def member(field: bpf_struct.Field) -> Pushed:
    """Return a member of a struct of a BPF program."""
    each = field.size // (field.count or 1)
    signed = field.kind == "int"
    if field.kind == "char":
        return Pushed(field.name, op("span", _TEXT, 1, field.offset, field.size), "text")
    if field.kind == "bytes" or each > _WORD_BYTES:
        return Pushed(field.name, op("span", _BYTES, 1, field.offset, field.size), "array")
    if field.count:
        element = each | (_SIGNED if signed else 0)
        return Pushed(field.name, op("span", _LIST, element, field.offset, field.size), "array")
    if field.kind == "float":
        return Pushed(field.name, op("float", each, 0, field.offset), "float")
    push = op("inline", each, int(signed), field.offset)
    return Pushed(field.name, push, "number", signed, is_bool=field.kind == "bool")


def rest(name: str, offset: int) -> Pushed:
    """Return the bytes of a record from an offset on, as a field."""
    return Pushed(name, op("span", _BYTES, 1, offset), "array")


def place_of(addresses: Op, words: Words) -> Ops:
    """Leave a place for names of functions: {process, stamp, addresses with the marks}.

    It is between two bytes that no text of UTF-8 has.
    """
    comma = words.literal(",")
    of_sample = [op("pid"), op("plain"), comma, op("stamp"), op("plain"), comma]
    return [words.literal(b"\xff"), *of_sample, addresses, op("plain"), words.literal(b"\xfe")]


def tail_text(name: str) -> Pushed:
    """Return the text that reaches to the end of a record, from a place that it says itself."""
    return Pushed(name, op("tail", _TEXT), "text")


def filter_ops(terms: Iterable[Term], fields: Mapping[str, Pushed], words: Words) -> Ops:
    """Keep the records whose fields fit all terms.

    Raises:
        UsageError: a field cannot be compared by this operator, or with this value.
    """
    made: Ops = []
    for term in terms:
        made += _test(term, fields[term.field], words)
        made.append(op("keep"))
    return made


def _test(term: Term, field: Pushed, words: Words) -> Ops:
    if field.kind == "text":
        text_test(term)
        text = words.text(term.value)
        if term.operator == "~":
            return [field.op, op("like", c=text)]
        return [field.op, op("is", c=text), *([op("!")] if term.operator == "!=" else [])]
    if field.kind != "number":
        raise array_refusal(term)
    holds = number_test(term)
    number = int(term.value, 0)
    least, most = (-(1 << 63), (1 << 63) - 1) if field.signed else (0, (1 << 64) - 1)
    if term.operator != "&" and not least <= number <= most:
        # All values are on the same side of it; a record must have one nevertheless.
        return [field.op, op("number"), op("*"), op("number", d=int(holds(0))), op("|")]
    pushed = op("number", d=number & ((1 << 64) - 1))
    return [field.op, pushed, op(term.operator, b=int(field.signed))]
