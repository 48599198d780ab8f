# SPDX-License-Identifier: Apache-2.0
"""ftrace sessions from the command line: each event is stored once or counted as lost."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER
from tests.support.recording import (
    USUAL_PRIORITY,
    daemon_config,
    result_of,
    segments_of,
    stopped,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.trace_cmds import TraceCmd

    Cli = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]
    TraceCmds = tuple[TraceCmd, ...]

pytestmark = pytest.mark.usefixtures("tracefs")

TRANSPORTS: Final = ("read", "mmap", "splice")
COUNT: Final = 100_000
# Far more than the smallest rings hold, at full speed; and so much that nobody drains at first.
OVERLOAD: Final = 300_000
UNREAD: Final = 50_000
CORE: Final = f"""
{USUAL_PRIORITY}
flush_interval = "100ms"
chunk = "256KiB"
staging = "16MiB"
[retention]
bytes = "0"
age = "0"
free = "0"
"""
CALLS: Final = ("-e", EVENT, "--filter", FILTER, "--via", "ftrace")


def check_ftrace_balance(session: dict[str, Any], *, generated: int) -> None:
    """Assert that every event is stored or lost, ring by ring, with nothing over."""
    figures = {key: session[key] for key in ("produced", "stored", "lost", "unaccounted")}
    assert session["ledger_basis"] == "exact", session["degraded"]
    assert session["produced"] == generated, figures
    assert session["produced"] == session["stored"] + sum(session["lost"].values()), figures
    assert (session["unaccounted"], session["in_flight"], session["overwritten"]) == (0, 0, 0)
    for ring in session["rings"]:
        assert ring["produced"] == ring["stored"] + sum(ring["lost"].values()), ring
        assert (ring["unaccounted"], ring["foreign_reads"]) == (0, 0), ring


def reported(session: dict[str, Any], trace_cmds: TraceCmds) -> list[list[str]]:
    """Return the events of all segments, as each trace-cmd reports them."""
    return [
        [line for path in segments_of(session) for line in trace_cmd.report(path)]
        for trace_cmd in trace_cmds
    ]


def check_reported(session: dict[str, Any], trace_cmds: TraceCmds) -> None:
    """Assert that each trace-cmd reports exactly the stored events."""
    for trace_cmd, lines in zip(trace_cmds, reported(session, trace_cmds), strict=True):
        assert len(lines) == session["stored"], f"trace-cmd {trace_cmd.version}"


@pytest.mark.parametrize(
    ("where", "transport"),
    [
        pytest.param(*one, marks=pytest.mark.vm if one == ("command", "mmap") else ())
        for one in product(("-C0", "-a", "command"), TRANSPORTS)
    ],
)
def test_every_event_is_stored(  # noqa: PLR0917  # fixtures
    tmp_path: Path,
    run_cli: Cli,
    generator: Generator,
    trace_cmds: TraceCmds,
    transport: str,
    where: str,
) -> None:
    """If a load fits the rings all events are stored, and trace-cmd reports as many."""
    scope = () if where == "command" else (where,)
    pin = ("taskset", "-c", "0") if where == "-C0" else ()
    command = generator.command("count", count=COUNT, rate=400_000, nr=NUMBER)
    done = run_cli(
        "record", *CALLS, *scope, "-m", "4MiB", "--transport", transport,
        "--output-dir", tmp_path / "out", "--json", "--", *pin, *command,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    assert {ring["transport"] for ring in session["rings"]} == {transport}
    assert all(0 < r["high_watermark_bytes"] <= r["capacity_bytes"] for r in _used(session))
    check_ftrace_balance(session, generated=COUNT)
    assert session["stored"] == COUNT
    check_reported(session, trace_cmds)
    (segment,) = segments_of(session)
    # No holes, though nothing limits it: cp, gzip and scp read what is in it.
    spans = daemons.manifest(segment)["spans"]
    assert segment.stat().st_size == sum(span["bytes"] for span in spans)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("overwrite", [True, False], ids=["overwrite", "no-overwrite"])
def test_overload_is_counted(  # noqa: PLR0917  # fixtures
    tmp_path: Path,
    start_cli: Start,
    generator: Generator,
    trace_cmds: TraceCmds,
    transport: str,
    overwrite: bool,  # a parameter
) -> None:
    """If a load fits no ring, events not stored are lost, for the reason of its mode."""
    made = UNREAD + OVERLOAD
    config = write_config(
        tmp_path,
        source=f'transport = "{transport}"\noverwrite = {str(overwrite).lower()}\nring = "64KiB"',
    )
    with daemons.running(start_cli, config) as daemon:
        with (
            generator.start("count", count=UNREAD, nr=NUMBER) as first,
            generator.start("count", count=OVERLOAD, nr=NUMBER) as running,
        ):
            with stopped(daemon.process):
                first.run()
            running.run()
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    session = final_session(tmp_path / "state")
    assert session["produced"] == made
    assert session["stored"] + sum(session["lost"].values()) == made
    assert session["unaccounted"] == 0
    lost = {key for key, count in session["lost"].items() if count}
    assert lost == {"kernel_ring/overrun" if overwrite else "kernel_ring/dropped"}
    check_reported(session, trace_cmds)


@pytest.mark.parametrize(
    "transport", ["read", pytest.param("mmap", marks=pytest.mark.vm), "splice"]
)
def test_rotation_repeats_and_skips_nothing(  # fixtures
    tmp_path: Path,
    start_cli: Start,
    generator: Generator,
    trace_cmds: TraceCmds,
    transport: str,
) -> None:
    """Over many segments and flushes each call is reported once."""
    config = write_config(
        tmp_path, session='segment_bytes = "512KiB"', source=f'transport = "{transport}"'
    )
    with daemons.running(start_cli, config) as daemon:
        made = 0
        for count in (3_000, 1, 50_000, 7, 20_000):
            with generator.start("count", count=count, rate=200_000, nr=NUMBER) as running:
                assert running.run()["events"] == count
            made += count
            daemon.await_stored(made)
            now = daemon.session()
            assert (now["unaccounted"], now["lost"]["sink/disk_full"]) == (0, 0), now
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    session = final_session(tmp_path / "state")
    assert len(session["segments"]) > 3
    assert (session["produced"], session["stored"]) == (made, made)
    check_reported(session, trace_cmds)


def _used(session: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rings that got as much as wakes the drain."""
    return [ring for ring in session["rings"] if ring["wakeups"]["watermark"]]


