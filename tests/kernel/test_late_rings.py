# SPDX-License-Identifier: Apache-2.0
"""Rings of ftrace that the kernel made late: drained from then on, or stored at the end, or lost.

To the session it is one whether a CPU comes online after its opening or was left out of its plan:
the kernel has a ring for it, and the session none.
"""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import SessionConfig, TargetConfig
from collectord.daemon.daemon import Daemon
from collectord.daemon.host_facts import host_facts
from collectord.errors import KernelError
from collectord.kernel.linux import LinuxKernel
from collectord.ledger.ledger_json import to_json
from collectord.model import ScopeKind
from collectord.reader.verify import verify
from collectord.text.units import Nanoseconds, RingSize
from tests.support import daemons
from tests.support.configs import tracefs_source
from tests.support.daemons import EVENT, FILTER, NUMBER

if TYPE_CHECKING:
    from collectord.kernel.values.ring_files import RingFiles
    from collectord.ledger.record_ledger import SessionBalance
    from tests.support.generator import Generator
    from tests.support.trace_cmds import TraceCmd

    TraceCmds = tuple[TraceCmd, ...]

pytestmark = pytest.mark.usefixtures("tracefs")

CPUS: Final = tuple(sorted(os.sched_getaffinity(0)))
EARLY, LATE = CPUS[0], CPUS[-1]
COUNT: Final = 2_000


class Refusing(LinuxKernel):
    """A kernel that refuses the late ring once, as for want of descriptors."""

    refused = False

    def open_instance_ring(self, instance: int, cpu: int) -> RingFiles:
        """See `Kernel.open_instance_ring`."""
        if cpu == LATE and not self.refused:
            self.refused = True
            raise KernelError("cannot open a ring", errno=errno.EMFILE)
        return super().open_instance_ring(instance, cpu)


def config(state: Path, transport: str = "read", **session: Any) -> Config:  # noqa: ANN401 - of the schema
    """Return the configuration of one session of this run's marked system calls."""
    source = tracefs_source(
        EVENT,
        filter=FILTER,
        ring=RingSize(512 << 10),
        transport=transport,
    )
    one = SessionConfig(name=f"late{os.getpid()}", source=(source,), **session)
    core = DaemonConfig(state_dir=str(state), flush_interval=Nanoseconds(50_000_000))
    return Config(daemon=core, session=(one,))


def collected(
    settings: Config,
    generator: Generator,
    *,
    count: int = COUNT,
    kernel: type[LinuxKernel] = Refusing,
) -> tuple[SessionBalance, SessionBalance]:
    """Balances of a session without the ring of CPU `LATE`: while it runs, and at its end."""
    facts = host_facts(LinuxKernel(), settings, mount=True)
    daemon = Daemon(kernel(), settings, facts=replace(facts, cpus_online=(EARLY,)))
    seen: list[SessionBalance] = []

    def on_tick(status: Any) -> None:  # noqa: ANN401 - of the daemon
        seen.extend(status.sessions)
        if sum(ring.produced or 0 for ring in status.sessions[0].rings) >= 2 * count:
            stop.set()

    stop = asyncio.Event()

    async def on_open() -> None:
        def load() -> None:
            for cpu in (EARLY, LATE):
                with generator.start("count", cpu=cpu, count=count, nr=NUMBER) as running:
                    assert running.run()["events"] == count

        await asyncio.get_running_loop().run_in_executor(None, load)

    (ended,) = asyncio.run(daemon.run(stop, on_open=on_open, on_tick=on_tick, salvage_all=False))
    return seen[-1], ended


def test_what_nobody_drained_is_stored_at_the_end(
    tmp_path: Path, generator: Generator, trace_cmds: TraceCmds
) -> None:
    """In flight until then, with its CPU; a last segment has it, and the whole balance."""
    during, ended = collected(config(tmp_path / "state"), generator)
    _, late = during.rings
    assert (late.label.cpu, late.produced, late.in_flight) == (LATE, COUNT, COUNT)
    assert (during.produced, during.unaccounted) == (2 * COUNT, 0)
    assert (ended.produced, ended.stored, ended.unaccounted) == (2 * COUNT, 2 * COUNT, 0)
    assert (sum(ended.lost.values()), ended.in_flight) == (0, 0)
    assert any(f"CPU {LATE}: online since the start" in why for why in ended.degraded_reasons)
    own, last = map(Path, ended.segments)
    for trace_cmd in trace_cmds:
        lines = trace_cmd.report(last)
        assert len(lines) == COUNT
        assert all(f"[{LATE:03d}]" in line for line in lines)
        assert "read events" in trace_cmd.stat(last)
    before, after = (daemons.manifest(path) for path in (own, last))
    assert (before["ledger"]["produced"], before["ledger"]["in_flight"]) == (2 * COUNT, COUNT)
    ledger = after["ledger"]
    assert (ledger["produced"], ledger["stored"], ledger["in_flight"]) == (2 * COUNT, 2 * COUNT, 0)
    assert ledger["produced_before"] == ledger["produced_after"] == 2 * COUNT
    assert (after["recovered"], after["run"]) == (False, before["run"])
    assert (after["stored_before"], after["samples"]) == (COUNT, COUNT)
    assert [verdict.finding for verdict in verify([tmp_path / "state"])] == [None, None]


