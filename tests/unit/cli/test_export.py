# SPDX-License-Identifier: Apache-2.0
"""`collectord export`: the records of a file as other tools read them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import duckdb
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from collectord.cli import export
from collectord.errors import CollectordError, SinkError, UsageError
from tests.support import profiles
from tests.support.ftrace_pages import event, page
from tests.support.query_files import switch, switches, write_trace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A file with five task switches on two CPUs and a loss of four records."""
    path = tmp_path / "trace.dat"
    hostile = page(3000, event(switch(9, next_comm=b'a\x1b"<\xff'), 10))
    write_trace(
        path,
        {0: [switches(1000, 5, 6), switches(2000, 5, lost=4)], 1: [switches(1500, 7), hostile]},
    )
    return str(path)


def _perfetto(trace: str, output: Path, *words: str) -> protos.Trace:
    assert export.run(["--format", "perfetto", "-o", str(output), *words, trace]) == 0
    parsed = protos.Trace()
    parsed.ParseFromString(output.read_bytes())
    return parsed


def test_perfetto_gets_every_field_of_its_own_events(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each record is an event of ftrace on its CPU, with stamp, thread and fields."""
    parsed = _perfetto(trace, tmp_path / "out")
    found = [
        (packet.ftrace_events.cpu, one.timestamp, one.pid, one.sched_switch)
        for packet in parsed.packet
        for one in packet.ftrace_events.event
    ]
    assert len(found) == 5
    assert [(cpu, told.next_pid) for cpu, *_, told in found if cpu == 0] == [
        (0, 5),
        (0, 6),
        (0, 5),
    ]
    (last,) = [told for *_, told in found if told.next_pid == 9]
    assert last.next_comm == 'a\x1b"<\\xff'
    assert last.HasField("prev_state")
    assert {pid for _, _, pid, _ in found} == {77}
    assert min(at for _, at, *_ in found) >= 1000
    assert "wrote 5 records" in capsys.readouterr().err


def test_perfetto_gets_losses_on_a_track(trace: str, tmp_path: Path) -> None:
    """A loss is an instant that says how many."""
    parsed = _perfetto(trace, tmp_path / "out")
    (name,) = [one.track_descriptor.name for one in parsed.packet if one.track_descriptor.uuid]
    assert name == "losses"
    (lost,) = [one.track_event for one in parsed.packet if one.HasField("track_event")]
    told = {one.name: one for one in lost.debug_annotations}
    assert told["events"].uint_value == 4
    assert told["how"].string_value == "lost"


def test_chrome_gets_slices_of_what_ran_and_an_instant_for_each_record(
    trace: str, tmp_path: Path
) -> None:
    """A slice lasts until the next switch of its CPU; text is JSON's whatever it has."""
    output = tmp_path / "out.json"
    assert export.run(["--format", "chrome-json", "-o", str(output), trace]) == 0
    events = json.loads(output.read_bytes())["traceEvents"]
    slices = [one for one in events if one["ph"] == "X"]
    ran = sorted((one["tid"], one["args"]["tid"]) for one in slices)
    assert ran == [(0, 5), (0, 6), (1, 7)]
    assert all(one["dur"] > 0 for one in slices)
    instants = [one for one in events if one["ph"] == "i"]
    assert [one["name"] for one in instants].count("sched_switch") == 5
    assert 'a\x1b"<\\xff' in {one["args"].get("next_comm") for one in instants}
    (lost,) = [one["args"] for one in instants if one["name"] == "lost"]
    assert lost["events"] == 4


@pytest.mark.parametrize("modifiers", ["", ":k"])
def test_a_record_of_a_tracepoint_is_no_sample_too(modifiers: str, tmp_path: Path) -> None:
    """Its event has a table of its own, however the file spells the event."""
    path = profiles.write_switches(
        tmp_path / "perf.data", profiles.switch(1, 50, 0), modifiers=modifiers
    )
    output = tmp_path / "out.json"
    assert export.run(["--format", "chrome-json", "-o", str(output), str(path)]) == 0
    events = json.loads(output.read_bytes())["traceEvents"]
    assert [one["cat"] for one in events if one["ph"] == "i"] == ["sched"]


def test_parquet_has_a_file_for_each_event_and_the_ledgers(trace: str, tmp_path: Path) -> None:
    """The rows are those of the tables; a table without rows has no file."""
    output = tmp_path / "out"
    assert export.run(["--format", "parquet", "-o", str(output), trace]) == 0
    assert sorted(path.name for path in output.iterdir()) == [
        "ledger.json",
        "table=losses",
        "table=sched_switch",
    ]
    with duckdb.connect() as connection:
        files = str(output / "*" / "*.parquet")
        rows = connection.read_parquet(files, union_by_name=True, hive_partitioning=True)
        counted = rows.aggregate('"table", count(*)', '"table"').fetchall()
    assert sorted(counted) == [("losses", 1), ("sched_switch", 5)]
    (segment,) = json.loads((output / "ledger.json").read_bytes())["segments"]
    assert segment == {
        "file": trace,
        **dict.fromkeys(("session", "first_ns", "last_ns", "samples", "ledger")),
        "sealed": False,
    }


@pytest.mark.parametrize("format_", ["perfetto", "chrome-json", "parquet"])
def test_nothing_that_exists_is_replaced(format_: str, trace: str, tmp_path: Path) -> None:
    """Neither a file nor a link; the error names it."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with pytest.raises((UsageError, SinkError), match=name):
            export.run(["--format", format_, "-o", str(tmp_path / name), trace])
    assert (tmp_path / "file").read_text() == "mine"


def test_an_export_that_fails_leaves_no_file(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Perfetto's package the error says what to install, and the file is removed."""
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    output = tmp_path / "out"
    with pytest.raises(CollectordError, match="not installed") as caught:
        export.run(["--format", "perfetto", "-o", str(output), trace])
    assert "collectord[perfetto]" in str(caught.value)
    assert not output.exists()


def test_the_window_bounds_what_is_written(trace: str, tmp_path: Path) -> None:
    """A file that does not tell UTC is left out of a window, which fails the export."""
    output = tmp_path / "out"
    words = ["--format", "chrome-json", "-o", str(output), "--since", "-10m", trace]
    export.run(words)
    events = json.loads(output.read_bytes())["traceEvents"]
    assert not [one for one in events if one["ph"] == "i"]
