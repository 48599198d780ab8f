# SPDX-License-Identifier: Apache-2.0
"""`ledger`, `clocks`, `coverage` and `snapshots` of `collectord query`: what manifests tell."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from collectord.cli import answer, query
from collectord.errors import UsageError
from collectord.reader.manifest_tables import MANIFEST_COLUMNS
from collectord.sink import covered_note
from collectord.sink.base import Opening
from collectord.sink.covered_note import Covered
from collectord.sink.manifest import Gap, SnapshotNote
from collectord.sink.repair import repair
from tests.support import relay_segments, trace_segments
from tests.support.query_files import switches, write_trace
from tests.support.segments import IDENTITY, fill, killed, make_sink, orphan
from tests.support.told_segments import (
    DISK,
    FULL,
    SECOND,
    UTC_NS,
    balance,
    change,
    manifest_path,
    reading,
    rings,
    told_segment,
    utc,
    write_run,
)

if TYPE_CHECKING:
    from collectord.model import ClockReading
    from collectord.sink.base import SegmentInfo
    from tests.support.asking import Ask

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

TABLES: Final = ("ledger", "clocks", "coverage", "snapshots")
MANUAL: Final = Path(__file__).resolve().parents[3] / "docs" / "query.md"


@pytest.fixture(name="three")
def run_of_three(tmp_path: Path) -> list[SegmentInfo]:
    """The segments of one run, in their order."""
    return write_run(tmp_path)


def test_each_segment_has_its_part_of_the_ledger(
    tmp_path: Path, three: list[SegmentInfo], ask: Ask
) -> None:
    """Differences of the ledgers, what is stored by CPU, and sums that are the run's ledger."""
    rows = ask("FROM ledger ORDER BY file", tmp_path)
    common = {"session": "exec", "source": "perf", "basis": "exact", "unit": "records"}
    assert rows == [
        common
        | {"file": str(three[0].path), "since": utc(99), "until": utc(109)}
        | {"produced": 110, "stored": 98, "lost": 4, "overwritten": 0, "in_flight": 8}
        | {"unaccounted": 0, "repeated": 0, "lost_by": {FULL: 4}}
        | {"stored_by_cpu": {"0": 60, "3": 38}},
        common
        | {"file": str(three[1].path), "since": utc(109), "until": utc(119)}
        | {"produced": 193, "stored": 180, "lost": 11, "overwritten": 3, "in_flight": -1}
        | {"unaccounted": 0, "repeated": 2, "lost_by": {DISK: 11}}
        | {"stored_by_cpu": {"0": 100, "3": 80}},
        common
        | {"file": str(three[2].path), "since": utc(119), "until": utc(129)}
        | {"produced": 100, "stored": 105, "lost": 0, "overwritten": 0, "in_flight": -7}
        | {"unaccounted": 2, "repeated": 5, "lost_by": {}}
        | {"stored_by_cpu": {"0": 105, "3": 0}},
    ]
    for row in rows:
        parts = ("stored", "lost", "overwritten", "in_flight", "unaccounted")
        assert row["produced"] == sum(row[part] for part in parts)
    columns = ("produced", "stored", "lost", "overwritten", "in_flight", "unaccounted", "repeated")
    assert [sum(row[name] for row in rows) for name in columns] == [403, 383, 15, 3, 0, 2, 7]


def test_a_balance_whose_predecessor_was_deleted(
    tmp_path: Path, three: list[SegmentInfo], ask: Ask
) -> None:
    """A count of 0 at the end was 0 before; nothing tells the rest. The next one is whole."""
    three[0].path.unlink()
    manifest_path(three[0]).unlink()
    columns = "produced, stored, lost, overwritten, in_flight, unaccounted, repeated, lost_by"
    statement = f"FROM ledger SELECT {columns} ORDER BY file"
    nothing = dict.fromkeys(columns.split(", "))
    second, third = ask(statement, tmp_path)
    assert second == nothing | {"stored": 180}
    assert (third["produced"], third["in_flight"], third["lost"]) == (100, -7, 0)
    quiet = balance(produced=303, stored=280)
    change(three[1], ledger=quiet)
    second, third = ask(statement, tmp_path)
    zero = {"lost": 0, "lost_by": {}, "overwritten": 0, "repeated": 0}
    assert second == nothing | zero | {"stored": 180}
    assert third["lost_by"] == {FULL: 4, DISK: 11}


