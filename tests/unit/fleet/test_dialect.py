# SPDX-License-Identifier: Apache-2.0
"""Statements of DuckDB as other engines read them."""

from __future__ import annotations

import pytest

from collectord.cli import answer_file
from collectord.errors import UsageError
from collectord.fleet import dialect
from collectord.fleet.dialect import CLICKHOUSE, DUCKDB, SPARK, parsed, text_for, unrounded
from collectord.fleet.lift import over_hosts
from collectord.programs.parameter import values_of


@pytest.mark.parametrize("engine", [CLICKHOUSE, SPARK])
@pytest.mark.parametrize("name", answer_file.load_all())
def test_every_answer_can_be_written_for_every_engine(name: str, engine: str) -> None:
    """No part of an answer is left that only DuckDB has."""
    one = answer_file.load(name)
    values = values_of(name, one.head.parameter, {})
    tree = over_hosts(parsed(one.text, values), ("syscall_names", "errno_names"))
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


def test_a_parameter_is_a_value_and_chooses_what_is_carried_out() -> None:
    """Its text never becomes a part of the statement, and a value that is refused is told."""
    sql = "SELECT CASE $order WHEN 'a' THEN x WHEN 'b' THEN y ELSE error('a or b') END FROM t"
    assert text_for(parsed(sql, {"order": "b"}), DUCKDB) == "SELECT y FROM t"
    with pytest.raises(UsageError, match="a or b"):
        parsed(sql, {"order": "c"})
    text = text_for(parsed("SELECT $x AS v FROM t", {"x": "'; DROP"}), SPARK)
    assert text == r"SELECT '\'; DROP' AS v FROM t"
    with pytest.raises(UsageError, match=r"\$x has no value"):
        parsed("SELECT $x", {})


@pytest.mark.parametrize(
    "sql", ["DELETE FROM t", "SELECT 1; SELECT 2", "SELEC", "CREATE TABLE x (a INT)"]
)
def test_only_one_select_is_taken(sql: str) -> None:
    """Anything else is refused before any engine hears of it."""
    with pytest.raises(UsageError):
        parsed(sql)


def test_last_columns_are_rounded_here_unless_rows_depend_on_it() -> None:
    """Engines round halves in several ways."""
    sql = "SELECT round(a / 1e6, 3) AS a_ms, round(b, 1) AS c FROM t ORDER BY c"
    tree, decimals = unrounded(parsed(sql))
    assert decimals == {0: 3}
    assert "ROUND(b, 1)" in tree.sql(DUCKDB).upper().replace("B", "b")


def test_tables_have_the_names_of_the_store() -> None:
    """A statement may write them in other letters; parts that it makes itself stay."""
    tree = parsed('WITH own AS (SELECT * FROM SCHED_switch) SELECT * FROM own, "page-faults"')
    assert dialect.tables_of(tree) == {"SCHED_switch", "page-faults"}
    renamed = dialect.with_names(tree, {"sched_switch": "sched_switch"})
    assert dialect.tables_of(renamed) == {"sched_switch", "page-faults"}
