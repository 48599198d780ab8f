# SPDX-License-Identifier: Apache-2.0
"""`collectord answer`: SQL files with a head and parameters, and their events."""

from __future__ import annotations

import json
import os
import re
import shlex
import struct
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from collectord.cli import answer, answer_file, answer_session, record_config, record_options
from collectord.codec.ftrace_format import parse_format
from collectord.codec.syscall_names import syscall_names
from collectord.config.load import load
from collectord.errors import CollectordError, ConfigError, UsageError
from collectord.reader.sql import named_in
from tests.support.ftrace_pages import event, page
from tests.support.golden import GOLDEN
from tests.support.query_files import switch, switches, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.cli.answer_file import AnswerFile

LONGEST_SUMMARY: Final = 55
HEAD: Final = '-- summary = "switches"\n-- needs = [["sched:sched_switch"]]\n'
STATEMENT: Final = "SELECT next_pid FROM sched_switch ORDER BY mono_ns\n"
SHIPPED: Final = {
    name: one
    for name, one in answer_file.load_all().items()
    if not isinstance(one, ConfigError) and one.origin == "shipped"
}


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Switches on two CPUs to threads 5, 6 and 7, one with a name that escapes, and a loss."""
    path = tmp_path / "trace.dat"
    name = b"\x1b[31m" + b"n" * 10
    pages = [page(3000, event(switch(7, next_comm=name), 10), event(switch(5), 10))]
    write_trace(
        path,
        {0: [switches(1000, 5, 6), switches(2000, 5, lost=4)], 1: [switches(1500, 7), *pages]},
    )
    return str(path)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder for answers of one's own."""
    folder = tmp_path / "own"
    folder.mkdir()
    return folder