def test_a_segment_by_its_name_has_the_same_row(
    tmp_path: Path, three: list[SegmentInfo], ask: Ask
) -> None:
    """The manifest before it is read, though it is no part of what is asked."""
    statement = f"FROM ledger WHERE file = '{three[1].path}'"
    (expected,) = ask(statement, tmp_path)
    assert ask("FROM ledger", three[1].path) == [expected]


def test_a_run_with_a_recovered_segment(tmp_path: Path, ask: Ask) -> None:
    """It has no balance of its own; the next one of the run has it with its own."""

    def leave() -> None:
        sink = make_sink(tmp_path)
        told_segment(sink, (100, 110), (50,), balance(produced=60, stored=60))
        opening = Opening(clock=reading(110), rings=rings(0))
        fill(sink.next_segment(2, opening), 70)

    killed(leave)
    repair(tmp_path)
    (first,) = tmp_path.glob("*-000001.perf.data.json")
    run = json.loads(first.read_text())["run"]
    told_segment(
        make_sink(tmp_path),
        (120, 130),
        (80,),
        balance(produced=201, stored=200, lost={FULL: 1}),
        opening={"run": run, "stored_before": 120},
    )
    rows = ask("SELECT * EXCLUDE (session, source, file, since, until) FROM ledger", tmp_path)
    unknown = dict.fromkeys(("produced", "lost", "overwritten", "in_flight", "unaccounted"))
    unknown |= dict.fromkeys(("repeated", "lost_by"))
    common = {"unit": "records", "overwritten": 0, "unaccounted": 0, "repeated": 0}
    assert rows == [
        common
        | {"basis": "exact", "produced": 60, "stored": 50, "lost": 0, "in_flight": 10}
        | {"lost_by": {}, "stored_by_cpu": {"0": 50}},
        common
        | unknown
        | {"basis": "none", "stored": 70, "stored_by_cpu": rows[1]["stored_by_cpu"]},
        common
        | {"basis": "exact", "produced": 141, "stored": 80, "lost": 1, "in_flight": -10}
        | {"lost_by": {FULL: 1}, "stored_by_cpu": {"0": 80}},
    ]
    assert sum(row["stored"] for row in rows) == 200
    assert sum(row["in_flight"] or 0 for row in rows) == 0


def test_a_set_of_files_is_one_row(tmp_path: Path, ask: Ask) -> None:
    """It has the records of all its files, and the first path."""
    sink = relay_segments.make_sink(tmp_path)
    info = relay_segments.seal(sink, 1, relay_segments.DATA)
    assert info is not None
    (row,) = ask("FROM ledger", tmp_path)
    assert (row["file"], row["unit"], row["stored"]) == (str(info.path), "records", 3)
    # The ledger says 10.
    assert (row["produced"], row["in_flight"]) == (10, 7)
    assert row["stored_by_cpu"] == {"0": 2, "2": 1}
    (row,) = ask("FROM coverage", tmp_path)
    assert (row["cpus"], row["cpus_covered"]) == ([0, 2], 2)