@pytest.mark.parametrize("transport", ["read", "mmap", "splice"])
def test_a_ring_that_can_be_opened_is_drained(
    tmp_path: Path, generator: Generator, trace_cmds: TraceCmds, *, transport: str
) -> None:
    """The session continues in a segment that has a place for it, and lacks nothing."""
    settings = config(tmp_path / "state", transport)
    during, ended = collected(settings, generator, kernel=LinuxKernel)
    assert (during.degraded_reasons, during.unaccounted) == ((), 0)
    assert [ring.label.cpu for ring in ended.rings] == [EARLY, LATE]
    assert [(ring.stored, ring.unaccounted) for ring in ended.rings] == [(COUNT, 0)] * 2
    assert (ended.produced, sum(ended.lost.values()), ended.in_flight) == (2 * COUNT, 0, 0)
    for trace_cmd in trace_cmds:
        lines = [line for path in ended.segments for line in trace_cmd.report(Path(path))]
        assert sum(f"[{LATE:03d}]" in line for line in lines) == COUNT
        assert len(lines) == 2 * COUNT
    verdicts = verify([tmp_path / "state"])
    assert [verdict.finding for verdict in verdicts] == [None] * len(ended.segments)


def test_what_the_ring_overwrote_is_lost(tmp_path: Path, generator: Generator) -> None:
    """The kernel counts it, on that CPU, whether or not anybody drains."""
    _, ended = collected(config(tmp_path / "state"), generator, count=10 * COUNT)
    late = next(ring for ring in ended.rings if ring.label.cpu == LATE)
    assert late.produced == 10 * COUNT
    assert 0 < late.stored < 10 * COUNT
    assert late.lost["kernel_ring/overrun"] == 10 * COUNT - late.stored
    assert (late.unaccounted, ended.unaccounted) == (0, 0)


def test_one_file_has_no_room_for_it(tmp_path: Path, generator: Generator) -> None:
    """Then it is lost, and the reason says why, in the manifest too."""
    file = tmp_path / "trace.dat"
    _, ended = collected(config(tmp_path / "state", single_file=str(file)), generator)
    assert (ended.produced, ended.stored, ended.unaccounted) == (2 * COUNT, COUNT, 0)
    assert {pair: n for pair, n in ended.lost.items() if n} == {"kernel_ring/uncovered": COUNT}
    ledger = daemons.manifest(file)["ledger"]
    assert ledger["lost"]["kernel_ring/uncovered"] == COUNT
    assert (ledger["in_flight"], ledger["unaccounted"]) == (0, 0)
    rings = to_json(ended)["rings"]
    assert [ring["cpu"] for ring in rings] == [EARLY, LATE]


def test_cpus_that_were_not_asked_for_are_not_recorded(
    tmp_path: Path, generator: Generator
) -> None:
    """A session that names its CPUs has nothing of others."""
    settings = config(tmp_path / "state", target=TargetConfig(scope=ScopeKind.CPUS, cpus=(EARLY,)))
    daemon = Daemon(LinuxKernel(), settings, facts=host_facts(LinuxKernel(), settings, mount=True))
    stop = asyncio.Event()

    async def on_open() -> None:
        for cpu in (EARLY, LATE):
            with generator.start("count", cpu=cpu, count=COUNT, nr=NUMBER) as running:
                assert running.run()["events"] == COUNT
        stop.set()

    (ended,) = asyncio.run(daemon.run(stop, on_open=on_open, salvage_all=False))
    assert (ended.produced, ended.stored) == (COUNT, COUNT)
    assert [ring.label.cpu for ring in ended.rings] == [EARLY]
