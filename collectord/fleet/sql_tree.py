# SPDX-License-Identifier: Apache-2.0
"""Trees of statements in DuckDB's SQL: parsed, changed, and written for each engine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from collectord.errors import CollectordError, UsageError
from collectord.fleet.dialect import DUCKDB, REWRITES, called

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord.fleet.dialect import Rewrite

TIME: Final = "time"


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
        hint = "records are read and never changed"
        raise UsageError("the statement is not a SELECT", hint=hint)
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
    rewritten = _rewritten(tree.copy(), REWRITES[dialect])
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


def orders_by_time(tree: exp.Query) -> bool:
    """Whether a statement puts records in an order by their times, or compares these."""
    if any(
        column.name.lower() == TIME
        for one in tree.find_all(exp.Ordered)
        for column in one.find_all(exp.Column)
    ):
        return True
    return any(
        len({column.table for column in one.find_all(exp.Column) if column.name.lower() == TIME})
        > 1
        for one in tree.find_all(exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Sub, exp.Between)
    )


def orders_at_the_end(tree: exp.Query) -> bool:
    """Whether the last rows of an answer, which are of several hosts, are in an order by time."""
    order = tree.args.get("order")
    return order is not None and any(
        column.name.lower() == TIME for column in order.find_all(exp.Column)
    )


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
        if called(default) == "ERROR":
            raise UsageError(default.expressions[0].name)
        return default

    return transformed(tree, choose)
