# SPDX-License-Identifier: Apache-2.0
"""The engines that answer a statement over the objects of a store: a table, one module each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.fleet import dialect
from collectord.fleet.engines import clickhouse, duck, spark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack

    from collectord.fleet.engines.place import Place
    from collectord.fleet.question import Question
    from collectord.reader.sql import Answered


class Engine(NamedTuple):
    """The operations of an engine.

    Attributes:
        dialect: of its SQL.
        text_of: the statement that it gets.
        ask: carries a question out, whose result has these columns {name, DuckDB's type}. What it
            opens is closed with the stack. Raises CollectordError.
    """

    dialect: str
    text_of: Callable[[Question, Place], str]
    ask: Callable[[Question, Place, Sequence[tuple[str, str]], ExitStack], Answered]


ENGINES: Final = {
    "duckdb": Engine(dialect.DUCKDB, duck.text_of, duck.ask),
    "clickhouse": Engine(dialect.CLICKHOUSE, clickhouse.text_of, clickhouse.ask),
    "spark": Engine(dialect.SPARK, spark.text_of, spark.ask),
}
