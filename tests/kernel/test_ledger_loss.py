# SPDX-License-Identifier: Apache-2.0
"""Records that do not fit are counted, each once, by the kernel's own counters."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.perf_attr import RecordType
from collectord.kernel.linux import LinuxKernel
from tests.support import daemons
from tests.support.daemons import FILTER, NUMBER
from tests.support.recording import (
    AT_USUAL_PRIORITY,
    CALLS,
    SYS_ENTER,
    SYS_EXIT,
    check_balance,
    check_listed,
    daemon,
    daemon_config,
    daemon_result,
    record_types,
    recording,
    result_of,
    segments_of,
    stopped,
    told_losses,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from typing import Any

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Perfs = tuple[Perf, ...]

pytestmark = pytest.mark.usefixtures("tracefs")

COUNT: Final = 10_000  # calls per thread of the generator
FULL: Final = "kernel_ring/ring_full"
SERVED: Final = (AT_USUAL_PRIORITY,)  # several starts have this prefix
SAMPLE_RATE: Final = Path("/proc/sys/kernel/perf_event_max_sample_rate")


def _only_full_rings(session: dict[str, Any]) -> int:
    """Return the session's loss, all of which must be to full rings."""
    assert {reason for reason, count in session["lost"].items() if count} == {FULL}
    lost: int = session["lost"][FULL]
    return lost


@pytest.mark.parametrize("pages", [1, 2, 4])
@pytest.mark.parametrize("scope", [("-a",), ("-p",)], ids=["system", "process"])
def test_overload_balances(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    scope: tuple[str, ...],
    pages: int,
) -> None:
    """A ring of few pages loses most of a burst while its reader is stopped, and counts it."""
    with generator.start("count", nr=NUMBER, count=COUNT, threads=4, later=4) as running:
        words = (*CALLS, *scope, *((str(running.pid),) if scope == ("-p",) else ()))
        with (
            recording(start_cli, tmp_path, *words, "-m", str(pages)) as record,
            stopped(record.process),
        ):
            running.run()
    check_balance(record.session, perfs, generated=8 * COUNT)
    for ring in record.session["rings"]:
        assert ring["capacity_bytes"] == pages * mmap.PAGESIZE
    # One filling of all rings was stored, at least, and far from all.
    assert 0 < record.session["stored"] < 4 * COUNT
    _only_full_rings(record.session)


