# SPDX-License-Identifier: Apache-2.0
"""Statements of DuckDB: what is filled in, refused and taken out of them."""

from __future__ import annotations

import pytest

from collectord.errors import UsageError
from collectord.fleet.dialect import DUCKDB, SPARK
from collectord.fleet.sql_tree import parsed, tables_of, text_for, with_names


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


def test_tables_have_the_names_of_the_store() -> None:
    """A statement may write them in other letters; parts that it makes itself stay."""
    tree = parsed('WITH own AS (SELECT * FROM SCHED_switch) SELECT * FROM own, "page-faults"')
    assert tables_of(tree) == {"SCHED_switch", "page-faults"}
    renamed = with_names(tree, {"sched_switch": "sched_switch"})
    assert tables_of(renamed) == {"sched_switch", "page-faults"}