def _rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert answer.run(["--json", *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("one", SHIPPED.values(), ids=SHIPPED)
def test_a_shipped_answer_decodes_only_what_it_names(one: AnswerFile) -> None:
    """It has no star and no name that stands for a whole row, and reads all that it needs."""
    with duckdb.connect() as connection:
        (text,) = connection.execute("SELECT json_serialize_sql(?)", [one.text]).fetchall()[0]
        (statement,) = connection.extract_statements(one.text)
    named = named_in(json.loads(text))
    assert not named.everything
    assert named.tables >= {event.partition(":")[2] for event in one.head.events}
    assert set(statement.named_parameters) == set(one.head.parameter)
    assert len(one.head.summary) <= LONGEST_SUMMARY


@pytest.mark.parametrize("one", SHIPPED.values(), ids=SHIPPED)
def test_without_its_events_it_says_how_to_record_them(
    one: AnswerFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line parses, and the session loads, for each list that it needs."""
    other = tmp_path / "trace.dat"
    other.write_bytes(bytes(200))
    assert answer.run([one.name, str(other)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert f"{one.name} needs " in told.err
    commands = re.findall(r"^ +collectord record (.*)$", told.err, re.MULTILINE)
    assert len(commands) == len(one.head.needs)
    for command, need in zip(commands, one.head.needs, strict=True):
        args, words = record_options.parse(shlex.split(command))
        assert not words
        (session,) = record_config.config_of(args, with_command=False).session
        asked = {event.partition(":")[2] for event in need}
        assert asked <= {*re.findall(r"[\w-]+", repr(session))}
    pieces = re.split(r"^\S.*\n", told.err, flags=re.MULTILINE)
    sessions = [piece for piece in pieces if "[[session]]" in piece]
    assert len(sessions) == len(one.head.needs)
    for text in sessions:
        path = tmp_path / "collectord.toml"
        path.write_text(text)
        assert [session.name for session in load([path]).session] == [one.name]


def test_cpu_time_is_counted(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """From one switch to the next: the sums of all threads are the time of both CPUs."""
    rows = _rows(capsys, "cpu-share", trace)
    assert {row["tid"] for row in rows} == {5, 6, 7, 77}
    assert abs(sum(row["percent_of_all"] for row in rows) - 100) < 0.5
    assert answer.run(["cpu-share", trace]) == 0
    assert "4 records of" in capsys.readouterr().err


def test_calls_are_paired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A call has its name, its error, and the time between its two records."""
    path = tmp_path / "trace.dat"
    numbers = {name: number for number, name in syscall_names(os.uname().machine).items()}
    calls = [("openat", -2), ("openat", 3), ("getppid", 1)]
    events = [piece for name, result in calls for piece in _call(numbers[name], result)]
    write_trace(path, {0: [page(1000, *events)]})
    rows = _rows(capsys, "syscalls", str(path))
    shown = {row["syscall"]: (row["calls"], row["errors"], row["total_ms"]) for row in rows}
    assert shown == {"openat": (2, 1, 2.0), "getppid": (1, 0, 1.0)}
    (opens,) = _rows(capsys, "opens", str(path))
    assert (opens["opens"], opens["failed"], opens["error"]) == (2, 1, "ENOENT")


def _call(number: int, result: int) -> list[bytes]:
    common = struct.Struct("<HBBi")
    enter = common.pack(_id("sys_enter"), 0, 0, 77) + struct.pack("<q6Q", number, *[0] * 6)
    leave = common.pack(_id("sys_exit"), 0, 0, 77) + struct.pack("<qq", number, result)
    return [event(enter, 10), event(leave, 1_000_000)]


def _id(name: str) -> int:
    return parse_format((GOLDEN / f"{name}.format").read_bytes()).id


def test_parameters_are_bound(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A value is a value, whatever it looks like; a wrong one is refused with its meaning."""
    comm = "' OR 1=1; DROP TABLE gaps; --"
    assert _rows(capsys, "off-cpu", trace, "--param", f"comm={comm}") == []
    assert len(_rows(capsys, "cpu-share", trace, "--param", "limit=2")) == 2
    for words, told in (
        ("limits=2", 'did you mean "limit"'),
        ("limit=0", "the most rows"),
        ("limit=x", "not an integer"),
        ("by=both", "by is thread or name"),
        ("limit", "is not NAME=VALUE"),
    ):
        with pytest.raises(UsageError, match=re.escape(told)):
            answer.run(["cpu-share", trace, "--param", words])


def test_csv_and_parquet(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both have the rows that the parameters choose."""
    target = tmp_path / "out.parquet"
    words = ["cpu-share", trace, "--param", "limit=2"]
    assert answer.run([*words, "--parquet", str(target)]) == 0
    with duckdb.connect() as connection:
        assert connection.read_parquet(str(target)).count("tid").fetchall() == [(2,)]
    assert answer.run([*words, "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_an_answer_that_does_not_exist() -> None:
    """The nearest name is told."""
    with pytest.raises(UsageError, match="run-queue"):
        answer.run(["run-queu"])
    with pytest.raises(UsageError):
        answer.run(["list", "somewhere"])


def test_ones_own_answer_takes_the_place_of_a_shipped_one(
    own: Path, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`list` says where it comes from, and --show prints it."""
    (own / "cpu-share.sql").write_text(HEAD + STATEMENT)
    place = ("--answer-dir", str(own))
    assert _rows(capsys, "cpu-share", trace, *place)[0] == {"next_pid": 5}
    assert answer.run(["list", "--json", *place]) == 0
    told = {one["name"]: one for one in json.loads(capsys.readouterr().out)["answers"]}
    assert told["cpu-share"]["origin"] == "local"
    assert told["run-queue"]["origin"] == "shipped"
    assert answer.run(["cpu-share", "--show", *place]) == 0
    assert capsys.readouterr().out == HEAD + STATEMENT


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a", "SELECT 1", "missing required field summary"),
        ("a", "-- summary = 1\n", "expected a string"),
        ("a", '-- summary = "x"\n-- needs = []\nSELECT 1', "names no event"),
        ("a", '-- summary = "x"\n-- needs = [["sched"]]\n', "is not a valid event"),
        ("a", HEAD + '-- optional = ["a:b"]\n', "lacks a:b"),
        ("a", '-- summary = "x"\n-- needs = [["a:b", "c:b"]]\n', "two events have one name"),
        ("a", HEAD + '-- rendr = "table"\n', 'did you mean "render"'),
        ("a", HEAD + '-- [columns."a:b"]\n-- x = "INTEGER"\n', "no such event"),
        ("a", HEAD + '-- [columns."sched:sched_switch"]\n-- x = "INT"\n', "is unknown"),
        ("a", HEAD + '-- [parameter.x]\n-- type = "int"\n-- help = ""\n-- default = 1\n', "must"),
        ("a", HEAD + "-- [compare]\n-- keys = []\n-- [compare.measures]\n", "names no column"),
        ("a", HEAD + '-- [compare]\n-- keys = ["x"]\n-- measures = {x = "sum"}\n', "a key and a"),
        (
            "a",
            HEAD + '-- [compare]\n-- keys = ["x"]\n-- measures = {n = "avg"}\n',
            "not a known measure",
        ),
        ("A", HEAD + STATEMENT, "not a valid name"),
        ("list", HEAD + STATEMENT, "not a valid name"),
        ("a", HEAD + "x" * (64 << 10), "has more than"),
        ("a", HEAD + "-- \udcff", "not UTF-8"),
    ],
)
def test_files_that_make_no_answer(
    name: str, text: str, told: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the file and what is wrong; the others are listed nevertheless."""
    path = own / f"{name}.sql"
    path.write_bytes(text.encode(errors="surrogateescape"))
    words = ["--answer-dir", str(own)]
    if name != "list":
        with pytest.raises(ConfigError, match=re.escape(told)) as caught:
            answer.run([name, *words])
        assert str(path) in str(caught.value)
    assert answer.run(["list", "--json", *words]) == 0
    listed = json.loads(capsys.readouterr().out)["answers"]
    (broken,) = (one for one in listed if "problem" in one)
    assert told in broken["problem"]
    assert len(listed) == len(SHIPPED) + 1


def test_links_are_not_followed(own: Path, tmp_path: Path) -> None:
    """A link to an answer is none."""
    (tmp_path / "real.sql").write_text(HEAD + STATEMENT)
    (own / "linked.sql").symlink_to(tmp_path / "real.sql")
    with pytest.raises(ConfigError, match="is a link"):
        answer.run(["linked", "--answer-dir", str(own)])


def test_an_answer_cannot_read_files(own: Path, trace: str) -> None:
    """It is one SELECT over records, as a query is."""
    for statement in ("SELECT * FROM read_text('/etc/passwd')", "SELECT 1; SELECT 2", "SET x = 1"):
        (own / "a.sql").write_text(f"{HEAD}{statement}")
        with pytest.raises(CollectordError):
            answer.run(["a", trace, "--answer-dir", str(own)])


def test_tables_fit_and_escape_nothing(
    own: Path, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long text is shortened to 80 columns, JSON has all of it, and no escape is printed."""
    statement = "SELECT next_comm, repeat('x', 100) || 'end' AS long FROM sched_switch\n"
    (own / "a.sql").write_text(HEAD + statement)
    words = ["a", trace, "--answer-dir", str(own)]
    assert answer.run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.endswith("end") for line in lines[1:])
    assert any("\\x1b[31m" in line for line in lines)
    assert "\x1b" not in "".join(lines)
    assert len(_rows(capsys, *words)[0]["long"]) == 103


def test_a_histogram_has_bars(own: Path, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They are relative to the largest number of the last column."""
    head = HEAD + '-- render = "histogram"\n'
    statement = "SELECT next_pid, count(*) AS n FROM sched_switch GROUP BY 1 ORDER BY 1\n"
    (own / "a.sql").write_text(head + statement)
    assert answer.run(["a", trace, "--answer-dir", str(own)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("#") for line in lines] == [0, 40, 14, 27]
    assert max(map(len, lines)) <= 80


def test_a_timeline_has_a_line_for_each_lane(
    own: Path, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slots without a row are blank; other columns are refused."""
    head = HEAD + '-- render = "timeline"\n'
    rows = "(VALUES ('a\x1b', 0, 8), ('a\x1b', 2, 4), ('b', 1, 1)) AS v(lane, slot, load)"
    (own / "a.sql").write_text(f"{head}FROM {rows} SELECT lane, slot, load\n")
    assert answer.run(["a", trace, "--answer-dir", str(own)]) == 0
    assert capsys.readouterr().out.splitlines() == ["a\\x1b  |@ =|", "b      | .|"]
    (own / "a.sql").write_text(f"{head}SELECT 1\n")
    with pytest.raises(UsageError, match="timeline of 1 columns"):
        answer.run(["a", trace, "--answer-dir", str(own)])


def test_stacks_are_a_tree(own: Path, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The largest first, each with the share of all beneath it; what is always together is one."""
    head = HEAD + '-- render = "stacks"\n'
    rows = {
        "a;main;work;spin": 5_000,
        "a;main;work;sort": 3_000,
        "a;main;idle_[k]": 1_000,
        f"b\x1b;{'x' * 90};y": 990,
        "b\x1b;small": 10,
    }
    values = ", ".join(f"('{stack}', {value})" for stack, value in rows.items())
    (own / "a.sql").write_text(f"{head}FROM (VALUES {values}) AS v(stack, n) SELECT stack, n\n")
    words = ["a", trace, "--answer-dir", str(own)]
    assert answer.run(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        "     n   share  stack",
        " 9,000   90.0%  a;main",
        " 8,000   80.0%   work",
        " 5,000   50.0%    spin",
        " 3,000   30.0%    sort",
        " 1,000   10.0%   idle_[k]",
        " 1,000   10.0%  b\\x1b;",
        f"                {'x' * 31}…{'x' * 31};",
        "                y",
        "   ...          below 1% and not shown",
    ]
    (own / "a.sql").write_text(f"{head}FROM (VALUES {values}) AS v(stack, n) SELECT stack, 'x'\n")
    with pytest.raises(UsageError, match="'x' is not a number"):
        answer.run(words)
    (own / "a.sql").write_text(f"{head}SELECT 1\n")
    with pytest.raises(UsageError, match="stacks of 1 columns"):
        answer.run(words)


def test_a_tree_has_no_more_lines_than_one_reads(
    own: Path, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The least shares are left out first, then the lines that are far below."""
    head = HEAD + '-- render = "stacks"\n'
    text = "SELECT 'all;f' || range, 15 + range % 2 FROM range(65)\n"
    (own / "a.sql").write_text(f"{head}{text}")
    assert answer.run(["a", trace, "--answer-dir", str(own)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["1,007", "100.0%", "all"], ["...", "below", "2%", "and", "not", "shown"]]  # fmt: skip
    deep = ";".join(f"{number}{'f' * 60}" for number in range(127))
    (own / "a.sql").write_text(f"{head}SELECT '{deep}', 1\n")
    assert answer.run(["a", trace, "--answer-dir", str(own)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 62
    assert lines[-1].endswith("67 lines are not shown")
    assert max(map(len, lines)) <= 80


def test_call_chains_that_are_needed_are_asked_for(
    own: Path, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Events alone do not do, and the recording that is told has them."""
    (own / "a.sql").write_text(f"{HEAD}-- call_chains = true\n{STATEMENT}")
    assert answer.run(["a", trace, "--answer-dir", str(own)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "a needs call chains of sched:sched_switch, and no segment that was read" in told.err
    assert "collectord record -a -g -e sched:sched_switch" in told.err
    assert 'call_graph = "fp"' in told.err


def test_events_without_records_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty answer says that nothing was recorded, and is no failure."""
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [switches(1000, 5)]})
    assert answer.run(["syscalls", str(path)]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "there was no raw_syscalls:sys_enter in what was read" in told.err


def test_a_program_that_is_needed_is_recorded_by_its_kind() -> None:
    """Tracepoints and programs of one list are sources of one session."""
    lines = [*answer_session.session_of("both", ["sched:sched_switch"], ["opensnoop"])]
    assert 'program = "opensnoop"' in lines
    assert 'events = ["sched:sched_switch"]' in lines


def test_names_of_system_calls_by_machine() -> None:
    """Numbers of a machine's own and common ones; none of a machine that is not known."""
    assert (syscall_names("x86_64")[0], syscall_names("x86_64")[435]) == ("read", "clone3")
    assert (syscall_names("aarch64")[63], syscall_names("riscv64")[435]) == ("read", "clone3")
    assert 244 not in syscall_names("aarch64")
    assert syscall_names("vax") == {}
