# SPDX-License-Identifier: Apache-2.0
"""`export` of what the running kernel recorded, by the values that `query` has."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from collectord.cli import export, flame, query
from tests.support.recording import result_of, segments_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Cli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

LOAD: Final = ("sh", "-c", "for i in 1 2 3; do /bin/true; sleep 0.02; done; : $(seq 20000)")
# Not all of the fields of these are in Perfetto's messages.
GENERIC: Final = "generic"


@pytest.fixture
def recorded(run_cli: Cli, tmp_path: Path) -> Path:
    """Tracepoints of two systems, and samples with call chains."""
    done = run_cli(
        *("record", "-a", "-m", "4MiB", "-g", "-F", "997", "-e", "cpu-clock"),
        *("-e", "sched:*,raw_syscalls:sys_enter", "--output-dir", tmp_path / "out", "--json"),
        *("--", *LOAD),
    )
    assert done.returncode == 0, done.stderr
    (segment,) = segments_of(result_of(done.stdout))
    return segment


def _rows(capsys: pytest.CaptureFixture[str], sql: str, path: Path) -> list[dict[str, Any]]:
    assert query.run(["--json", sql, str(path)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_perfetto_has_the_values_of_every_record(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Events have their stamps, CPUs, threads and fields."""
    output = tmp_path / "out.pftrace"
    assert export.run(["--format", "perfetto", "-o", str(output), str(recorded)]) == 0
    capsys.readouterr()
    trace = protos.Trace()
    trace.ParseFromString(output.read_bytes())
    (clocks,) = [one.clock_snapshot for one in trace.packet if one.HasField("clock_snapshot")]
    boot, utc = (one.timestamp for one in clocks.clocks)
    base_ns = utc - boot

    found: dict[str, list[tuple[int, int, int, Any]]] = {}
    for packet in trace.packet:
        for one in packet.ftrace_events.event:
            kind = one.WhichOneof("event")
            name = one.generic.event_name if kind == GENERIC else kind
            place = (one.timestamp + base_ns, packet.ftrace_events.cpu, one.pid)
            found.setdefault(name, []).append((*place, getattr(one, kind)))
    assert {"sched_switch", "sched_wakeup", "sched_process_exec", "sys_enter"} <= found.keys()
    for name, events in found.items():
        statement = f'SELECT epoch_ns(time) t, cpu, tid FROM "{name}"'  # noqa: S608  # the kernel's
        rows = _rows(capsys, statement, recorded)
        told = sorted((row["t"], row["cpu"], row["tid"] or 0) for row in rows)
        assert sorted(event[:3] for event in events) == told, name
    switches = _rows(capsys, "SELECT epoch_ns(time) t, * FROM sched_switch", recorded)
    assert Counter(
        (at, one.prev_pid, one.prev_comm, one.prev_state, one.next_pid, one.next_comm)
        for at, _, _, one in found["sched_switch"]
    ) == Counter(
        (
            *(row["t"], row["prev_pid"], row["prev_comm"], row["prev_state"]),
            *(row["next_pid"], row["next_comm"]),
        )
        for row in switches
    )
    calls = _rows(capsys, "SELECT epoch_ns(time) t, id, args FROM sys_enter", recorded)
    assert Counter((at, one.id, tuple(one.args)) for at, _, _, one in found["sys_enter"]) == (
        Counter((row["t"], row["id"], tuple(row["args"])) for row in calls)
    )


def test_perfetto_has_the_frames_of_flame(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Samples have their stamps and threads, and the functions of their call chains."""
    output = tmp_path / "out.pftrace"
    assert export.run(["-o", str(output), str(recorded)]) == 0
    capsys.readouterr()
    trace = protos.Trace()
    trace.ParseFromString(output.read_bytes())
    (clocks,) = [one.clock_snapshot for one in trace.packet if one.HasField("clock_snapshot")]
    boot, utc = (one.timestamp for one in clocks.clocks)
    names: dict[int, str] = {}
    functions: dict[int, int] = {}
    stacks: dict[int, list[int]] = {}
    samples = []
    found: Counter[str] = Counter()
    for packet in trace.packet:
        interned = packet.interned_data
        names.update({one.iid: one.str.decode() for one in interned.function_names})
        functions.update({one.iid: one.function_name_id for one in interned.frames})
        stacks.update({one.iid: [*one.frame_ids] for one in interned.callstacks})
        if packet.HasField("perf_sample"):
            sample = packet.perf_sample
            samples.append((packet.timestamp + utc - boot, sample.cpu, sample.tid))
            found[";".join(names[functions[one]] for one in stacks[sample.callstack_iid])] += 1
    statement = (
        "SELECT epoch_ns(time) t, cpu, tid FROM samples WHERE event LIKE 'cpu-clock%' ORDER BY ALL"
    )
    rows = _rows(capsys, statement, recorded)
    assert sorted(samples) == sorted((row["t"], row["cpu"], row["tid"] or 0) for row in rows)
    assert flame.run(["-e", "cpu-clock*", str(recorded)]) == 0
    told: Counter[str] = Counter()
    for line in capsys.readouterr().out.splitlines():
        stack, _, count = line.rpartition(" ")
        told[stack.partition(";")[2].replace("_[k]", "")] += int(count)
    assert found == told
    assert len(found) > 1


def test_chrome_and_parquet_have_as_many_records(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One instant for each sample, and the file of samples has all of them."""
    (told,) = _rows(capsys, "SELECT count(*) n FROM samples", recorded)
    output = tmp_path / "out.json"
    assert export.run(["--format", "chrome-json", "-o", str(output), str(recorded)]) == 0
    events = json.loads(output.read_bytes())["traceEvents"]
    assert sum(one["ph"] == "i" and one["name"] != "lost" for one in events) == told["n"]
    running = [one for one in events if one["ph"] == "X"]
    assert running
    assert all(one["args"]["tid"] for one in running)
    folder = tmp_path / "parquet"
    assert export.run(["--format", "parquet", "-o", str(folder), str(recorded)]) == 0
    (ledger,) = json.loads((folder / "ledger.json").read_bytes())["segments"]
    assert ledger["samples"] == told["n"]
    assert ledger["ledger"]["stored"] == told["n"]
