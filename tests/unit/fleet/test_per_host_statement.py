# SPDX-License-Identifier: Apache-2.0
"""A question to one host becomes the same question to each of many."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import duckdb
import pytest

from collectord.cli import answer_file
from collectord.errors import UsageError
from collectord.fleet import dialect, sql_tree
from collectord.fleet.per_host_statement import per_host_statement
from collectord.programs.parameter import values_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    Rows = list[tuple[object, ...]]

# It makes a store of several hosts for most tests.
pytestmark = pytest.mark.slow

_HOSTS: Final = ("a", "b", "c")
_ROWS: Final = {
    host: [(n, (n * seed) % 5, (n * 7 + seed) % 11) for n in range(20)]
    for seed, host in enumerate(_HOSTS, start=1)
}


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a database with a table of three hosts, and one that is the same for all."""
    with duckdb.connect(":memory:") as made:
        made.execute("CREATE TABLE t (n INTEGER, k INTEGER, v INTEGER, host VARCHAR)")
        for host, rows in _ROWS.items():
            made.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", [[*row, host] for row in rows])
        made.execute(
            "CREATE TABLE names AS SELECT i AS k, 'name ' || i AS name FROM range(5) r(i)"
        )
        made.execute(
            "CREATE TABLE hosts AS SELECT 'a' AS host, 'x' AS role UNION ALL "
            "SELECT 'b', 'x' UNION ALL SELECT 'c', 'y'"
        )
        yield made


def _lifted(sql: str, *by: str) -> str:
    tree = per_host_statement(sql_tree.parsed(sql), ("names",), by or ("host",))
    return sql_tree.text_for(tree, dialect.DUCKDB)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT k, v FROM t",
        "SELECT count(*) FROM t",
        "SELECT k, sum(v) FROM t GROUP BY k",
        "SELECT k, sum(v) FROM t GROUP BY ALL",
        "SELECT DISTINCT k FROM t",
        "SELECT n, lag(v) OVER (PARTITION BY k ORDER BY n) FROM t",
        "SELECT n, lag(v) OVER w, lead(v) OVER w FROM t WINDOW w AS (PARTITION BY k ORDER BY n)",
        "SELECT n, v, best FROM t, (SELECT max(v) AS best FROM t) m",
        "WITH m AS (SELECT k, max(v) AS b FROM t GROUP BY k) SELECT n, b FROM t JOIN m USING (k)",
        (
            "WITH m AS (SELECT k, max(v) AS best FROM t GROUP BY k) "
            "SELECT t.n, best FROM t LEFT JOIN m ON m.k = t.k AND t.v > 5"
        ),
        "SELECT n FROM t WHERE v = (SELECT max(t.v) FROM t WHERE t.k < 3)",
        "SELECT n FROM t WHERE EXISTS (SELECT 1 FROM t o WHERE o.v > t.v AND o.k = t.k)",
        "SELECT n FROM t WHERE v IN (SELECT max(v) FROM t GROUP BY k)",
        "SELECT n, CASE WHEN EXISTS (SELECT 1 FROM t o WHERE o.n = t.v) THEN 1 END FROM t",
        "SELECT n, name FROM t JOIN names ON names.k = t.k",
        "SELECT n FROM t UNION ALL SELECT v FROM t",
        "SELECT * FROM (SELECT k, count(*) AS c FROM t GROUP BY k)",
        "SELECT k FROM t GROUP BY k HAVING sum(v) > 10",
    ],
)
def test_each_host_gives_the_rows_that_it_gives_alone(
    connection: duckdb.DuckDBPyConnection, sql: str
) -> None:
    """Whatever a statement has, its rows of a host are those of a database of this host alone."""
    found = connection.execute(_lifted(sql)).fetchall()
    names = [column[0] for column in connection.description]
    at = names.index("host")
    for host, rows in _ROWS.items():
        with duckdb.connect(":memory:") as alone:
            alone.execute("CREATE TABLE t (n INTEGER, k INTEGER, v INTEGER)")
            alone.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
            alone.execute(
                "CREATE TABLE names AS SELECT i AS k, 'name ' || i AS name FROM range(5) r(i)"
            )
            expected = alone.execute(sql).fetchall()
        own = [(*row[:at], *row[at + 1 :]) for row in found if row[at] == host]
        assert sorted(own, key=str) == sorted(expected, key=str)
    assert len({row[at] for row in found}) == len(_HOSTS)


def test_rows_are_of_labels_or_of_all_hosts_together(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """The last groups are by labels of hosts, or by none, and what is below stays by host."""
    sql = "SELECT count(*) AS n, sum(v) AS total FROM t"
    by_role = connection.execute(_lifted(sql, "role")).fetchall()
    assert sorted(row[:2] for row in by_role) == [("x", 40), ("y", 20)]
    tree = per_host_statement(sql_tree.parsed(sql), ("names",), ())
    together = connection.execute(sql_tree.text_for(tree, dialect.DUCKDB)).fetchall()
    assert [row[0] for row in together] == [60]


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("SELECT k FROM names UNION ALL SELECT k FROM t", "a UNION of rows of hosts and others"),
        ("SELECT 1 FROM names LEFT JOIN t ON t.k = names.k", "an outer join of what has no host"),
        ("SELECT k FROM names WHERE k IN (SELECT k FROM t)", "a subquery about hosts"),
    ],
)
def test_what_is_of_no_host_is_refused(sql: str, problem: str) -> None:
    """A part that would put hosts together with what has none is named, and never guessed."""
    with pytest.raises(UsageError, match=re.escape(problem)):
        _lifted(sql)


@pytest.mark.parametrize("name", answer_file.load_all())
def test_all_shipped_answers_can_be_asked_of_each_host(name: str) -> None:
    """Each answer has the host before its columns, and a group of it where it has groups."""
    one = answer_file.load(name)
    values = values_of(name, one.head.parameter, {})
    text = per_host_statement(
        sql_tree.parsed(one.text, values), ("syscall_names", "errno_names")
    ).sql()
    assert '"host" AS "host"' in text
