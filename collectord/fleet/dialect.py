# SPDX-License-Identifier: Apache-2.0
"""Statements of DuckDB's SQL: parsed, their parameters filled in, and written for other engines.

sqlglot parses and writes. What it leaves as DuckDB has it is turned here into what every engine
has, or into what one of them has in its place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from collectord.errors import CollectordError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Rewrite = Callable[[exp.Expr], exp.Expr]

DUCKDB: Final = "duckdb"
CLICKHOUSE: Final = "clickhouse"
SPARK: Final = "spark"
_NS_PER_SECOND: Final = 1_000_000_000
_ESCAPED: Final = re.compile(r"[%_\\]")


def parsed(sql: str, values: Mapping[str, int | str] | None = None) -> exp.Query:
    """Return the one SELECT that a text is, with its parameters filled in.

    Raises:
        UsageError: it is not one SELECT, a parameter has no value, or a value is refused.
    """
    try:
        trees = [tree for tree in sqlglot.parse(sql, read=DUCKDB) if tree is not None]
    except SqlglotError as error:
        message = " ".join(str(error).split())
        raise UsageError(f"the statement cannot be read: {_plain(message)}") from error
    if len(trees) != 1:
        raise UsageError(f"{len(trees)} statements", hint="give one SELECT")
    tree = trees[0]
    while isinstance(tree, exp.Subquery):
        tree = tree.this
    if not isinstance(tree, exp.Query):
        raise UsageError("the statement is no SELECT", hint="records are read and never changed")
    return _chosen(_filled(tree, values or {}))


def text_for(tree: exp.Query, dialect: str, sources: Mapping[str, str] | None = None) -> str:
    """Return a statement as an engine reads it.

    Args:
        tree: the statement, which stays as it is.
        dialect: of the engine.
        sources: SELECTs in that dialect, which the statement has as its first parts, by name.

    Raises:
        CollectordError: the engine lacks something that the statement has.
    """
    rewritten = _rewritten(tree.copy(), _REWRITES[dialect])
    if sources:
        first = [
            exp.CTE(
                this=sqlglot.parse_one(text, read=dialect),
                alias=exp.TableAlias(this=exp.to_identifier(name, quoted=True)),
            )
            for name, text in sources.items()
        ]
        with_ = rewritten.args.get("with_") or exp.With(expressions=[])
        with_.set("expressions", [*first, *with_.expressions])
        rewritten.set("with_", with_)
    try:
        return rewritten.sql(dialect=dialect, comments=False, unsupported_level=ErrorLevel.RAISE)
    except SqlglotError as error:
        raise CollectordError(
            f"{dialect} has nothing for a part of the statement: {_plain(str(error))}",
            hint="ask with --engine duckdb",
        ) from error


def unrounded(tree: exp.Query) -> tuple[exp.Query, dict[int, int]]:
    """Return a statement without the `round` of its last columns, and their decimals by number.

    Engines round halves each in its own way: the numbers are rounded here, as DuckDB does. One by
    which rows are grouped or in order stays.
    """
    made = tree.copy()
    decimals: dict[int, int] = {}
    if not isinstance(made, exp.Select):
        return made, decimals
    used = {
        column.name
        for part in ("order", "group", "having", "qualify")
        if (node := made.args.get(part)) is not None
        for column in node.find_all(exp.Column)
    }
    for number, column in enumerate(made.expressions):
        value = column.unalias()
        places = _number(value.args.get("decimals") or exp.convert(0))
        if isinstance(value, exp.Round) and places is not None and column.alias not in used:
            decimals[number] = places
            value.replace(exp.paren(value.this))
    return made, decimals


def transformed(tree: exp.Query, change: Rewrite) -> exp.Query:
    """Return a statement with changes; what is within a change stays as it is."""
    made = tree.transform(change)
    assert isinstance(made, exp.Query)  # noqa: S101  # a change of what is within it
    return made


def _rewritten(tree: exp.Query, rewrite: Rewrite) -> exp.Query:
    """Rewrite each node of a tree, what is within it first."""
    for node in reversed([*tree.dfs()]):
        new = rewrite(node)
        if new is not node and node is not tree:
            node.replace(new)
    return tree


def tables_of(tree: exp.Query) -> set[str]:
    """Return the names of the tables that a statement reads and does not make itself."""
    made = {part.alias.lower() for part in tree.find_all(exp.CTE)}
    named = {table.name for table in tree.find_all(exp.Table) if table.name}
    return {name for name in named if name.lower() not in made}


def with_names(tree: exp.Query, names: Mapping[str, str]) -> exp.Query:
    """Return a statement whose tables have other names, by those in lower case.

    Engines tell names apart by their case, as DuckDB does not, and some know no quoted ones
    without quotes.
    """

    def rename(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Table) or node.name.lower() not in names:
            return node
        node.set("this", exp.to_identifier(names[node.name.lower()], quoted=True))
        return node

    return transformed(tree, rename)


def _plain(message: str) -> str:
    return re.sub(r"\x1b\[\d+m", "", message)


def _filled(tree: exp.Query, values: Mapping[str, int | str]) -> exp.Query:
    def fill(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Placeholder | exp.Parameter):
            return node
        name = node.name
        if name not in values:
            raise UsageError(f"the parameter ${name} has no value")
        value = values[name]
        return exp.Literal.string(value) if isinstance(value, str) else exp.convert(int(value))

    return transformed(tree, fill)


def _chosen(tree: exp.Query) -> exp.Query:
    """Replace each CASE of a value that is known by what it chooses."""

    def choose(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Case) or not isinstance(node.this, exp.Literal):
            return node
        for when in node.args["ifs"]:
            if when.this == node.this:
                chosen: exp.Expr = when.args["true"]
                return chosen
        default = node.args.get("default") or exp.null()
        if _called(default) == "ERROR":
            raise UsageError(default.expressions[0].name)
        return default

    return transformed(tree, choose)


def _called(node: exp.Expr) -> str:
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
        number, places = _number(node.this), _number(node.expression)
        if number is not None and places is not None:
            return exp.Literal.number(number << places)
    return node


def _number(node: exp.Expr) -> int | None:
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
    called = _CLICKHOUSE_FUNCTIONS.get(_called(node))
    if called is not None:
        return _call(called, *node.expressions)
    digits = _hexadecimal(node)
    if digits is not None:
        return _call("reinterpretAsUInt8", _call("unhex", digits))
    for kind, rewrite in _CLICKHOUSE_NODES.items():
        if isinstance(node, kind):
            return rewrite(node)
    return node


def _clickhouse_column(node: exp.Expr) -> exp.Expr:
    """Without another name a column of a SELECT may have that of its table before its own."""
    is_shown = node.arg_key == "expressions" and isinstance(node.parent, exp.Select)
    if is_shown and isinstance(node, exp.Column) and node.table:
        return exp.alias_(node.copy(), node.name, quoted=True)
    return node


def _clickhouse_window(node: exp.Expr) -> exp.Expr:
    """At the ends of what has no null, `lag` and `lead` are 0 there."""
    node.set("this", _call("toNullable", node.this))
    return node


def _clickhouse_range(node: exp.Expr) -> exp.Expr:
    ends = [node.args["start"], node.args["end"]]
    step = node.args.get("step")
    known = [_call("assumeNotNull", end) for end in ends]
    return _call("range", *known, *([step] if step is not None else []))


def _rounded(node: exp.Expr) -> exp.Expr:
    """Round halves of the binary number away from 0, as DuckDB does.

    ClickHouse rounds them to the next even number, and Spark those of the decimal number.
    """
    scale = exp.convert(10 ** (_number(node.args.get("decimals") or exp.convert(0)) or 0))
    scaled = _call("abs", exp.Mul(this=exp.paren(node.this), expression=scale))
    whole = _call("floor", scaled)
    rest = exp.Sub(this=scaled.copy(), expression=whole.copy())
    more = exp.If(
        this=exp.GTE(this=rest, expression=exp.convert(0.5)),
        true=exp.convert(1),
        false=exp.convert(0),
    )
    sign = _call("sign", exp.paren(node.this.copy()))
    total = exp.Mul(this=sign, expression=exp.paren(exp.Add(this=whole.copy(), expression=more)))
    return exp.Div(this=exp.paren(total), expression=scale.copy())


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
    called = _SPARK_FUNCTIONS.get(_called(node))
    if called is not None:
        return called(node)
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
    places = _number(node.expression)
    if places is None:
        return node
    return exp.IntDiv(this=exp.paren(node.this), expression=exp.convert(1 << places))


def _spark_and(node: exp.Expr) -> exp.Expr:
    sides = [
        side if _number(side) else exp.cast(_bare(side), "BIGINT")
        for side in (node.this, node.expression)
    ]
    return exp.BitwiseAnd(this=sides[0], expression=sides[1])


def _spark_type(node: exp.Expr) -> exp.Expr:
    is_wide = isinstance(node, exp.DataType) and node.is_type(exp.DataType.Type.UBIGINT)
    return exp.DataType.build("DECIMAL(20, 0)") if is_wide else node


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
    exp.BitwiseAnd: _operator("bitAnd"),
    exp.BitwiseOr: _operator("bitOr"),
    exp.BitwiseLeftShift: _operator("bitShiftLeft"),
    exp.BitwiseRightShift: _operator("bitShiftRight"),
    exp.Lag: _clickhouse_window,
    exp.Lead: _clickhouse_window,
    exp.GenerateSeries: _clickhouse_range,
    exp.Round: _rounded,
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
    exp.BitwiseRightShift: _spark_shift,
    exp.BitwiseAnd: _spark_and,
    exp.Round: _rounded,
    exp.DataType: _spark_type,
}
_REWRITES: Final[Mapping[str, Rewrite]] = {
    DUCKDB: _for_duckdb,
    CLICKHOUSE: _for_clickhouse,
    SPARK: _for_spark,
}
