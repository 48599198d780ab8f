# SPDX-License-Identifier: Apache-2.0
"""Values of expressions of C: the operations that push them, with the widths and signs of C."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.line_ops import MISSING, op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from collectord.codec.line_ops import Op, Ops

_TRUTHS: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})
_TYPE_BYTES: Final = {
    "char": 1, "bool": 1, "_Bool": 1, "short": 2, "int": 4, "long": 8, "unsigned": 4, "signed": 4,
    "enum": 4, "pid_t": 4, "gfp_t": 4, "dev_t": 4, "uid_t": 4, "gid_t": 4, "umode_t": 2,
    "blk_opf_t": 4, "fmode_t": 4, "__le16": 2, "__be16": 2, "__le32": 4, "__be32": 4, "float": 4,
    **{f"{sign}{bits}": bits // 8 for sign in ("u", "s") for bits in (8, 16, 32, 64)},
    **{f"__{sign}{bits}": bits // 8 for sign in ("u", "s") for bits in (8, 16, 32, 64)},
    **{f"{sign}int{bits}_t": bits // 8 for sign in ("u", "") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_TYPE_WORDS: Final = frozenset({"struct", "union", "const", "volatile", "void", "__force"})
_SIGNED_TYPE: Final = re.compile(r"(?:__)?s\d+|int\d+_t|char|short|int|long|signed|pid_t|enum")
_FOLDS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_,
    "|": operator.or_, "^": operator.xor, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "<<": lambda x, y: x << y if 0 <= y < 64 else 0,  # noqa: PLR2004  # bits of a number
    ">>": lambda x, y: x >> y if 0 <= y < 64 else 0,  # noqa: PLR2004
}  # fmt: skip


class UnknownValueError(Exception):
    """An expression has a name whose value nothing tells, or an operation that it cannot have."""


class Type(NamedTuple):
    """A C type of a number; 0 bytes: a text or a list."""

    size: int
    signed: bool


NO_NUMBER: Final = Type(0, signed=False)
INT: Final = Type(4, signed=True)
LONG: Final = Type(8, signed=True)
ADDRESS: Final = Type(8, signed=False)


class Value(NamedTuple):
    """The value of an expression: what pushes it, its type, and the number if it is constant."""

    ops: Ops
    type: Type
    number: int | None = None


# The value of what cannot be computed, shown as "?".
UNKNOWN: Final = Value([MISSING], LONG)


def named_type(words: Sequence[str]) -> Type | None:
    """Return the type that words between brackets name, None if they name no type."""
    if not words or words[0] in {"*", "REC"}:
        return None
    if "*" in words:
        return ADDRESS
    for before, word in zip((words[0], *words), words, strict=False):
        known = word in _TYPE_BYTES or word in _TYPE_WORDS or word.endswith("_t")
        if not known and before not in {"struct", "union", "enum"}:
            return None
    size = max((_TYPE_BYTES[word] for word in words if word in _TYPE_BYTES), default=8)
    if "long" not in words and "short" in words:
        size = 2
    if "char" in words:
        size = 1
    signed = "unsigned" not in words and any(map(_SIGNED_TYPE.fullmatch, words))
    return Type(size, signed)


def constant(number: int, of: Type) -> Value:
    """Return a number as a type has it."""
    bits = 8 * of.size
    number &= (1 << bits) - 1
    if of.signed and number >> (bits - 1):
        number -= 1 << bits
    return Value([op("number", int(of.signed), d=number & ((1 << 64) - 1))], of, number)


def cast(value: Value, of: Type) -> Value:
    """Return a value as another type."""
    if not value.type.size or not of.size or value.type == of:
        return value
    if value.number is not None:
        return constant(value.number, of)
    widens = of.size > value.type.size and (of.signed or not value.type.signed)
    if widens or (of.size == value.type.size == LONG.size):
        return Value(value.ops, of)
    return Value([*value.ops, op("extend", of.size, int(of.signed))], of)


def chosen(condition: Value, yes: Value, no: Value) -> Value:
    """Return one of two values by a condition."""
    if condition.number is not None:
        return yes if condition.number else no
    kind = _common(yes.type, no.type) if yes.type.size and no.type.size else NO_NUMBER
    yes, no = cast(yes, kind), cast(no, kind)
    jump, behind = op("jump_zero", c=len(yes.ops) + 1), op("jump", c=len(no.ops))
    return Value([*condition.ops, jump, *yes.ops, behind, *no.ops], kind)


def joined(sign: str, one: Value, other: Value) -> Value:
    """Return two values joined by a binary operator."""
    if not one.type.size or not other.type.size:
        raise UnknownValueError
    if sign in {"&&", "||"}:
        zero = constant(0, INT)
        one, other = joined("!=", one, zero), joined("!=", other, zero)
        sign = sign[0]
    of = _promoted(one.type) if sign in {"<<", ">>"} else _common(one.type, other.type)
    one = cast(one, of)
    other = other if sign in {"<<", ">>"} else cast(other, of)
    result = INT if sign in _TRUTHS else of
    if one.number is not None and other.number is not None and sign in _FOLDS:
        return constant(int(_FOLDS[sign](one.number, other.number)), result)
    made: list[Op] = [*one.ops, *other.ops, op(sign, b=int(of.signed))]
    if result.size < LONG.size and sign in {"+", "-", "*", "<<"}:
        made.append(op("extend", result.size, int(result.signed)))
    return Value(made, result)


def inverted(sign: str, value: Value) -> Value:
    """Return a value with a unary operator before it."""
    if not value.type.size:
        raise UnknownValueError
    of = INT if sign == "!" else _promoted(value.type)
    if sign == "+":
        return cast(value, of)
    if value.number is not None:
        number = {"-": -value.number, "~": ~value.number, "!": int(not value.number)}[sign]
        return constant(number, of)
    made = [*value.ops, op("negate" if sign == "-" else sign)]
    if sign != "!" and of.size < LONG.size:
        made.append(op("extend", of.size, int(of.signed)))
    return Value(made, of)


def _promoted(of: Type) -> Type:
    return of if of.size >= INT.size else INT


def _common(one: Type, other: Type) -> Type:
    """Return the type in which two numbers are computed."""
    one, other = _promoted(one), _promoted(other)
    if one.size == other.size:
        return Type(one.size, one.signed and other.signed)
    return max(one, other)