def test_overload_of_a_running_reader_balances(
    run_cli: Run, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """A ring of one page loses at full speed what its reader is too slow for."""
    command = generator.command("count", nr=NUMBER, count=10 * COUNT, cpu=0)
    words = ("-C", "0", "-m", "1", "--output-dir", tmp_path / "out", "--json")
    done = run_cli("record", *CALLS, *words, "--", *command, prefix=AT_USUAL_PRIORITY)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    check_balance(session, perfs, generated=10 * COUNT)
    assert _only_full_rings(session) > 0


@pytest.mark.vm
def test_overload_of_a_shared_ring_balances(
    start_cli: Start, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """If two events share a ring that overflows, each loss is counted for one of them."""
    exits = ("-e", SYS_EXIT, "--filter", FILTER)
    with (
        generator.start("count", nr=NUMBER, count=COUNT, threads=2) as running,
        recording(start_cli, tmp_path, *CALLS, *exits, "-a", "-m", "2") as record,
        stopped(record.process),
    ):
        running.run()
    check_balance(record.session, perfs, generated=2 * 2 * COUNT)
    assert _only_full_rings(record.session) > COUNT


@pytest.mark.parametrize(
    ("ring", "loses"), [("16M", False), ("2", True)], ids=["room for all", "two pages"]
)
def test_a_reader_that_stops_for_two_seconds(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    ring: str,
    loses: bool,
) -> None:
    """Events of the pause wait in the ring; those that the ring cannot hold are counted."""
    rate, seconds = 20_000, 2
    with (
        generator.start("count", nr=NUMBER, count=seconds * rate, rate=rate, cpu=0) as running,
        recording(start_cli, tmp_path, *CALLS, "-C", "0", "-m", ring) as record,
        stopped(record.process),
    ):
        assert running.run()["seconds"] > seconds - 0.1
    check_balance(record.session, perfs, generated=seconds * rate)
    if loses:
        assert _only_full_rings(record.session) > 0
    else:
        assert record.session["stored"] == seconds * rate


def test_a_loss_is_counted_once(
    start_cli: Start,
    run_cli: Run,
    tmp_path: Path,
    generator: Generator,
    perfs: Perfs,
) -> None:
    """LOST in the ring, the kernel's counter and LOST_SAMPLES at the close are one of one CPU."""
    (*_, cpu) = LinuxKernel().online_cpus()
    config = daemon_config(
        tmp_path,
        core='flush_interval = "100ms"',
        target=f'scope = "cpus"\ncpus = "{cpu}"',
        source='ring = "2pages"',
    )
    with (
        generator.start("count", nr=NUMBER, count=COUNT, cpu=cpu) as burst,
        generator.start("count", nr=NUMBER, count=1, cpu=cpu) as late,
        daemon(start_cli, config) as running,
    ):
        with stopped(running.process):
            burst.run()
        # The next call finds room, and leaves a LOST record before its own.
        running.await_stored(1)
        late.run()
    session = daemon_result(tmp_path)
    check_balance(session, perfs, generated=COUNT + 1)
    lost = _only_full_rings(session)
    (segment,) = segments_of(session)
    assert told_losses(segment) == {RecordType.LOST: lost, RecordType.LOST_SAMPLES: lost}
    assert list(daemons.manifest(segment)["lost_samples"].values()) == [lost]
    asked = run_cli("query", "--csv", "SELECT cpu, sum(events) FROM losses GROUP BY ALL", segment)
    assert asked.stdout.split() == ["cpu,sum(events)", f"{cpu},{2 * lost}"]
    assert asked.stderr.startswith(f"collectord: {lost:,} records of ")
    assert f" were lost on CPU {cpu} in what was read" in asked.stderr


@pytest.fixture
def low_sample_rate() -> Iterator[None]:
    """A sysctl low enough for a 10 us timer to be throttled; other users sample slower still."""
    before = SAMPLE_RATE.read_text()
    SAMPLE_RATE.write_text("20000")
    yield
    SAMPLE_RATE.write_text(before)


@pytest.mark.usefixtures("low_sample_rate")
@pytest.mark.alone
def test_throttling_is_counted(
    run_cli: Run, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """Each time the kernel silences an event for the rest of a tick is counted once."""
    command = generator.command("spin", seconds=0.3)
    words = ("-e", "cpu-clock", "-c", "10000", "--output-dir", tmp_path / "out", "--json")
    done = run_cli("record", *words, "--", *command)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    check_listed(session, perfs)
    (segment,) = segments_of(session)
    throttles = sum(ring["throttles"] for ring in session["rings"])
    assert throttles == record_types(segment)[RecordType.THROTTLE] > 0


@pytest.mark.parametrize(
    "event",
    [
        ("-e", "cpu-clock", "-F", "1000"),
        ("-e", "task-clock", "-c", "1000000"),
        ("-e", "page-faults", "-F", "1000"),
        ("-e", "page-faults", "-c", "3"),
        ("-e", SYS_ENTER, "-c", "2"),
        (
            "-e",
            "sched:sched_stat_runtime",
        ),
    ],
    ids=["frequency", "clock", "frequency of a counter", "period", "tracepoint", "weighted"],
)
def test_no_figure_where_nobody_counts(
    run_cli: Run, tmp_path: Path, *, generator: Generator, perfs: Perfs, event: tuple[str, ...]
) -> None:
    """Without a count of what the kernel produced there is a basis that says so, and no 0."""
    command = generator.command("spin", seconds=0.1)
    done = run_cli("record", *event, "--output-dir", tmp_path / "out", "--json", "--", *command)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    for figures in (session, *session["rings"]):
        assert figures["ledger_basis"] == "lost_only"
        assert (figures["produced"], figures["unaccounted"]) == (None, None)
    assert session["stored"] > 0
    check_listed(session, perfs)
    (segment,) = segments_of(session)
    assert daemons.manifest(segment)["produced"] is None
