# SPDX-License-Identifier: Apache-2.0
"""The main path: load, probe, plan, open, drain, sink, close.

`run` and `record` take the same path, whose stages are in `stages`. They differ in what ends them,
and in the origin of the configuration.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeVar

from collectord.config.load import Loaded
from collectord.control.service import Service
from collectord.daemon.commands import DaemonCommands
from collectord.daemon.host_facts import daemon_facts
from collectord.daemon.reloader import Reloader
from collectord.daemon.stages import Run, Stages
from collectord.plan.build import build
from collectord.session.daemon_status import DaemonStatus

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping

    from collectord.config.schema import Config
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import Kernel
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.plan import Plan
    from collectord.session.maps.map_watch import Contents

T = TypeVar("T")


class Daemon:
    """A single run of one configuration.

    Args:
        kernel: its rings are opened.
        config: what to collect.
        facts: what the kernel can do; by default it is probed.
        child: pid of the process that sessions of the `command` scope observe.
        config_sha256: of the configuration's files, for the status; "" if it has none.
        read: reads them again; by default the configuration stays what it is.
        lines_dropped: tells how many lines of the log found no room.

    Attributes:
        commands: what can be requested while it runs, and the snapshots that were.
    """

    def __init__(
        self,
        kernel: Kernel,
        config: Config,
        *,
        facts: KernelFacts | None = None,
        child: int | None = None,
        config_sha256: str = "",
        read: Callable[[], Loaded] | None = None,
        lines_dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        facts = facts or daemon_facts(kernel, config, mount=True)
        plan = build(config, facts)
        loaded = Loaded(config, config_sha256)
        self._reloader = Reloader(kernel, loaded, facts, plan, read or (lambda: loaded))
        self._stages = Stages(kernel, config, facts, plan, child)
        now = self._stages
        self.commands = DaemonCommands(
            self._reloader,
            now.sessions,
            now.timed,
            now.starting,
            now.ending,
            incidents=now.incidents,
        )
        self._started_ns = time.time_ns()
        self._lines_dropped = lines_dropped

    @property
    def plan(self) -> Plan:
        """The plan of what is recorded."""
        return self._reloader.plan

    async def run(
        self,
        stop: asyncio.Event,
        *,
        on_open: Callable[[], Awaitable[None]] | None = None,
        service: Service | None = None,
        on_tick: Callable[[DaemonStatus], None] | None = None,
        salvage_all: bool = True,
        keep_counted: bool = False,
    ) -> tuple[SessionBalance, ...]:
        """Open every session, collect until `stop`, then flush, seal and balance.

        Args:
            stop: ends the collection.
            on_open: awaited once all rings are open and enabled.
            service: the service manager, which is notified of the stages and the state.
            on_tick: called with the status once per flush interval.
            salvage_all: salvage the remains of killed processes for all ftrace sessions, not only
                for those planned here, use the directories of segments exclusively, and note in
                them when the sessions were open.
            keep_counted: read at the end the tables for answers of BPF programs.

        Raises:
            CollectordError: a session cannot be opened or begun; nothing is left open.
        """
        async with AsyncExitStack() as stack:
            run = Run(
                stop=stop,
                stack=stack,
                service=service or Service(),
                on_open=on_open,
                on_tick=on_tick,
                status=self.status,
                reloader=self._reloader,
                take=self.commands.snapshot_for_incident,
                salvage_all=salvage_all,
                keep_counted=keep_counted,
            )
            await self._stages.run(run)
        self.commands.keep_all()
        return self._stages.sessions.balances()

    def status(self) -> DaemonStatus:
        """Return the readings of the last flush interval, and the core's present counters."""
        now = self._stages
        if now.polls is not None:
            now.polls.refresh()
        return DaemonStatus(
            sessions=now.sessions.balances(),
            beginning=now.starting.balances(),
            ending=(*now.ending.balances(), *now.starting.ending()),
            core=now.drain.core.counters(),
            clocks=now.clock,
            started_ns=self._started_ns,
            config_sha256=self._reloader.config_sha256,
            cpus_online=len(now.coverage.online),
            cpus_covered=len(now.coverage.online & now.coverage.covered),
            uncovered_ns=now.coverage.uncovered_ns(),
            uncovered_by_session=now.coverage.uncovered_by_session(),
            **now.crash_recovery.segments.repaired._asdict(),
            left_records=now.crash_recovery.records,
            log_lines_dropped=self._lines_dropped(),
            store_limit_bytes=now.state_dir.limit_bytes,
            bpf=now.watch.status(),
            drain=now.drain.threads(),
            cost=now.meter.cost,
            before=now.sessions.balances_before(),
            reload=self._reloader.status,
            incidents=now.incidents.status(),
            shipping=now.state_dir.shipping,
        )

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Make a call that takes long in the thread that opens rings; the daemon goes on."""
        return await self._stages.opening.run(call)

    async def silent_threads(self) -> tuple[int, ...]:
        """Return the drain threads that make no passes while the daemon collects."""
        return await self._stages.drain.silent_shards() if self._stages.polls is not None else ()

    def unready(self) -> str:
        """Return why not all planned sessions record, "" if they do."""
        now = self._stages
        if now.polls is None:
            return "nothing is recorded"
        waiting = now.starting.names
        if waiting:
            return f"sessions have not begun: {', '.join(waiting)}"
        failed = sum(session.state == "failed" for session in now.sessions)
        return f"{failed} of {len(now.sessions)} sessions failed" if failed else ""

    @property
    def is_abandoned(self) -> bool:
        """Whether threads of this process hang: it can end, but cannot undo all that it did."""
        return self._stages.is_abandoned

    @property
    def counted(self) -> Mapping[str, Contents]:
        """The tables for answers of BPF programs, by session; they are read at the end."""
        return self._stages.counted

    def report_counted(
        self, interval_ns: int, then: Callable[[Mapping[str, Contents]], None]
    ) -> None:
        """Have these tables read while the programs run; see `BpfWatch.report`."""
        self._stages.watch.report(interval_ns, then)

    @property
    def target_fds(self) -> tuple[int, ...]:
        """The descriptors that become readable once a named process or thread has exited."""
        return self._stages.sessions.target_fds