def test_a_channel_without_records_is_counted_in_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can tell which of its bytes are still to come."""
    sink = relay_segments.make_sink(tmp_path, "relay")
    assert relay_segments.seal(sink, 1, {4: bytes(100), 5: bytes(23)}) is not None
    assert query.run(["--json", "FROM ledger", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "files were not read" in captured.err  # they have no records
    row = json.loads(captured.out)
    assert (row["unit"], row["stored"], row["in_flight"]) == ("bytes", 123, None)
    assert row["stored_by_cpu"] == {"0": 100, "2": 23}


def test_what_is_written_now(tmp_path: Path, ask: Ask) -> None:
    """A running segment has what readers find in it, its beginning, and no end."""
    sink = trace_segments.make_sink(tmp_path)
    segment = sink.next_segment(1, trace_segments.opening(clock=reading(100)))
    trace_segments.fill(segment, (2, 1))
    sink.flush(segment, {10: 8192, 11: 4096})
    (row,) = ask("FROM ledger", tmp_path)
    assert {name: value for name, value in row.items() if value is not None} == {
        "session": "exec",
        "source": "tracefs",
        "file": str(segment.paths.partial),
        "unit": "records",
        "stored": 3 * trace_segments.PER_PAGE,
    }
    (row,) = ask("FROM coverage", tmp_path)
    assert row == {
        "session": "exec",
        "source": "tracefs",
        "what": "recorded",
        "cause": None,
        "since": utc(100),
        "until": None,
        "length_ns": None,
        "cpus": [0, 1],
        "cpus_covered": 2,
    }
    (row,) = ask("SELECT moment, mono_ns FROM clocks", tmp_path)
    assert row == {"moment": "open", "mono_ns": 100 * SECOND}
    sink.close()


def test_every_reading_of_the_clocks_is_a_row(tmp_path: Path, ask: Ask) -> None:
    """At the beginning, at flushes and at the end; of files whose stamps are of either clock."""
    flushes = (reading(103), reading(107))
    info = told_segment(make_sink(tmp_path), (100, 110), flushes=flushes)
    common = {"session": "exec", "source": "perf", "file": str(info.path), "stamps": "perf"}
    assert ask("FROM clocks ORDER BY mono_ns", tmp_path) == [
        common
        | {"moment": moment, "time": utc(second), "mono_ns": second * SECOND}
        | {"perf_ns": second * SECOND + 7, "bracket_ns": second}
        for moment, second in (("open", 100), ("flush", 103), ("flush", 107), ("close", 110))
    ]
    change(info, clock="monotonic")
    assert {row["stamps"] for row in ask("FROM clocks", tmp_path)} == {"monotonic"}


def test_clocks_that_nobody_read_are_no_rows(tmp_path: Path, ask: Ask) -> None:
    """A repair that finds none leaves zeros; what they would tell is unknown."""
    zeros = dict.fromkeys(("monotonic_ns", "realtime_ns", "perf_ns", "bracket_ns"), 0)
    info = told_segment(make_sink(tmp_path), (100, 110), (5,), balance(since_ns=7, until_ns=9))
    change(info, clocks={"open": zeros})
    assert ask("FROM clocks", tmp_path) == []
    assert ask("SELECT since, until FROM ledger", tmp_path) == [{"since": None, "until": None}]


def test_every_snapshot_is_a_row(tmp_path: Path, ask: Ask) -> None:
    """It has its cause, its times, and what was left out; segments of streams are none."""
    sink = make_sink(tmp_path)
    told_segment(sink, (100, 110))
    note = SnapshotNote(
        trigger="signal", taken_ns=119 * SECOND, paused_ns=55, repeated=4, repeated_bytes=321
    )
    info = told_segment(sink, (110, 120), (30,), snapshot=note)
    # The first record is 1 ns behind the first reading, the last one 1 ns before the last.
    assert ask("FROM snapshots", tmp_path) == [
        {
            "session": "exec",
            "source": "perf",
            "file": str(info.path),
            "reason": "signal",
            "time": utc(119),
            "mono_ns": 119 * SECOND,
            "first": utc(110, 1),
            "last": utc(120, -1),
            "window_ns": 10 * SECOND - 2,
            "paused_ns": 55,
            "samples": 30,
            "repeated": 4,
            "repeated_bytes": 321,
        }
    ]


def test_times_in_which_a_session_recorded_and_did_not(tmp_path: Path, ask: Ask) -> None:
    """Runs, the gap between them, pauses, and another row where the CPUs change."""
    first = make_sink(tmp_path)
    lasts = {"cause": "disk", "since_ns": 105 * SECOND}
    told_segment(first, (100, 110), (5, 5), balance(pauses=[lasts]), cpus=(0, 1))
    ended = [lasts | {"until_ns": 112 * SECOND}, {"cause": "budget", "since_ns": 119 * SECOND}]
    told_segment(first, (110, 120), (5, 5), balance(pauses=ended), cpus=(0, 1))
    told_segment(first, (119.5, 130), (5,), balance(pauses=ended), cpus=(0,))
    gap = Gap(from_ns=UTC_NS + 130 * SECOND, until_ns=UTC_NS + 140 * SECOND, cause="stop")
    second = make_sink(tmp_path)  # its numbers follow those that are there
    told_segment(second, (140, 150), (5,), opening={"gap": gap})
    told_segment(second, (150, 160), (5,), opening={"gap": gap})
    rows = ask("FROM coverage ORDER BY since, what DESC", tmp_path)
    assert {(row["session"], row["source"]) for row in rows} == {("exec", "perf")}
    names = ("what", "cause", "since", "until", "length_ns", "cpus", "cpus_covered")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("recorded", None, utc(100), utc(120), 20 * SECOND, [0, 1], 2),
        ("paused", "disk", utc(105), utc(112), 7 * SECOND, None, None),
        # It lasted when the run ended, and ended with it.
        ("paused", "budget", utc(119), utc(130), 11 * SECOND, None, None),
        # A segment is prepared before the one before it ends.
        ("recorded", None, utc(120), utc(130), 10 * SECOND, [0], 1),
        ("gap", "stop", utc(130), utc(140), 10 * SECOND, None, None),
        ("recorded", None, utc(140), utc(160), 20 * SECOND, [0], 1),
    ]


def test_rings_of_threads_cover_no_cpu(tmp_path: Path, ask: Ask) -> None:
    """Their CPU is unknown, for what they recorded as for what they stored."""
    told_segment(make_sink(tmp_path), (100, 110), cpus=(-1,))
    assert ask("SELECT cpus, cpus_covered FROM coverage", tmp_path) == [
        {"cpus": None, "cpus_covered": None}
    ]
    assert ask("SELECT stored_by_cpu FROM ledger", tmp_path) == [{"stored_by_cpu": None}]


def test_the_end_of_a_killed_run(tmp_path: Path, ask: Ask) -> None:
    """It is that of the note in its folder, before a repair and after, else the last record."""
    orphan(tmp_path)
    statement = "SELECT what, since, until FROM coverage ORDER BY since"
    row = {"what": "recorded", "since": "1970-01-01 00:00:01"}
    # Readers find no record in it yet.
    assert ask(statement, tmp_path) == [row | {"until": row["since"]}]
    noted = Covered(boot_id=IDENTITY.boot_id, process="", until=_at_utc(5), stopped=False)
    covered_note.write(tmp_path, "perf", noted)
    assert ask(statement, tmp_path) == [row | {"until": "1970-01-01 00:00:05"}]
    repair(tmp_path)
    assert ask(statement, tmp_path) == [row | {"until": "1970-01-01 00:00:05"}]
    covered_note.write(tmp_path, "perf", msgspec.structs.replace(noted, boot_id="another"))
    # 250 records, 1 us apart.
    assert ask(statement, tmp_path) == [row | {"until": "1970-01-01 00:00:01.000249"}]
    gap = Gap(from_ns=7 * SECOND, until_ns=UTC_NS + 100 * SECOND, cause="kill")
    told_segment(make_sink(tmp_path), (100, 110), opening={"gap": gap})
    first, between, _ = ask(statement, tmp_path)
    assert first["until"] == between["since"] == "1970-01-01 00:00:07"


def test_segments_are_in_the_order_of_their_numbers(tmp_path: Path, ask: Ask) -> None:
    """The clock may have been set back between two of them."""
    sink = make_sink(tmp_path)
    told_segment(sink, (200, 210), cpus=(0,))
    change(told_segment(sink, (100, 110), cpus=(0,)), started_ns=1)
    rows = ask("SELECT since, until FROM coverage WHERE what = 'recorded'", tmp_path)
    assert rows == [{"since": utc(200), "until": utc(110)}]


def test_every_source_has_its_rows(tmp_path: Path, ask: Ask) -> None:
    """Two sources in one folder are two streams."""
    told_segment(make_sink(tmp_path), (100, 110), (5,))
    sink = trace_segments.make_sink(tmp_path)
    trace_segments.write_segment(sink)
    for table in ("ledger", "coverage", "clocks"):
        rows = ask(f"FROM {table} SELECT DISTINCT source ORDER BY source", tmp_path)
        assert [row["source"] for row in rows] == ["perf", "tracefs"]


def test_nothing_stored_is_no_rows(tmp_path: Path, ask: Ask) -> None:
    """An empty state directory has all tables."""
    for table in TABLES:
        assert ask(f"FROM {table}", tmp_path) == []


def test_files_of_other_programs_have_no_rows(tmp_path: Path, ask: Ask) -> None:
    """They have no manifest, and that is no damage."""
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [switches(1000, 5)]})
    for table in (*TABLES, "damage"):
        assert ask(f"FROM {table}", path) == []


def test_a_window_leaves_all_rows(tmp_path: Path, three: list[SegmentInfo], ask: Ask) -> None:
    """Times that are asked for choose records: a balance has no part of a segment."""
    del three
    for table in TABLES:
        rows = ask(f"FROM {table}", tmp_path)
        for words in (("--since", "-10m"), ("--until", "2001-01-01T00:00:00Z")):
            assert ask(f"FROM {table}", tmp_path, *words) == rows
    assert len(ask("FROM ledger", tmp_path)) == 3


def test_only_a_session_is_told(tmp_path: Path, ask: Ask) -> None:
    """`--session` leaves the segments of others out of these tables too."""
    for name in ("a", "b"):
        info = told_segment(make_sink(tmp_path / name), (100, 110), (5,))
        change(info, session=name)
    for table in ("ledger", "coverage", "clocks"):
        rows = ask(f"FROM {table} SELECT DISTINCT session", tmp_path, "--session", "b")
        assert rows == [{"session": "b"}]


def _at_utc(second: int) -> ClockReading:
    return replace(reading(second), realtime_ns=second * SECOND)


def _schema(capsys: pytest.CaptureFixture[str], target: Path) -> dict[str, dict[str, str]]:
    assert query.run(["--schema", "--json", str(target)]) == 0
    found: dict[str, dict[str, str]] = {}
    for row in json.loads(capsys.readouterr().out)["columns"]:
        found.setdefault(row["table"], {})[row["column"]] = row["type"]
    return found


def test_the_schema_has_these_tables_with_their_units(
    tmp_path: Path, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    """The columns that a statement finds, each with what it counts."""
    schema = _schema(capsys, tmp_path)
    for table in TABLES:
        described = {
            row["column_name"]: row["column_type"]
            for row in ask(f"FROM (DESCRIBE {table})", tmp_path)
        }
        assert schema[table].keys() == described.keys()
        # None is a word that SQL keeps for itself.
        ask(f"FROM {table} SELECT {', '.join(described)}", tmp_path)
        for name, kind in described.items():
            told = schema[table][name]
            if kind == "TIMESTAMP_NS":
                assert told.startswith("UTC")
            elif name.endswith("_ns"):
                assert re.fullmatch(rf"{kind}, ns\b.*", told)
            elif kind != "VARCHAR":
                assert re.fullmatch(
                    rf"{re.escape(kind)}, .*(records|bytes|number|of \w+, by).*", told
                )
            else:
                assert told != kind
    assert schema["segments"]["bytes"] == "UBIGINT, bytes"
    assert schema["segments"]["started"] == "UTC"
    assert schema["losses"]["events"] == "u64, records"
    assert schema["damage"]["byte"] == "u64, bytes from the beginning of the file"


def test_the_manual_has_every_column() -> None:
    """Each is named in the table of its table."""
    manual = MANUAL.read_text()
    for table in TABLES:
        _, _, rest = manual.partition(f"| Column of `{table}` |")
        part, _, _ = rest.partition("\n\n")
        assert part
        named = set(re.findall(r"`(\w+)`", part))
        columns = {name for name in _columns(table) if name not in {"session", "source", "file"}}
        assert columns <= named


def _columns(table: str) -> set[str]:
    return {*MANIFEST_COLUMNS[table]}


@pytest.mark.parametrize(
    ("statement", "meant"),
    [
        ("FROM ledgr", "ledger"),
        ("FROM clock", "clocks"),
        ("FROM COVRAGE", "coverage"),
        ("FROM snapshot", "snapshots"),
        ("SELECT unacounted FROM ledger", "unaccounted"),
        ("SELECT cpus_coverd FROM coverage", "cpus_covered"),
    ],
)
def test_a_name_that_is_not_there_gives_the_nearest(
    statement: str, meant: str, tmp_path: Path
) -> None:
    """A table is named, or a column."""
    with pytest.raises(UsageError, match=f'did you mean "{meant}"'):
        query.run([statement, str(tmp_path)])


def test_an_answer_may_ask_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A statement of one's own has the same tables, and says what is damaged in them."""
    info = told_segment(make_sink(tmp_path / "state"), (100, 110), (5,), balance(produced=7))
    own = tmp_path / "own"
    own.mkdir()
    head = '-- summary = "counted"\n-- needs = [["syscalls:sys_enter_getppid"]]\n'
    (own / "counted.sql").write_text(head + "FROM ledger SELECT produced\n")
    words = ["--json", "--answer-dir", str(own), "counted", str(tmp_path / "state")]
    assert answer.run(words) == 0
    assert json.loads(capsys.readouterr().out) == {"produced": 7}
    change(info, ledger=balance(produced="x"))
    assert answer.run(words) == 1
    assert "the ledger in the manifest" in capsys.readouterr().err
