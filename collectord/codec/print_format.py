# SPDX-License-Identifier: Apache-2.0
r"""The kernel's print formats, which say how a record is shown, as operations.

    print fmt: "vec=%u [action=%s]", REC->vec, __print_symbolic(REC->vec, { 0, "HI" }, ...)

is a format of printf and expressions of C over the fields of the record, with some functions of
its own (include/trace/stages/stage3_trace_output.h). Numbers have the widths and signs of C.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.ftrace_format import Placement
from collectord.codec.line_ops import (
    HEX,
    MISSING,
    PRINT_ALTERNATE,
    PRINT_GIVEN,
    PRINT_LEFT,
    PRINT_PLUS,
    PRINT_PRECISION,
    PRINT_SPACE,
    PRINT_WIDTH,
    PRINT_ZERO,
    op,
    span,
    tracepoint_field,
)
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from collectord.codec.ftrace_format import EventFormat, Field
    from collectord.codec.line_ops import Op, Ops, Words

_TEXT_MAX: Final = 1 << 16
_OPS_MAX: Final = 1 << 14
_DEPTH_MAX: Final = 60
# Each may append a whole field.
_PRINTS_MAX: Final = 128
# Of the parts of an operation, see `struct op` of the core.
_BITS: Final = (8, 16, 32, 64)
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<string>\"(?:\\.|[^\"\\])*\")|(?P<number>0[xX][0-9a-fA-F]+|\d+)(?P<suffix>[uUlL]*)"
    r"|(?P<char>'(?:\\.|[^'\\])')|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>->|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>&|^!~?:(){}\[\],.]))",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CONVERSION: Final = re.compile(
    r"%(?P<flags>[-+ #0]*+)(?P<width>[1-9]\d{0,3}|\*)?(?:\.(?P<precision>\d{0,4}|\*))?"
    r"(?P<length>hh|ll|[hlLqjzt])?(?P<kind>%|p[A-Za-z0-9]*|[A-Za-z])"
)
_FLAGS: Final = {
    "-": PRINT_LEFT, "0": PRINT_ZERO, "+": PRINT_PLUS, " ": PRINT_SPACE, "#": PRINT_ALTERNATE
}  # fmt: skip
_LENGTHS: Final = {"hh": 1, "h": 2, None: 4}
_WIDTH_MAX: Final = 4096
_PRECEDENCE: Final = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="),
    ("<<", ">>"), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
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
_FOLDS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_,
    "|": operator.or_, "^": operator.xor, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "<<": lambda x, y: x << y if 0 <= y < 64 else 0,  # noqa: PLR2004  # bits of a number
    ">>": lambda x, y: x >> y if 0 <= y < 64 else 0,  # noqa: PLR2004
}  # fmt: skip


class _UnknownNameError(Exception):
    """An expression has a name whose value the format does not tell."""


class _Type(NamedTuple):
    """A C type of a number; 0 bytes: a text or a list."""

    size: int
    signed: bool


_NO_NUMBER: Final = _Type(0, signed=False)
_INT: Final = _Type(4, signed=True)
_LONG: Final = _Type(8, signed=True)
_ADDRESS: Final = _Type(8, signed=False)


class _Code(NamedTuple):
    """An expression: what pushes its value, its type, and the value if it is constant."""

    ops: Ops
    type: _Type
    value: int | None = None


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
        made = _Format(text, fields, words, readable).compile()
    except (CodecError, RecursionError, ValueError):  # as of a number of thousands of digits
        return None
    prints = sum(code == "print" for code, *_ in made)
    if len(made) > _OPS_MAX or prints > _PRINTS_MAX or not all(map(_fits, made)):
        return None
    return made


def _fits(made: Op) -> bool:
    return all(0 <= part < 1 << bits for part, bits in zip(made[1:], _BITS, strict=True))


class _Format:
    """A print format that is read from its beginning to its end."""

    def __init__(
        self,
        text: str,
        fields: Mapping[str, Field],
        words: Words,
        readable: Callable[[str], str],
    ) -> None:
        self._readable = readable
        self._tokens: list[tuple[str, str, str]] = []
        self._at = 0
        self._depth = 0
        self._fields = fields
        self._words = words
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                if text[at:].strip():
                    raise _refusal(f"at {text[at : at + 20]!r}")
                break
            kind = found.lastgroup or ""
            kind = "number" if kind == "suffix" else kind
            self._tokens.append((kind, found[kind], found["suffix"] or ""))
            at = found.end()
        self._tokens.append(("end", "", ""))

    def compile(self) -> Ops:
        """Return the operations of the whole format."""
        template = self._string()
        arguments = []
        while self._takes(","):
            arguments.append(self._argument())
        if self._tokens[self._at][0] != "end":
            raise _refusal(f"at {self._tokens[self._at][1]!r}")
        return self._print(template.rstrip("\n"), arguments)

    # The format.

    def _print(self, template: str, arguments: list[_Code]) -> Ops:
        if "\n" in template or "\t" in template:
            raise _refusal("several lines")
        made: Ops = []
        at = 0
        left = iter(arguments)
        literal = ""
        for found in _CONVERSION.finditer(template):
            literal += template[at : found.start()]
            at = found.end()
            if found["kind"] == "%":
                literal += "%"
                continue
            if literal:
                made.append(self._words.literal(self._readable(literal)))
                literal = ""
            made += self._convert(found, left)
        literal += template[at:]
        if literal:
            made.append(self._words.literal(self._readable(literal)))
        return made

    def _convert(self, found: re.Match[str], left: object) -> Ops:
        arguments: list[_Code] = []
        flags = 0
        for flag in found["flags"]:
            flags |= _FLAGS[flag]
        width, precision = found["width"] or "0", found["precision"]
        kind = found["kind"]
        missing = _Code([MISSING], _LONG)
        if width == "*":
            arguments.append(next(left, missing))  # type: ignore[call-overload]
            flags, width = flags | PRINT_WIDTH, "0"
        if precision is not None:
            flags |= PRINT_PRECISION
        if precision == "*":
            arguments.append(next(left, missing))  # type: ignore[call-overload]
            flags, precision = flags | PRINT_GIVEN, "0"
        value: _Code = next(left, missing)  # type: ignore[call-overload]
        if kind.startswith("p"):
            return _pointer(kind[1:], value, arguments, flags, min(int(width), _WIDTH_MAX))
        size = _LENGTHS.get(found["length"], 8)
        if kind in "di":
            shown = _cast(value, _Type(size, signed=True))
        elif kind in "uxXo":
            shown = _cast(value, _Type(size, signed=False))
        elif kind in "sc":
            shown = value
        else:
            raise _refusal(f"conversion {found[0]}")
        sizes = min(int(width), _WIDTH_MAX) | min(int(precision or 0), _WIDTH_MAX) << 16
        made = [one for argument in arguments for one in argument.ops]
        return [*made, *shown.ops, op("print", ord(kind), flags, sizes)]

    # Expressions.

    def _argument(self) -> _Code:
        """Return an argument, "?" if it has a name that nothing explains."""
        start, depth = self._at, self._depth
        try:
            return self._ternary()
        except _UnknownNameError:
            self._at, self._depth = start, depth
            self._skip()
            return _Code([MISSING], _LONG)

    def _skip(self) -> None:
        """Skip to the comma behind an argument, or the end."""
        depth = 0
        while self._tokens[self._at][0] != "end":
            sign = self._tokens[self._at][1]
            if self._tokens[self._at][0] == "sign":
                if not depth and sign == ",":
                    return
                depth += (sign in {"(", "{", "["}) - (sign in {")", "}", "]"})
            self._at += 1

    def _ternary(self) -> _Code:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise _refusal("nested too deeply")
        condition = self._binary(0)
        if self._takes("?"):
            yes = self._ternary()
            self._expect(":")
            no = self._ternary()
            kind = _common(yes.type, no.type) if yes.type.size and no.type.size else _NO_NUMBER
            if condition.value is not None:
                condition = yes if condition.value else no
            else:
                yes, no = _cast(yes, kind), _cast(no, kind)
                jump, behind = op("jump_zero", c=len(yes.ops) + 1), op("jump", c=len(no.ops))
                condition = _Code([*condition.ops, jump, *yes.ops, behind, *no.ops], kind)
        self._depth -= 1
        return condition

    def _binary(self, level: int) -> _Code:
        if level == len(_PRECEDENCE):
            return self._unary()
        made = self._binary(level + 1)
        while self._tokens[self._at][0] == "sign" and self._peek() in _PRECEDENCE[level]:
            sign = self._peek()
            self._at += 1
            made = _joined(sign, made, self._binary(level + 1))
        return made

    def _unary(self) -> _Code:
        sign = self._peek() if self._tokens[self._at][0] == "sign" else ""
        if sign in {"-", "~", "!", "+"}:
            self._at += 1
            self._depth += 1
            if self._depth > _DEPTH_MAX:
                raise _refusal("nested too deeply")
            made = _inverted(sign, self._unary())
            self._depth -= 1
            return made
        if sign == "(":
            cast = self._type()
            if cast is not None:
                return _cast(self._unary(), cast)
        return self._postfix()

    def _postfix(self) -> _Code:
        kind, text, suffix = self._tokens[self._at]
        if kind == "string":
            return _Code([op("text", c=self._words.text(_raw(self._string())))], _NO_NUMBER)
        self._at += 1
        if kind == "number":
            value = int(text, 8 if text.startswith("0") and text.isdigit() and text != "0" else 0)
            size = 8 if "l" in suffix.lower() or value >= 1 << 32 else 4
            signed = "u" not in suffix.lower() and value < 1 << (8 * size - 1)
            return _constant(value, _Type(size, signed))
        if kind == "char":
            return _constant(ord(_unescaped(text[1:-1])[:1] or "\0"), _INT)
        if text == "(":
            made = self._ternary()
            self._expect(")")
            return self._indexed(made)
        if kind == "name":
            return self._named(text)
        raise _refusal(f"at {text!r}")

    def _named(self, name: str) -> _Code:
        if name == "REC":
            self._expect("->")
            return self._field(self._name())
        if self._peek() == "(" and self._tokens[self._at][0] == "sign":
            self._at += 1
            return self._call(name)
        if name in _ENUMS:
            return _constant(_ENUMS[name], _INT)
        raise _UnknownNameError(name)

    def _field(self, name: str) -> _Code:
        field = self._fields.get(name)
        if field is None:
            raise _UnknownNameError(name)
        pushed = tracepoint_field(field)
        if pushed.kind == "number":
            return _Code([pushed.op], _Type(field.size_bytes, pushed.signed))
        made = _Code([pushed.op], _NO_NUMBER)
        return self._indexed(made, field)

    def _indexed(self, made: _Code, field: Field | None = None) -> _Code:
        """Return an element of a list if an index follows."""
        while self._tokens[self._at][0] == "sign" and self._takes("["):
            index = self._ternary()
            self._expect("]")
            if made.type.size or field is None:
                raise _UnknownNameError
            of = _Type(field.element_bytes or 1, field.signed and "*" not in field.type)
            if field.placement is Placement.INLINE and index.value is not None:
                at = field.offset + max(index.value, 0) * of.size
                made = _Code([op("inline", of.size, int(of.signed), at)], of)
            else:
                element = op("element", of.size, int(of.signed))
                made = _Code([*made.ops, *index.ops, element], of)
        return made

    def _call(self, name: str) -> _Code:
        if name.startswith(("__print_flags", "__print_symbolic")):
            return self._table(is_flags="flags" in name)
        if re.fullmatch(r"__get_(rel_)?\w+", name):
            of = self._fields.get(self._name())
            self._expect(")")
            if of is None or of.placement is Placement.INLINE:
                raise _UnknownNameError(name)
            return _dynamic(name, of)
        arguments = [self._ternary()] if self._peek() != ")" else []
        while self._takes(","):
            arguments.append(self._ternary())
        self._expect(")")
        return _function(name, arguments)

    def _table(self, *, is_flags: bool) -> _Code:
        value = self._ternary()
        between = ""
        if is_flags:
            self._expect(",")
            between = self._string()
        names: list[tuple[int, bytes]] = []
        while self._takes(","):
            self._expect("{")
            start, depth = self._at, self._depth
            try:
                key = self._ternary()
                self._expect(",")
                text = self._ternary_string()
                if key.value is not None and text is not None:
                    names.append((key.value, _raw(text)))
            except _UnknownNameError:
                self._at, self._depth = start, depth
                self._skip_braces()
            self._expect("}")
        self._expect(")")
        if is_flags:
            made = op(
                "flags",
                c=self._words.flags(names),
                d=self._words.text(_raw(between)),
            )
        else:
            made = op("symbol", HEX, c=self._words.symbols(names))
        return _Code([*value.ops, made], _NO_NUMBER)

    def _ternary_string(self) -> str | None:
        """Return the text of an entry, None if it is no text: the end of a table."""
        if self._tokens[self._at][0] == "string":
            return self._string()
        self._ternary()
        return None

    def _skip_braces(self) -> None:
        depth = 0
        while self._tokens[self._at][0] != "end":
            sign = self._tokens[self._at][1] if self._tokens[self._at][0] == "sign" else ""
            if sign == "}" and not depth:
                return
            depth += (sign == "{") - (sign == "}")
            self._at += 1

    def _type(self) -> _Type | None:
        """Return the type of a cast if one is next; else nothing is read."""
        at = self._at + 1
        words = []
        while self._tokens[at][0] == "name" or self._tokens[at][1] == "*":
            words.append(self._tokens[at][1])
            at += 1
        is_type = words and (
            "*" in words or all(w in _TYPE_BYTES or w in _TYPE_WORDS or w.endswith("_t")
                                or words[max(i - 1, 0)] in {"struct", "union", "enum"}
                                for i, w in enumerate(words))
        )  # fmt: skip
        if not is_type or self._tokens[at][1] != ")" or words[0] == "*" or words[0] == "REC":
            return None
        self._at = at + 1
        if "*" in words:
            return _ADDRESS
        size = max((_TYPE_BYTES[word] for word in words if word in _TYPE_BYTES), default=8)
        if "long" not in words and "short" in words:
            size = 2
        if "char" in words:
            size = 1
        signed = "unsigned" not in words and any(map(_SIGNED_TYPE.fullmatch, words))
        return _Type(size, signed)

    # Tokens.

    def _peek(self) -> str:
        return self._tokens[self._at][1]

    def _takes(self, sign: str) -> bool:
        if self._tokens[self._at][:2] != ("sign", sign):
            return False
        self._at += 1
        return True

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise _refusal(f"no {sign!r} at {self._peek()!r}")

    def _name(self) -> str:
        kind, text, _ = self._tokens[self._at]
        if kind != "name":
            raise _refusal(f"no name at {text!r}")
        self._at += 1
        return text

    def _string(self) -> str:
        made = ""
        if self._tokens[self._at][0] != "string":
            raise _refusal(f"no text at {self._peek()!r}")
        while self._tokens[self._at][0] == "string":
            made += _unescaped(self._peek()[1:-1])
            self._at += 1
        return made


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _refusal(what: str) -> CodecError:
    return CodecError(f"print fmt: {what}", offset=0, reason="format")


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        return _ESCAPES.get(code, code)

    return _ESCAPE.sub(one, text)


def _cut(value: int, of: _Type) -> int:
    bits = 8 * of.size
    value &= (1 << bits) - 1
    return value - (1 << bits) if of.signed and value >> (bits - 1) else value


def _constant(value: int, of: _Type) -> _Code:
    value = _cut(value, of)
    return _Code([op("number", int(of.signed), d=value & ((1 << 64) - 1))], of, value)


def _promoted(of: _Type) -> _Type:
    return of if of.size >= _INT.size else _INT


def _common(one: _Type, other: _Type) -> _Type:
    """Return the type in which two numbers are computed."""
    one, other = _promoted(one), _promoted(other)
    if one.size == other.size:
        return _Type(one.size, one.signed and other.signed)
    return max(one, other)


def _cast(code: _Code, of: _Type) -> _Code:
    """Return a value as another type."""
    if not code.type.size or not of.size or code.type == of:
        return code
    if code.value is not None:
        return _constant(code.value, of)
    widens = of.size > code.type.size and (of.signed or not code.type.signed)
    if widens or (of.size == code.type.size == _LONG.size):
        return _Code(code.ops, of)
    return _Code([*code.ops, op("extend", of.size, int(of.signed))], of)


def _joined(sign: str, one: _Code, other: _Code) -> _Code:
    """Return two values joined by a binary operator."""
    if not one.type.size or not other.type.size:
        raise _UnknownNameError
    if sign in {"&&", "||"}:
        zero = _constant(0, _INT)
        one, other = _joined("!=", one, zero), _joined("!=", other, zero)
        sign = sign[0]
    of = _promoted(one.type) if sign in {"<<", ">>"} else _common(one.type, other.type)
    one = _cast(one, of)
    other = other if sign in {"<<", ">>"} else _cast(other, of)
    result = _INT if sign in _TRUTHS else of
    if one.value is not None and other.value is not None and sign in _FOLDS:
        return _constant(int(_FOLDS[sign](one.value, other.value)), result)
    made: list[Op] = [*one.ops, *other.ops, op(sign, b=int(of.signed))]
    if result.size < _LONG.size and sign in {"+", "-", "*", "<<"}:
        made.append(op("extend", result.size, int(result.signed)))
    return _Code(made, result)


def _inverted(sign: str, code: _Code) -> _Code:
    if not code.type.size:
        raise _UnknownNameError
    of = _INT if sign == "!" else _promoted(code.type)
    if sign == "+":
        return _cast(code, of)
    if code.value is not None:
        value = {"-": -code.value, "~": ~code.value, "!": int(not code.value)}[sign]
        return _constant(value, of)
    made = [*code.ops, op("negate" if sign == "-" else sign)]
    if sign != "!" and of.size < _LONG.size:
        made.append(op("extend", of.size, int(of.signed)))
    return _Code(made, of)


def _dynamic(name: str, field: Field) -> _Code:
    """Return what a function says about an array that its record points to."""
    if name.endswith("_len"):
        return _Code([span(field), op("length")], _Type(4, signed=False))
    if name.endswith(("bitmask", "cpumask")):
        return _Code([span(field), op("mask")], _NO_NUMBER)
    return _Code([span(field)], _NO_NUMBER)


def _function(name: str, arguments: Sequence[_Code]) -> _Code:
    first, *others = arguments or (_Code([MISSING], _LONG),)
    match name, others:
        case "__builtin_expect", [_]:
            return first
        case "__print_ns_to_secs", []:
            return _joined("/", _cast(first, _ADDRESS), _constant(_SECOND_NS, _LONG))
        case "__print_ns_without_secs", []:
            return _joined("%", _cast(first, _ADDRESS), _constant(_SECOND_NS, _LONG))
        case (("__print_hex" | "__print_hex_str"), [count]) if not first.type.size:
            between = ord(" ") if name == "__print_hex" else 0
            return _Code([*first.ops, *count.ops, op("cut", 1), op("hex", between)], _NO_NUMBER)
        case "__print_array", [count, size] if not first.type.size and size.value in {1, 2, 4, 8}:
            made = [*first.ops, *count.ops, op("cut", size.value or 1), op("array")]
            return _Code(made, _NO_NUMBER)
    raise _UnknownNameError(name)


_HEX_GAPS: Final = {"": " ", "C": ":", "D": "-", "N": "\0"}


def _pointer(kind: str, value: _Code, given: list[_Code], flags: int, width: int) -> Ops:
    """Return what %p and the kernel's extensions of it append."""
    text = op("print", ord("s"), flags & PRINT_LEFT, width)
    if value.type.size:
        number = _cast(value, _ADDRESS)
        lead = [one for argument in given for one in argument.ops]
        return [*lead, *number.ops, op("print", ord("p"), flags, width)]
    if kind[:2] in {"I4", "i4", "I6", "i6"}:
        return [*value.ops, op("address"), text]
    if kind[:1] == "M":
        return [*value.ops, op("hex", ord(":")), text]
    if kind[:1] == "h" and kind[1:] in _HEX_GAPS:
        cut = [*given[0].ops, op("cut", 1)] if given and flags & PRINT_WIDTH else []
        return [*value.ops, *cut, op("hex", ord(_HEX_GAPS[kind[1:]])), text]
    if kind[:1] == "b":
        return [*value.ops, op("mask"), text]
    return [*value.ops, op("plain", 1)]
