# SPDX-License-Identifier: Apache-2.0
"""Statements of DuckDB as other engines read them."""

from __future__ import annotations

import duckdb
import pytest
import sqlglot

from collectord.cli import answer_file
from collectord.fleet.dialect import CLICKHOUSE, DUCKDB, SPARK
from collectord.fleet.per_host_statement import per_host_statement
from collectord.fleet.sql_tree import parsed, text_for
from collectord.programs.parameter import values_of


@pytest.mark.parametrize("engine", [CLICKHOUSE, SPARK])
@pytest.mark.parametrize("name", answer_file.load_all())
def test_every_answer_can_be_written_for_every_engine(name: str, engine: str) -> None:
    """No part of an answer is left that only DuckDB has."""
    one = answer_file.load(name)
    values = values_of(name, one.head.parameter, {})
    tree = per_host_statement(parsed(one.text, values), ("syscall_names", "errno_names"))
    text = text_for(tree, engine).upper()
    for word in ("MAKE_TIMESTAMP_NS", "EPOCH_NS", "MATERIALIZED", "GLOB", "ASOF", "$", "ERROR("):
        assert word not in text
    assert engine == SPARK or not any(sign in text for sign in (" >> ", " << ", " & "))


@pytest.mark.parametrize(
    ("sql", "clickhouse", "spark"),
    [
        (
            "SELECT dev >> 20 FROM t",
            "SELECT bitShiftRight(dev, 20) FROM t",
            "SELECT (dev) DIV 1048576",
        ),
        (
            "SELECT 1 << n FROM t",
            "SELECT bitShiftLeft(toInt64(1), n) FROM t",
            "SELECT SHIFTLEFT(1, n)",
        ),
        ("SELECT round(a, 3) FROM t", "toFloat64(toDecimalString(a, 3))", "TRANSFORM(ARRAY("),
        ("SELECT a::UBIGINT FROM t", "Nullable(UInt64)", "DECIMAL(20, 0)"),
        ("SELECT comm GLOB 'a_b*' FROM t", r"LIKE 'a\\_b%'", r"LIKE 'a\\_b%'"),
        ("SELECT lag(step) OVER (ORDER BY n) FROM t", "lag(toNullable(step))", "LAG(step)"),
        ("SELECT make_timestamp_ns(x) FROM t", "fromUnixTimestamp64Nano(x)", "SELECT x FROM t"),
        (
            "SELECT hex(a)[3:4] FROM t",
            "SUBSTRING(HEX(a), 3, (4) - (3) + 1)",
            "SUBSTRING(HEX(a), 3",
        ),
        ("SELECT unnest(range(a, b)) FROM t", "arrayJoin(range(assumeNotNull(a)", "EXPLODE("),
        (
            "SELECT ['a', 'b'][n::INTEGER + 1] FROM t",
            "[toNullable('a'), 'b'][",
            "TRY_ELEMENT_AT(ARRAY('a', 'b'), CAST(n AS INT) + 1)",
        ),
        (
            "SELECT range(1, 8, 2)",
            "range(assumeNotNull(1), assumeNotNull(8), 2)",
            "SEQUENCE(1, 7, 2)",
        ),
        ("SELECT generate_series(1, 4)", "assumeNotNull((4) + 1))", "SEQUENCE(1, 4)"),
        ("SELECT bool_or(x) FROM t", "max(x)", "BOOL_OR(x)"),
        (
            "WITH a AS MATERIALIZED (SELECT 1 AS x) SELECT x FROM a",
            "WITH a AS (SELECT",
            "WITH a AS (",
        ),
    ],
)
def test_what_only_duckdb_has_is_replaced(sql: str, clickhouse: str, spark: str) -> None:
    """Functions and operators are those of the engine, with the same result."""
    assert clickhouse in text_for(parsed(sql), CLICKHOUSE)
    assert spark in text_for(parsed(sql), SPARK)


def test_halves_are_those_of_the_binary_number() -> None:
    """Spark's own `round` takes the decimal one: what stands for it has DuckDB's result."""
    text = text_for(parsed("SELECT v, round(v, 3) AS r FROM t"), SPARK)
    asked = sqlglot.transpile(text, read=SPARK, write=DUCKDB)[0]
    numbers = (
        "CREATE TABLE t AS SELECT (i - 9000) * 500 / 1e6 AS v FROM range(300000) r(i) "
        "UNION ALL SELECT (i * 7919) / 1e7 FROM range(100000) r(i) UNION ALL SELECT NULL"
    )
    with duckdb.connect(":memory:") as connection:
        connection.execute(numbers)
        different = connection.execute(
            f"SELECT v, r, round(v, 3) FROM ({asked}) WHERE r IS DISTINCT FROM round(v, 3)"  # noqa: S608
        ).fetchall()
    assert different == []
