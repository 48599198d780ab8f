# SPDX-License-Identifier: Apache-2.0
"""An argument of a print format: an expression of C over the fields of a record.

Beside the operators of C it has functions of the kernel's own
(include/trace/stages/stage3_trace_output.h).
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from collectord.codec.c_tokens import refusal, unescaped
from collectord.codec.c_value import (
    ADDRESS,
    INT,
    LONG,
    NO_NUMBER,
    UNKNOWN,
    Type,
    UnknownValueError,
    Value,
    cast,
    chosen,
    constant,
    inverted,
    joined,
    named_type,
)
from collectord.codec.ftrace_format import Placement
from collectord.codec.line_ops import HEX, op, span, tracepoint_field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from collectord.codec.c_tokens import Tokens
    from collectord.codec.ftrace_format import Field
    from collectord.codec.line_ops import Words

_DEPTH_MAX: Final = 60
_LEVELS: Final = {
    sign: level
    for level, signs in enumerate(
        (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="),
         ("<<", ">>"), ("+", "-"), ("*", "/", "%"))
    )
    for sign in signs
}  # fmt: skip
# Names of enums that the kernel leaves in its formats: include/linux/hrtimer.h (hrtimer_mode) and
# include/uapi/linux/ioprio.h.
_ENUMS: Final = {
    **{
        f"HRTIMER_MODE_{name}": number
        for number, name in enumerate(
            ("ABS", "REL", "ABS_PINNED", "REL_PINNED", "ABS_SOFT", "REL_SOFT", "ABS_PINNED_SOFT",
             "REL_PINNED_SOFT", "ABS_HARD", "REL_HARD", "ABS_PINNED_HARD", "REL_PINNED_HARD")
        )
    },
    "IOPRIO_CLASS_NONE": 0, "IOPRIO_CLASS_RT": 1, "IOPRIO_CLASS_BE": 2, "IOPRIO_CLASS_IDLE": 3,
    "IOPRIO_CLASS_INVALID": 7, "NULL": 0, "true": 1, "false": 0,
}  # fmt: skip
_SECOND_NS: Final = 1_000_000_000


class ArgumentReader:
    """Reads the arguments of a print format.

    Args:
        tokens: of the format.
        fields: of the record, by name.
        words: that the operations name.
    """

    def __init__(self, tokens: Tokens, fields: Mapping[str, Field], words: Words) -> None:
        self._tokens = tokens
        self._fields = fields
        self._words = words
        self._depth = 0

    def read(self) -> Value:
        """Read an argument, `UNKNOWN` if nothing tells its value. Raises CodecError."""
        start = self._tokens.at
        try:
            return self._ternary()
        except UnknownValueError:
            self._tokens.at = start
            self._tokens.skip_to(",")
            return UNKNOWN

    @contextmanager
    def _nested(self) -> Iterator[None]:
        if self._depth == _DEPTH_MAX:
            raise refusal("nested too deeply")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _ternary(self) -> Value:
        with self._nested():
            made = self._binary(0)
            if self._tokens.takes("?"):
                yes = self._ternary()
                self._tokens.expect(":")
                made = chosen(made, yes, self._ternary())
            return made

    def _binary(self, lowest: int) -> Value:
        """Read operands joined by operators that bind as tightly as `lowest` says, or more."""
        made = self._unary()
        while (level := _LEVELS.get(self._tokens.sign, -1)) >= lowest:
            sign = self._tokens.take().text
            made = joined(sign, made, self._binary(level + 1))
        return made

    def _unary(self) -> Value:
        sign = self._tokens.sign
        if sign in {"-", "~", "!", "+"}:
            self._tokens.take()
            with self._nested():
                return inverted(sign, self._unary())
        if sign == "(":
            words = self._tokens.words_in_brackets()
            of = named_type(words)
            if of is not None:
                self._tokens.at += len(words) + 2
                return cast(self._unary(), of)
        return self._postfix()

    def _postfix(self) -> Value:
        if self._tokens.next.kind == "string":
            return self._text(self._tokens.string())
        kind, text, suffix = self._tokens.take()
        if kind == "number":
            number = int(text, 8 if text.startswith("0") and text.isdigit() and text != "0" else 0)
            size = 8 if "l" in suffix.lower() or number >= 1 << 32 else 4
            signed = "u" not in suffix.lower() and number < 1 << (8 * size - 1)
            return constant(number, Type(size, signed))
        if kind == "char":
            return constant(ord(unescaped(text[1:-1])[:1] or "\0"), INT)
        if text == "(":
            made = self._ternary()
            self._tokens.expect(")")
            return self._indexed(made)
        if kind == "name":
            return self._named(text)
        raise refusal(f"at {text!r}")

    def _text(self, text: str) -> Value:
        return Value([op("text", c=self._words.text(_raw(text)))], NO_NUMBER)

    def _named(self, name: str) -> Value:
        if name == "REC":
            self._tokens.expect("->")
            return self._field(self._tokens.name())
        if self._tokens.takes("("):
            return self._call(name)
        if name in _ENUMS:
            return constant(_ENUMS[name], INT)
        raise UnknownValueError(name)

    def _field(self, name: str) -> Value:
        field = self._fields.get(name)
        if field is None:
            raise UnknownValueError(name)
        pushed = tracepoint_field(field)
        if pushed.kind == "number":
            return Value([pushed.op], Type(field.size_bytes, pushed.signed))
        return self._indexed(Value([pushed.op], NO_NUMBER), field)

    def _indexed(self, made: Value, field: Field | None = None) -> Value:
        """Return an element of a list if an index follows."""
        while self._tokens.takes("["):
            index = self._ternary()
            self._tokens.expect("]")
            if made.type.size or field is None:
                raise UnknownValueError
            of = Type(field.element_bytes or 1, field.signed and "*" not in field.type)
            if field.placement is Placement.INLINE and index.number is not None:
                at = field.offset + max(index.number, 0) * of.size
                made = Value([op("inline", of.size, int(of.signed), at)], of)
            else:
                element = op("element", of.size, int(of.signed))
                made = Value([*made.ops, *index.ops, element], of)
        return made

    def _call(self, name: str) -> Value:
        """Read a call behind its bracket."""
        if name.startswith(("__print_flags", "__print_symbolic")):
            return self._table(is_flags="flags" in name)
        if re.fullmatch(r"__get_(rel_)?\w+", name):
            of = self._fields.get(self._tokens.name())
            self._tokens.expect(")")
            if of is None or of.placement is Placement.INLINE:
                raise UnknownValueError(name)
            return _dynamic(name, of)
        arguments = [self._ternary()] if self._tokens.sign != ")" else []
        while self._tokens.takes(","):
            arguments.append(self._ternary())
        self._tokens.expect(")")
        return _called(name, arguments)

    def _table(self, *, is_flags: bool) -> Value:
        value = self._ternary()
        between = ""
        if is_flags:
            self._tokens.expect(",")
            between = self._tokens.string()
        names: list[tuple[int, bytes]] = []
        while self._tokens.takes(","):
            self._tokens.expect("{")
            start = self._tokens.at
            try:
                entry = self._entry()
            except UnknownValueError:
                self._tokens.at = start
                self._tokens.skip_to("}", ("{", "}"))
                entry = None
            self._tokens.expect("}")
            if entry is not None:
                names.append(entry)
        self._tokens.expect(")")
        if is_flags:
            made = op("flags", c=self._words.flags(names), d=self._words.text(_raw(between)))
        else:
            made = op("symbol", HEX, c=self._words.symbols(names))
        return Value([*value.ops, made], NO_NUMBER)

    def _entry(self) -> tuple[int, bytes] | None:
        """Read an entry of a table; None for its end, which has no text."""
        key = self._ternary()
        self._tokens.expect(",")
        if self._tokens.next.kind != "string":
            self._ternary()
            return None
        text = self._tokens.string()
        return None if key.number is None else (key.number, _raw(text))


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _dynamic(name: str, field: Field) -> Value:
    """Return what a function says about an array that its record points to."""
    if name.endswith("_len"):
        return Value([span(field), op("length")], Type(4, signed=False))
    if name.endswith(("bitmask", "cpumask")):
        return Value([span(field), op("mask")], NO_NUMBER)
    return Value([span(field)], NO_NUMBER)


def _called(name: str, arguments: Sequence[Value]) -> Value:
    """Return the value of a function."""
    first, *others = arguments or (UNKNOWN,)
    match name, others:
        case "__builtin_expect", [_]:
            return first
        case "__print_ns_to_secs", []:
            return joined("/", cast(first, ADDRESS), constant(_SECOND_NS, LONG))
        case "__print_ns_without_secs", []:
            return joined("%", cast(first, ADDRESS), constant(_SECOND_NS, LONG))
        case (("__print_hex" | "__print_hex_str"), [count]) if not first.type.size:
            between = ord(" ") if name == "__print_hex" else 0
            return Value([*first.ops, *count.ops, op("cut", 1), op("hex", between)], NO_NUMBER)
        case "__print_array", [count, size] if not first.type.size and size.number in {1, 2, 4, 8}:
            made = [*first.ops, *count.ops, op("cut", size.number or 1), op("array")]
            return Value(made, NO_NUMBER)
    raise UnknownValueError(name)
