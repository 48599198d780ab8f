# SPDX-License-Identifier: Apache-2.0
"""A foreign BPF program may hide events from every counter: it is seen, and told."""

from __future__ import annotations

import os
import platform
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.perf_attr import EventType, PerfEventAttr
from collectord.codec.tracepoint import Tracepoint
from collectord.kernel.linux import LinuxKernel
from tests.support import bpf, daemons
from tests.support.recording import (
    check_balance,
    check_listed,
    daemon,
    daemon_config,
    recording,
    segments_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Perfs = tuple[Perf, ...]

pytestmark = pytest.mark.usefixtures("tracefs")

COUNT: Final = 5_000
# A harmless call that is rare, so that nobody else misses its events meanwhile.
NAME: Final = "sched_get_priority_max"
CALL: Final = {"x86_64": 146}.get(platform.machine(), 125)
EVENT: Final = f"syscalls:sys_enter_{NAME}"


@contextmanager
def attached(returns: int) -> Iterator[None]:
    """A program on the tracepoint for the length of a block, attached as perf and bcc do it."""
    kernel = LinuxKernel()
    config = kernel.tracefs.event_id(Tracepoint.parse(EVENT))
    attr = PerfEventAttr(type=EventType.TRACEPOINT, config=config, sample_period=1)
    with bpf.program(returns, b"foreign") as program:
        event = kernel.perf_event_open(attr, pid=os.getpid(), cpu=-1)
        try:
            bpf.attach(event, program)
            yield
        finally:
            kernel.close(event)


@pytest.fixture(autouse=True)
def _needs_bpf(require: Callable[[str], None], tracefs: Path) -> None:
    require("BPF")
    assert (tracefs / "events" / EVENT.replace(":", "/")).is_dir()


@pytest.mark.parametrize(("returns", "stored"), [(0, 0), (1, COUNT)], ids=["hides", "passes"])
def test_a_foreign_program_ends_exactness(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    returns: int,
    stored: int,
) -> None:
    """Whatever a program on the tracepoint returns, nothing is claimed of what it may hide."""
    with attached(returns), generator.start("count", nr=CALL, count=COUNT) as running:
        words = ("-e", EVENT, "-p", str(running.pid))
        with recording(start_cli, tmp_path, *words, warning="suppression_possible") as record:
            running.run()
    session = record.session
    assert session["suppression_possible"]
    assert EVENT in " ".join(session["degraded"])
    for figures in (session, *session["rings"]):
        assert figures["ledger_basis"] == "lost_only"
        assert (figures["produced"], figures["unaccounted"]) == (None, None)
    assert session["stored"] == stored
    check_listed(session, perfs)
    (segment,) = segments_of(session)
    assert daemons.manifest(segment)["ledger"]["basis"] == "lost_only"


def test_without_a_program_it_is_exact(
    start_cli: Start, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """A tracepoint without a foreign program has an exact balance."""
    with (
        generator.start("count", nr=CALL, count=COUNT) as running,
        recording(start_cli, tmp_path, "-e", EVENT, "-p", str(running.pid)) as record,
    ):
        running.run()
    check_balance(record.session, perfs, generated=COUNT)
    assert (record.session["suppression_possible"], record.session["degraded"]) == (False, [])


def test_a_program_that_came_and_went_is_remembered(
    start_cli: Start, tmp_path: Path, generator: Generator
) -> None:
    """Its hidden events stay missing, and that time is marked; then all is exact."""
    config = daemon_config(
        tmp_path,
        log_level="error",
        core='flush_interval = "50ms"',
        session='segment_age = "300ms"',
        events=f'["{EVENT}"]',
    )
    state = tmp_path / "state"

    def make_segment() -> None:
        """Make one more sealed segment, with these calls, or without the hidden ones."""
        sealed = len(daemons.sealed(state))
        _make(generator)
        daemons.wait_for(lambda: len(daemons.sealed(state)) > sealed, "a segment")

    with daemon(start_cli, config) as collector:
        make_segment()
        before = collector.session()
        assert (before["ledger_basis"], before["state"]) == ("exact", "running")
        assert before["suppressed"] == []
        with attached(0):
            daemons.wait_for(
                lambda: collector.session()["suppression_possible"], "the program is seen"
            )
            during = collector.session()
            assert (during["ledger_basis"], during["state"]) == ("lost_only", "degraded")
            assert during["produced"] is None
            _make(generator)
        daemons.wait_for(lambda: not collector.session()["suppression_possible"], "its end")
        make_segment()
        make_segment()
        after = collector.session()
        assert (after["ledger_basis"], after["state"]) == ("exact", "running")
        assert (after["produced"], after["unaccounted"]) == (3 * COUNT, 0)
        (window,) = after["suppressed"]
        assert (window["event"], len(window["programs"])) == (EVENT, 1)
        assert window["since_ns"] < window["until_ns"]
    ledgers = [daemons.manifest(path)["ledger"] for path in daemons.sealed(state)]
    assert [ledger["since_ns"] for ledger in ledgers[1:]] == [
        ledger["until_ns"] for ledger in ledgers[:-1]
    ]
    for ledger in ledgers:
        touched = (
            ledger["since_ns"] < window["until_ns"] and ledger["until_ns"] > window["since_ns"]
        )
        told = [one["event"] for one in ledger["suppressed"]]
        assert (ledger["basis"], told) == (("lost_only", [EVENT]) if touched else ("exact", []))
    bases = [ledger["basis"] for ledger in ledgers]
    assert (bases[0], bases[-1]) == ("exact", "exact")
    assert "lost_only" in bases


def _make(generator: Generator) -> None:
    with generator.start("count", nr=CALL, count=COUNT) as running:
        assert running.run()["events"] == COUNT
