# SPDX-License-Identifier: Apache-2.0
"""`collectord query`: one SELECT over records, and nothing else."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from collectord.cli import query
from collectord.cli.times import parse_time
from collectord.errors import CollectordError, SinkError, UsageError
from collectord.text.units import NS_PER_SECOND
from tests.support.ftrace_pages import event, page
from tests.support.query_files import switch, switches, write_trace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A file with five task switches and a loss."""
    path = tmp_path / "trace.dat"
    escaping = page(3000, event(switch(9, next_comm=b"a\x1b[31mb"), 10))
    write_trace(
        path,
        {0: [switches(1000, 5, 6), switches(2000, 5, lost=4)], 1: [switches(1500, 7), escaping]},
    )
    return str(path)


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> list[Any]:
    assert query.run(["--json", *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_rows_are_grouped_and_sorted(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer is the statement's, in its order, and losses are told on stderr."""
    statement = "SELECT next_pid, count(*) n FROM sched_switch GROUP BY 1 ORDER BY n DESC, 1 -- x"
    assert query.run([statement, trace]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "next_pid  n",
        *(f"{pid:>8}  {n}" for pid, n in ((5, 2), (6, 1), (7, 1), (9, 1))),
    ]
    assert "4 records of" in captured.err


def test_a_table_is_read_twice(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A statement may join a table with itself; its losses count once."""
    statement = "SELECT count(*) n FROM sched_switch a JOIN sched_switch b USING (mono_ns)"
    assert query.run([statement, trace]) == 0
    captured = capsys.readouterr()
    assert captured.out.split() == ["n", "5"]
    assert "4 records of" in captured.err


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT next_pid FROM sched_switch ORDER BY mono_ns LIMIT 1",
        "FROM (SELECT * FROM sched_switch) SELECT next_pid ORDER BY mono_ns LIMIT 1",
        "WITH s AS (FROM SCHED_SWITCH) SELECT s.next_pid FROM s ORDER BY s.mono_ns LIMIT 1",
        "SELECT t.next_pid FROM (SELECT s AS t FROM sched_switch s ORDER BY mono_ns LIMIT 1)",
        "SELECT COLUMNS('next_p.d') FROM sched_switch ORDER BY mono_ns LIMIT 1",
        (
            "SELECT a.next_pid FROM sched_switch a NATURAL JOIN "
            "(SELECT mono_ns FROM sched_switch) ORDER BY a.mono_ns LIMIT 1"
        ),
    ],
)
def test_columns_are_found_however_they_are_named(
    statement: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stars, whole rows, subqueries, patterns and joins decode what they need."""
    assert _json(capsys, statement, trace) == [{"next_pid": 5}]


def test_stamps_are_whole_and_text_is_visible(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An escape sequence is not printed as one."""
    statement = "SELECT make_timestamp_ns(1234567891) t, next_comm c FROM sched_switch LIMIT 1"
    (row,) = _json(capsys, statement + " OFFSET 4", trace)
    assert row == {"t": "1970-01-01 00:00:01.234567891", "c": "a\x1b[31mb"}
    query.run(["SELECT next_comm FROM sched_switch WHERE next_pid = 9", trace])
    assert "a\\x1b[31mb" in capsys.readouterr().out


def test_wide_rows_are_printed_one_value_a_line(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line is wider than 80 columns."""
    query.run(["FROM sched_switch", trace])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "row 1"
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("row ") for line in lines) == 5


def test_csv_and_parquet(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both have the rows; a file that exists is not replaced."""
    assert query.run(["--csv", "SELECT next_pid p, 'a,b' FROM sched_switch LIMIT 1", trace]) == 0
    assert capsys.readouterr().out.splitlines() == ["p,\"'a,b'\"", '5,"a,b"']
    target = tmp_path / "it's.parquet"
    assert query.run(["--parquet", str(target), "FROM sched_switch", trace]) == 0
    with duckdb.connect() as connection:
        assert connection.read_parquet(str(target)).count("cpu").fetchall() == [(5,)]
    with pytest.raises(UsageError, match="exists"):
        query.run(["--parquet", str(target), "FROM sched_switch", trace])


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("SELECT 1; SELECT 2", "2 statements"),
        ("", "0 statements"),
        ("CREATE TABLE x (a int)", "not a SELECT"),
        ("SET threads = 1", "not a SELECT"),
        ("COPY (SELECT 1) TO '/tmp/x'", "not a SELECT"),
        ("SELECT * FROM read_text('/etc/passwd')", "disabled"),
        ("SELECT * FROM '/etc/passwd'", "does not exist"),
        ("SELECT * FROM glob('/*')", "disabled"),
        ("SELEC 1", "syntax error"),
        ("FROM sched_swich", 'did you mean "sched_switch"'),
        ("WITH sched AS (FROM sched_swich) FROM sched", 'did you mean "sched_switch"'),
        ("SELECT next_pidd FROM sched_switch", 'did you mean "next_pid"'),
        ("SELECT s.next_pidd AS cpus FROM sched_switch s", 'did you mean "next_pid"'),
        ("SELECT next_pid + nothing_like_it FROM sched_switch", "lists the columns"),
    ],
)
def test_everything_else_is_refused(statement: str, told: str, trace: str) -> None:
    """Files, settings and names that do not exist: an error of one line that says what to do."""
    with pytest.raises(CollectordError) as caught:
        query.run([statement, trace])
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_of_the_statement_itself_are_known(trace: str) -> None:
    """An error of another kind has no hint at a table or a column that the statement makes."""
    with pytest.raises(UsageError) as caught:
        query.run(["WITH own AS (SELECT 1 AS n) SELECT no_such_function(n) FROM own", trace])
    assert caught.value.hint == ""


def test_a_deep_statement_is_no_crash(trace: str) -> None:
    """It is answered, or refused in one line: versions of DuckDB differ in how deep one may be."""
    told = ""
    try:
        assert query.run(["SELECT " + "(" * 3000 + "1" + ")" * 3000, trace]) == 0
    except CollectordError as error:
        told = str(error)
    assert "\n" not in told


def test_the_schema_lists_tables(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each column of each table, with what it is."""
    assert query.run(["--schema", "--json", trace]) == 0
    told = json.loads(capsys.readouterr().out)["columns"]
    assert {row["table"] for row in told} >= {"sched_switch", "losses", "damage", "segments"}
    assert {"table": "sched_switch", "column": "prev_state", "type": "i64"} in told
    assert query.run(["--schema", "--csv", trace]) == 0
    assert "\r\nsched_switch,prev_state,i64\r\n" in capsys.readouterr().out
    with pytest.raises(UsageError, match="--schema and --parquet do not go together"):
        query.run(["--schema", "--parquet", "x.parquet", trace])


def test_segments_are_a_table(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without a manifest has its path and its size."""
    (row,) = _json(capsys, "SELECT path, state, started FROM segments", trace)
    assert row == {"path": trace, "state": "unknown", "started": None}


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing one is an error, and one of another format is told."""
    with pytest.raises(SinkError):
        query.run(["FROM losses", str(tmp_path / "none")])
    other = tmp_path / "other"
    other.write_bytes(bytes(200))
    assert query.run(["SELECT count(*) FROM losses", str(other)]) == 0
    assert "1 file was not read" in capsys.readouterr().err


def test_without_duckdb_the_verb_says_what_to_install(
    trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra is named."""
    real = builtins.__import__

    def without(name: str, *args: Any, **others: Any) -> Any:  # noqa: ANN401  # of __import__
        if name == "duckdb":
            raise ImportError(name)
        return real(name, *args, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CollectordError, match=r"collectord\[query\]"):
        query.run(["FROM losses", trace])


def test_nothing_else_loads_the_decoder_or_duckdb() -> None:
    """The daemon, and the verbs before they have a statement, do not load them."""
    code = (
        "import sys, collectord.daemon.daemon, collectord.cli.run, collectord.cli.events\n"
        "assert not {'duckdb', 'collectord._native._columns'} & {*sys.modules}\n"
        "import collectord.cli.query, collectord.cli.answer, collectord.cli.flame\n"
        "assert not {'duckdb', 'symbolic', 'itanium_demangler'} & {*sys.modules}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_times() -> None:
    """RFC 3339 with fractions, a time of today, and a time before now."""
    assert parse_time("1970-01-01T00:00:01.000000002Z") == NS_PER_SECOND + 2
    assert abs(parse_time("-10m") - (time.time_ns() - 600 * NS_PER_SECOND)) < 60 * NS_PER_SECOND
    at = datetime.fromtimestamp(parse_time("9:05") / NS_PER_SECOND, tz=UTC).astimezone()
    assert (at.hour, at.minute, at.second) == (9, 5, 0)
    for word in ("", "-", "25:00", "yesterday", "-10"):
        with pytest.raises(UsageError):
            parse_time(word)


def test_times_before_now_may_follow_their_option(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--since -10m` is no option of its own; a file without a clock is left out and told."""
    assert query.run(["--since", "-10m", "SELECT count(*) n FROM sched_switch", trace]) == 0
    captured = capsys.readouterr()
    assert captured.out.split() == ["n", "0"]
    assert "was left out" in captured.err