def write_config(directory: Path, *, session: str = "", source: str = "") -> Path:
    """Configure one ftrace session, `calls`, that deletes nothing, with small chunks."""
    return daemon_config(
        directory, log_level="info", core=CORE, session=session, source=source, kind="tracefs"
    )


def final_session(state: Path) -> dict[str, Any]:
    """The final balance of a daemon's session, from its manifests, in the shape of --json."""
    assert not daemons.left_open(state)
    segments = sorted(state.rglob("*.trace.dat"))
    manifests = [json.loads(path.with_name(path.name + ".json").read_text()) for path in segments]
    ledger = manifests[-1]["ledger"]
    assert ledger["closed"]
    assert sum(m["samples"] for m in manifests) == ledger["stored"]
    return {**ledger, "segments": list(map(str, segments))}


def test_one_clock(
    tmp_path: Path, start_cli: Start, generator: Generator, trace_cmds: TraceCmds, perf: Perf
) -> None:
    """Marker, call, marker: by the times of perf's file and of ftrace's the call lies between."""
    config = write_config(
        tmp_path,
        source=f'[[session.source]]\nkind = "perf"\nevents = ["{EVENT}"]\nfilter = "{FILTER}"',
    )
    with daemons.running(start_cli, config) as daemon:
        daemon.post("/v1/mark", {"text": "before"})
        with generator.start("count", count=1, nr=NUMBER) as running:
            assert running.run()["events"] == 1
        daemon.post("/v1/mark", {"text": "after"})
        assert daemon.stop().status == 0
    (trace,) = (tmp_path / "state").rglob("*.trace.dat")
    (data,) = (tmp_path / "state").rglob("*.perf.data")
    (sample,) = perf.script(data, "-F", "time", "--ns")
    for trace_cmd in trace_cmds:
        times = _times(trace_cmd.report(trace, "-t"))
        assert [name for name, _ in times] == ["before", "sys_enter", "after"]
        assert times == sorted(times, key=lambda item: item[1])
        (call_s,) = re.findall(r"\d+\.\d+", sample)
        assert times[0][1] < float(call_s) < times[2][1]


def _times(lines: Sequence[str]) -> list[tuple[str, float]]:
    """Marker's text, or the event's name, and the time in seconds of each line."""
    found = []
    for line in lines:
        match = re.search(r"\s(\d+\.\d+):\s+(\w+):\s+(.*)", line)
        assert match, line
        text = match[3].rpartition(":")[2].strip() if match[2] == "print" else match[2]
        found.append((text, float(match[1])))
    return found
