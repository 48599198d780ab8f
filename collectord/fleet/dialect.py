# SPDX-License-Identifier: Apache-2.0
"""The SQL of the engines: what takes the place of what DuckDB alone has.

sqlglot writes a statement for an engine. What it leaves as DuckDB has it is turned here into what
every engine has, or into what one of them has in its place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import sqlglot
from sqlglot import exp

from collectord.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Rewrite = Callable[[exp.Expr], exp.Expr]

DUCKDB: Final = "duckdb"
CLICKHOUSE: Final = "clickhouse"
SPARK: Final = "spark"
_NS_PER_SECOND: Final = 1_000_000_000
# The factor that splits a double's 53 digits into halves: 2^27 + 1.
_HALF_OF_DIGITS: Final = (1 << 27) + 1
_ESCAPED: Final = re.compile(r"[%_\\]")


def called(node: exp.Expr) -> str:
    """Return the name of a function that sqlglot does not know, in capitals; "" for any other."""
    return node.name.upper() if isinstance(node, exp.Anonymous) else ""


def _for_duckdb(node: exp.Expr) -> exp.Expr:
    return node


def _common(node: exp.Expr) -> exp.Expr:
    """Rewrite what DuckDB alone has."""
    if isinstance(node, exp.Glob):
        return _like(node)
    if isinstance(node, exp.CTE) and node.args.get("materialized") is not None:
        node.set("materialized", None)
    if isinstance(node, exp.Bracket) and isinstance(node.expressions[0], exp.Slice):
        part = node.expressions[0]
        length = exp.Add(
            this=exp.Sub(this=exp.paren(part.expression), expression=exp.paren(part.this)),
            expression=exp.convert(1),
        )
        return exp.Substring(this=node.this, start=part.this, length=length)
    if isinstance(node, exp.BitwiseLeftShift):
        number, places = number_of(node.this), number_of(node.expression)
        if number is not None and places is not None:
            return exp.Literal.number(number << places)
    return node


def number_of(node: exp.Expr) -> int | None:
    """Return the whole number that is written; None for anything else."""
    while isinstance(node, exp.Cast | exp.Paren):
        node = node.this
    is_number = isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit()
    return int(node.name) if is_number else None


def _like(node: exp.Glob) -> exp.Expr:
    """Return a GLOB of a known pattern as a LIKE."""
    pattern = node.expression
    if not isinstance(pattern, exp.Literal) or "[" in pattern.name:
        raise UsageError("a GLOB of this kind", hint="other engines have * and ? alone")
    if pattern.name == "*":
        return exp.Not(this=exp.Is(this=node.this, expression=exp.null()))
    text = _ESCAPED.sub(r"\\\g<0>", pattern.name).replace("*", "%").replace("?", "_")
    return exp.Like(this=node.this, expression=exp.Literal.string(text))


def _hexadecimal(node: exp.Expr) -> exp.Expr | None:
    """Return the digits of `('0x' || DIGITS)::INTEGER`; None for anything else."""
    if not isinstance(node, exp.Cast):
        return None
    joined = _bare(node.this)
    if not isinstance(joined, exp.DPipe) or joined.this != exp.Literal.string("0x"):
        return None
    digits: exp.Expr = joined.expression
    return digits


def _for_clickhouse(node: exp.Expr) -> exp.Expr:
    node = _common(node)
    name = _CLICKHOUSE_FUNCTIONS.get(called(node))
    if name is not None:
        return _call(name, *node.expressions)
    digits = _hexadecimal(node)
    if digits is not None:
        return _call("reinterpretAsUInt8", _call("unhex", digits))
    for kind, rewrite in _CLICKHOUSE_NODES.items():
        if isinstance(node, kind):
            return rewrite(node)
    return node


def _clickhouse_column(node: exp.Expr) -> exp.Expr:
    """Name a column of a SELECT: ClickHouse may put the name of its table before its own."""
    is_shown = node.arg_key == "expressions" and isinstance(node.parent, exp.Select)
    if is_shown and isinstance(node, exp.Column) and node.table:
        return exp.alias_(node.copy(), node.name, quoted=True)
    return node


def _clickhouse_window(node: exp.Expr) -> exp.Expr:
    """Let `lag` and `lead` be null at the ends, where ClickHouse has 0 for a type without null."""
    node.set("this", _call("toNullable", node.this))
    return node


def _clickhouse_range(node: exp.Expr) -> exp.Expr:
    ends = [node.args["start"], node.args["end"]]
    step = node.args.get("step")
    if not node.args.get("is_end_exclusive"):
        ends[1] = exp.Add(this=exp.paren(ends[1]), expression=_direction(step))
    known = [_call("assumeNotNull", end) for end in ends]
    return _call("range", *known, *([step] if step is not None else []))


def _direction(step: exp.Expr | None) -> exp.Expr:
    """Return 1 for a step to larger numbers, and -1 for one to smaller ones."""
    one = exp.convert(1)
    if step is None:
        return one
    is_up = exp.GT(this=exp.paren(step.copy()), expression=exp.convert(0))
    return exp.If(this=is_up, true=one, false=exp.convert(-1))


def _clickhouse_element(node: exp.Expr) -> exp.Expr:
    """Let a list have null beyond its end, where ClickHouse has an empty value else."""
    values = node.this.expressions if isinstance(node.this, exp.Array) else []
    if values:
        values[0].replace(_call("toNullable", values[0].copy()))
    return node


def _clickhouse_rounded(node: exp.Expr) -> exp.Expr:
    """Round halves of the exact binary number away from 0, as DuckDB does; `round` does not."""
    places = _decimals(node)
    if places is None:
        return node
    return _call("toFloat64", _call("toDecimalString", node.this, exp.convert(places)))


def _spark_rounded(node: exp.Expr) -> exp.Expr:
    """Round halves of the exact binary number away from 0: Spark rounds those of the decimal one.

    The number is parted into two of half the digits, so that no product is rounded.
    """
    places = _decimals(node)
    if places is None or node.this.find(exp.Query) is not None:  # which no lambda may have
        return node
    scale = 10**places
    whole = f"floor(abs(v) * {scale})"
    upper = f"(abs(v) * {_HALF_OF_DIGITS} - (abs(v) * {_HALF_OF_DIGITS} - abs(v)))"
    rest = f"({upper} * {2 * scale} - (2 * {whole} + 1)) + (abs(v) - {upper}) * {2 * scale}"
    rounded = f"sign(v) * ({whole} + IF({rest} >= 0, 1, 0)) / {scale}"
    made = sqlglot.parse_one(f"transform(array(CAST(x AS DOUBLE)), v -> {rounded})[0]", read=SPARK)
    next(made.find_all(exp.Cast)).this.replace(node.this)
    return made


def _decimals(node: exp.Expr) -> int | None:
    return number_of(node.args.get("decimals") or exp.convert(0))


def _clickhouse_mode(node: exp.Expr) -> exp.Expr:
    """Return the value that is there most often: by the counts of all of them."""
    is_filtered = isinstance(node, exp.Filter)
    if isinstance(node.parent, exp.Filter):
        return node  # which has its turn
    value = node.this.this if is_filtered else node.this
    condition: exp.Expr = exp.Not(this=exp.Is(this=value.copy(), expression=exp.null()))
    if is_filtered:
        condition = exp.and_(condition, node.expression.this)
    counts = _call(
        "sumMapIf",
        exp.Array(expressions=[_call("assumeNotNull", value)]),
        exp.Array(expressions=[_call("toUInt64", exp.convert(1))]),
        condition,
    )
    values, times = (_call("tupleElement", counts.copy(), exp.convert(n)) for n in (1, 2))
    most = _call("indexOf", times, _call("arrayMax", times.copy()))
    return _call(
        "if",
        _call("empty", values),
        exp.null(),
        _call("toNullable", _call("arrayElement", values.copy(), most)),
    )


def _clickhouse_filter(node: exp.Expr) -> exp.Expr:
    return _clickhouse_mode(node) if isinstance(node.this, exp.Mode) else node


def _for_spark(node: exp.Expr) -> exp.Expr:
    """Times are numbers of ns there, as its own have µs, and unsigned ones of 64 bits decimals."""
    node = _common(node)
    function = _SPARK_FUNCTIONS.get(called(node))
    if function is not None:
        return function(node)
    digits = _hexadecimal(node)
    if digits is not None:
        return exp.cast(_call("conv", digits, exp.convert(16), exp.convert(10)), "INT")
    for kind, rewrite in _SPARK_NODES.items():
        if isinstance(node, kind):
            return rewrite(node)
    return node


def _first_argument(node: exp.Expr) -> exp.Expr:
    argument: exp.Expr = node.expressions[0]
    return argument


def _spark_printf(node: exp.Expr) -> exp.Expr:
    if _first_argument(node).name != "%x":
        return node
    text = exp.cast(node.expressions[1], "STRING")
    return _call("lower", _call("conv", text, exp.convert(10), exp.convert(16)))


def _spark_trunc(node: exp.Expr) -> exp.Expr:
    if node.text("unit").upper() != "SECOND":
        return node
    return exp.IntDiv(this=exp.paren(node.this), expression=exp.convert(_NS_PER_SECOND))


def _spark_shift(node: exp.Expr) -> exp.Expr:
    places = number_of(node.expression)
    if places is None:
        return node
    return exp.IntDiv(this=exp.paren(node.this), expression=exp.convert(1 << places))


def _spark_and(node: exp.Expr) -> exp.Expr:
    sides = [
        side if number_of(side) else exp.cast(_bare(side), "BIGINT")
        for side in (node.this, node.expression)
    ]
    return exp.BitwiseAnd(this=sides[0], expression=sides[1])


def _spark_type(node: exp.Expr) -> exp.Expr:
    is_wide = isinstance(node, exp.DataType) and node.is_type(exp.DataType.Type.UBIGINT)
    return exp.DataType.build("DECIMAL(20, 0)") if is_wide else node


def _spark_range(node: exp.Expr) -> exp.Expr:
    """Move the end: sqlglot takes a step from it, and the last number may be nearer than that."""
    step = node.args.get("step")
    if step is not None and node.args.get("is_end_exclusive"):
        nearer = exp.Add(this=exp.paren(node.args["end"]), expression=exp.paren(step.copy()))
        node.set("end", exp.Sub(this=nearer, expression=_direction(step)))
    return node


def _spark_element(node: exp.Expr) -> exp.Expr:
    """Let a list have null beyond its end, where Spark raises an error."""
    node.set("safe", True)  # noqa: FBT003  # of sqlglot
    return node


def _bare(node: exp.Expr) -> exp.Expr:
    return node.this if isinstance(node, exp.Paren) else node


def _call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=[*arguments])


def _operator(name: str) -> Rewrite:
    """Return what writes an operator as a function; a number that is written has 64 bits."""

    def rewrite(node: exp.Expr) -> exp.Expr:
        left = _bare(node.this)
        if isinstance(left, exp.Literal):
            left = _call("toInt64", left)
        return _call(name, left, _bare(node.expression))

    return rewrite


_CLICKHOUSE_FUNCTIONS: Final = {
    "MAKE_TIMESTAMP_NS": "fromUnixTimestamp64Nano",
    "EPOCH_NS": "toUnixTimestamp64Nano",
}
_CLICKHOUSE_NODES: Final[Mapping[type[exp.Expr], Rewrite]] = {
    exp.Column: _clickhouse_column,
    exp.Bracket: _clickhouse_element,
    exp.BitwiseAnd: _operator("bitAnd"),
    exp.BitwiseOr: _operator("bitOr"),
    exp.BitwiseLeftShift: _operator("bitShiftLeft"),
    exp.BitwiseRightShift: _operator("bitShiftRight"),
    exp.Lag: _clickhouse_window,
    exp.Lead: _clickhouse_window,
    exp.GenerateSeries: _clickhouse_range,
    exp.Round: _clickhouse_rounded,
    exp.Mode: _clickhouse_mode,
    exp.Filter: _clickhouse_filter,
    exp.LogicalOr: lambda node: _call("max", node.this),
    exp.ArrayToString: lambda node: _call("arrayStringConcat", node.this, node.expression),
}
_SPARK_FUNCTIONS: Final[Mapping[str, Rewrite]] = {
    "MAKE_TIMESTAMP_NS": _first_argument,
    "EPOCH_NS": _first_argument,
    "PRINTF": _spark_printf,
}
_SPARK_NODES: Final[Mapping[type[exp.Expr], Rewrite]] = {
    exp.TimestampTrunc: _spark_trunc,
    exp.Bracket: _spark_element,
    exp.GenerateSeries: _spark_range,
    exp.BitwiseRightShift: _spark_shift,
    exp.BitwiseAnd: _spark_and,
    exp.Round: _spark_rounded,
    exp.DataType: _spark_type,
}
REWRITES: Final[Mapping[str, Rewrite]] = {
    DUCKDB: _for_duckdb,
    CLICKHOUSE: _for_clickhouse,
    SPARK: _for_spark,
}
