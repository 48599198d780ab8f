# SPDX-License-Identifier: Apache-2.0
"""The stages of a run, one after the other; a stack undoes them in reverse order."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.control.watchdog import Watchdog, prolong
from collectord.daemon.async_waits import ANSWER_S, answered, running, stop_or_failure
from collectord.daemon.budget_keeper import BudgetKeeper
from collectord.daemon.changeover import Changeover
from collectord.daemon.claims import Places, await_salvages
from collectord.daemon.coverage import Coverage
from collectord.daemon.cpu_watch import CpuWatch
from collectord.daemon.crash_recovery import CrashRecovery
from collectord.daemon.ending_sessions import EndingSessions
from collectord.daemon.hotplug import Hotplug
from collectord.daemon.incidents.incident_maker import Incidents
from collectord.daemon.packer import Packer, share_of
from collectord.daemon.process_watch import ProcessWatch
from collectord.daemon.reloader import Running
from collectord.daemon.session_polls import SessionPolls
from collectord.daemon.session_set import SessionSet
from collectord.daemon.staging_memory import StagingMemory
from collectord.daemon.starting_sessions import StartingSessions
from collectord.daemon.symbol_lists import SymbolLists
from collectord.daemon.timed_sessions import JoinContext, TimedSessions
from collectord.errors import KernelError, SinkError
from collectord.session.cost_meter import CostMeter
from collectord.session.drain_loop import Drain
from collectord.session.file_workers import FileWorkers
from collectord.session.heartbeat import Heartbeat
from collectord.session.maps.map_watch import BpfWatch
from collectord.session.opening_thread import OpeningThread
from collectord.session.session_factory import SessionContext
from collectord.sink.state_dir import StateDir

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from contextlib import AsyncExitStack
    from typing import Any

    from collectord.config.schema import Config
    from collectord.control.service import Service
    from collectord.daemon.incidents.incident_maker import Take
    from collectord.daemon.reloader import Reloader
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import Kernel
    from collectord.plan.plan import Plan
    from collectord.plan.sink_plan import SinkPlan
    from collectord.session.daemon_status import DaemonStatus
    from collectord.session.maps.map_watch import Contents
    from collectord.session.session_factory import AnySession

_LOG: Final = structlog.get_logger()
_LIMITS_INTERVAL_S: Final = 10.0
# The time that the service manager is asked for, for segments and rings of killed processes.
_RECOVERY_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Run:
    """The arguments of a run.

    Attributes:
        stop: ends the collection.
        stack: undoes the stages.
        service: is notified of the stages and of the state.
        on_open: awaited once all rings are open and enabled.
        on_tick: called with the status once per flush interval.
        status: reads the daemon's.
        reloader: carries out reloads from the end of the start to the stop.
        take: takes the snapshots of an incident.
        salvage_all: see `Daemon.run`.
        keep_counted: likewise.
    """

    stop: asyncio.Event
    stack: AsyncExitStack
    service: Service
    on_open: Callable[[], Awaitable[None]] | None
    on_tick: Callable[[DaemonStatus], None] | None
    status: Callable[[], DaemonStatus]
    reloader: Reloader
    take: Take
    salvage_all: bool
    keep_counted: bool


class Stages:
    """The stages of a daemon, and what they have found and opened so far.

    Args:
        kernel: its rings are opened.
        config: what to collect.
        facts: what the kernel can do.
        plan: made of both.
        child: pid of the process that sessions of the `command` scope observe.

    Attributes:
        clock: a reading at the start.
        drain: the drain of the core.
        watch: reads BPF programs.
        sessions: the live ones.
        counted: the tables for answers of BPF programs, by session, if they are kept.
        coverage: of the CPUs.
        state_dir: the segments of all sessions.
        crash_recovery: what killed processes left.
        polls: the schedule of the sessions' polls; None while nothing is collected.
        meter: of the cost of all this.
        starting: those that are wanted, and do not record yet.
        ending: those that are not wanted any more, and have not ended yet.
        timed: sessions that users start.
        incidents: makes incidents of what flight recorders hold.
        opening: the thread that opens rings; it is known to the sources as the daemon's own.
        is_abandoned: a disk did not answer before the end, and a thread waits for it still.
    """

    def __init__(
        self, kernel: Kernel, config: Config, facts: KernelFacts, plan: Plan, child: int | None
    ) -> None:
        self._kernel = kernel
        self._config = config
        self._facts = facts
        self._plan = plan
        self._child = child
        self._host = kernel.host()
        self._symbol_lists = SymbolLists(self._host.boot_id)
        self.clock = kernel.clocks()
        self.drain = Drain(plan.core, kernel)
        self._staging = StagingMemory(kernel, config.daemon.opener, plan.core)
        self.watch = BpfWatch()
        self.sessions = SessionSet(self.watch)
        self.ending = EndingSessions(self.sessions)
        self.starting = StartingSessions(self.sessions, self.ending)
        self.timed = TimedSessions(kernel, config, self.sessions, self.starting, self.ending)
        self.counted: dict[str, Contents] = {}
        self.coverage = Coverage((), kernel.online_cpus())
        self.polls: SessionPolls | None = None
        self._processes = ProcessWatch(kernel)
        share, limit_bytes = config.daemon.budget.percent / 100, config.daemon.memory
        self.meter = CostMeter(share, plan.core.flush_ns, limit_bytes)
        self._keeper = BudgetKeeper(self.meter, config.daemon.budget_pauses)
        self._heartbeat = Heartbeat(config.daemon.heartbeat)
        self._opener = config.daemon.opener
        root = Path(config.daemon.state_dir)
        self.state_dir = StateDir(root, plan.retention)
        self.incidents = Incidents(
            kernel, config, root, self.sessions, host=self._host, meter=self.meter
        )
        self.crash_recovery = CrashRecovery(
            kernel,
            plan,
            root,
            host=self._host,
            staging=self._staging,
            room_for=self.state_dir.room_for,
        )
        self.opening = OpeningThread()
        self._hotplug: Hotplug  # from `_start_core` on
        self._places: Places  # from `_claim` on
        self._workers: FileWorkers  # likewise
        self._is_ready = False
        self.is_abandoned = False

    async def run(self, run: Run) -> None:
        """Go through all stages. Without sessions if `stop` comes before they are open.

        Raises:
            CollectordError: a session cannot be opened or begun.
        """
        await self._claim(run)
        await self._recover(run)
        if self.is_abandoned:
            return
        self._start_core(run)
        context = self._context(run)
        await run.stack.enter_async_context(self.sessions)
        run.stack.push_async_callback(self._end_others, run.reloader)
        await asyncio.sleep(0)  # a signal may be due
        if not run.stop.is_set():
            changeover = Changeover(
                context,
                self.sessions,
                self.starting,
                self.ending,
                self._places,
                service=run.service,
                told=self._on_exchange,
            )
            if not run.salvage_all:
                self.starting.be_patient()  # a command waits for all of them
            around = JoinContext(context, self._places, self._on_exchange, self._forget)
            opening = self._open(run, changeover, around)
            await self._collect(run, changeover, opening)
            await self._close(run)
            await self._hotplug.settled()

    async def _claim(self, run: Run) -> None:
        """Claim what only one daemon can have: descriptors, names, and places of segments."""
        self._kernel.reserve_files(self._plan.files + self._plan.reserved_files)
        await await_salvages(self._plan, self._kernel, run.stop)
        self._places = run.stack.enter_context(Places(self._kernel, shared=not run.salvage_all))
        claims = self._places.start(self._plan.sessions)
        await answered(claims, run.stop, ANSWER_S if run.salvage_all else None)
        named = zip(self._plan.sessions, claims, strict=True)
        # Those whose disks do not answer are claimed when their sessions begin.
        found = {plan.name: claim.result() for plan, claim in named if claim.done()}
        devices = {name: device for name, device in found.items() if device is not None}
        self._workers = run.stack.enter_context(FileWorkers(devices))
        self.state_dir.delete_in(self._workers.on)

    async def _recover(self, run: Run) -> None:
        """Seal and salvage the files and rings that killed processes left."""
        run.service.status("sealing what earlier runs left")
        run.service.extend(_RECOVERY_S)
        done = await self.crash_recovery.recover(run.stop, everything=run.salvage_all)
        self.is_abandoned = not done

    def _start_core(self, run: Run) -> None:
        """Start the threads of the core and of this process, and watch the CPUs."""
        self._staging.use(self.drain, run.stack)
        run.stack.enter_context(self.drain)
        for device in self._workers.devices:
            self.drain.core.add_disk(device)
        run.stack.enter_context(self._heartbeat)
        run.stack.enter_context(self.opening)
        run.stack.enter_context(self._processes)
        for reason in self.drain.threads().lacks:
            _LOG.warning("drain_threads_degraded", reason=reason)
        watch = run.stack.enter_context(CpuWatch(self._kernel))
        self._hotplug = Hotplug(self.sessions, self.coverage, watch)

    def _on_exchange(self) -> None:
        """Follow the sessions that are live now."""
        self.coverage.follow(self.sessions.plans)
        self._symbol_lists.keep(self.sessions.plans)
        self._follow_processes()
        self._hotplug.follow()  # for CPUs that a plan does not know
        self._hotplug.notify()

    def _follow_processes(self) -> None:
        self._processes.follow([f for session in self.sessions for f in session.followers])

    async def _open(self, run: Run, changeover: Changeover, around: JoinContext) -> None:
        """Open all sessions, then let others see what is collected.

        While programs compile, the other sessions record already: those of a daemon, since a
        recording has a command that waits for all of them.
        """
        plan = await self.opening.run(run.reloader.present)
        plans = plan.sessions
        first = [one for one in plans if run.salvage_all and not one.payload.has_programs]
        for some in (first, [one for one in plans if one not in first]):
            await changeover.start(self._config, plan, some)
            if run.stop.is_set():
                return
        await run.reloader.stand_in(self.sessions, changeover, self.opening)
        coming = {Path(plan.sink.directory) for plan in self.starting.plans}
        await self.opening.run(partial(self.crash_recovery.segments.repair_rest, coming))
        await self._serve(run)
        self.timed.allow(around)
        reloads = Running(changeover, self.opening, run.service, self._apply)
        run.reloader.begin(reloads)

    async def _serve(self, run: Run) -> None:
        """Keep limits, compress old segments, and let others see what is collected."""
        self._poll_heartbeat()
        await run.stack.enter_async_context(running(self._keep_limits()))
        if run.salvage_all:
            packer = Packer(self._sinks, self._spare_share, self.state_dir)
            await run.stack.enter_async_context(running(packer.run(self._workers.of())))
        self._measure_cost()  # its series are there from the first scrape on
        self._is_ready = True
        # Ahead of the servers, which take long to load: a client that comes now waits for them.
        run.service.ready(self._summary())
        watchdog = Watchdog(self.drain.core, run.service)
        await run.stack.enter_async_context(running(watchdog.watch()))
        if run.salvage_all:
            await self.incidents.begin(run.take)
        if run.on_open is not None:
            await run.on_open()

    async def _collect(
        self, run: Run, changeover: Changeover, opening: Coroutine[Any, Any, None]
    ) -> None:
        """Follow the core's flush timer until `stop`, while sessions are opened beside it.

        Raises:
            CollectordError: one cannot be.
        """
        self._hotplug.begin()
        self.polls = polls = SessionPolls(
            self.sessions,
            kernel=self._kernel,
            watch=self.watch,
            worker=self._workers.of(),
            before=self._hotplug.poll,
            flush_ns=self._plan.core.flush_ns,
            stretched=run.on_tick is None,
        )
        opened = asyncio.ensure_future(opening)
        try:
            async with stop_or_failure(run.stop, opened, self.drain.wake) as end:
                while await self.drain.next_pass(end, passes=polls.passes):
                    self._poll(run, polls)
        finally:
            await changeover.stop()
            opened.cancel()
            await asyncio.wait([opened])
            run.reloader.stop()
            await self.timed.let_go()
            await self.incidents.end()
            self.polls = None
            self._hotplug.end()
            await self._heartbeat.stop()
        if not opened.cancelled():
            opened.result()  # or its error

    def _summary(self) -> str:
        waiting = len(self.starting.names)
        beginning = f", {waiting} beginning" if waiting else ""
        return f"recording: {self.sessions.summary()}{beginning}"

    def _poll(self, run: Run, polls: SessionPolls) -> None:
        self._processes.poll()
        polls.poll()
        self.timed.poll()
        self.incidents.poll()
        self._poll_heartbeat()
        # There is no budget for what `record` is told to record.
        if self._measure_cost() and run.salvage_all:
            self._keeper.poll(self.sessions, time.monotonic_ns())
        if self._is_ready:
            run.service.status(self._summary())
            if run.on_tick is not None:
                run.on_tick(run.status())

    async def _close(self, run: Run) -> None:
        """Flush and seal all sessions, and read their programs a last time."""
        run.service.stopping("flushing")
        self._processes.end()
        self._hotplug.poll()
        if self._opener and self._kernel.opener_listens(self._opener):
            self.sessions.outlive()
        async with running(prolong(run.service, self._written)):
            await asyncio.gather(self.sessions.end(), self._end_others(run.reloader))
        await self.watch.poll(self._workers.of())
        if run.keep_counted:
            self.counted = await self.watch.contents(self._workers.of())

    async def _end_others(self, reloader: Reloader) -> None:
        """Wait for sessions that are not live: those that end, and those of a reload."""
        await reloader.end()
        await self.starting.end()
        for plan in self.starting.abandoned:
            self._workers.abandon(plan.name)
        self._places.abandon(self.starting.abandoned)
        self.is_abandoned = bool(self.starting.abandoned)
        await self.timed.end()
        await self.ending.end()

    def _apply(self, config: Config, plan: Plan) -> None:
        """Take over the settings of a configuration that was loaded anew."""
        self.state_dir.limit(plan.retention)
        self._heartbeat.beat_every(config.daemon.heartbeat)
        self.meter.limit(config.daemon.budget.percent / 100, config.daemon.memory)
        self._keeper.may_pause(config.daemon.budget_pauses)
        self._opener = config.daemon.opener
        self.incidents.apply(config)

    def _written(self) -> int:
        return self.drain.core.counters().written_bytes

    def _context(self, run: Run) -> SessionContext:
        return SessionContext(
            kernel=self._kernel,
            drain=self.drain,
            host=self._host,
            facts=self._facts,
            clock=self.clock,
            state_dir=self.state_dir,
            workers=self._workers,
            watch=self.watch,
            stats=self._count_costs(run.stack),
            child=self._child,
            opening=self.opening,
            repair=self.crash_recovery.segments.repair,
            lasting=run.salvage_all,
        )

    def _measure_cost(self) -> bool:
        """Take a reading of the cost if it is time; return whether it was."""
        return self.meter.poll(self.sessions, self.watch.status(), len(self.coverage.online))

    def _sinks(self) -> list[SinkPlan]:
        return [plan.sink for plan in self.sessions.plans]

    def _spare_share(self) -> float:
        return share_of(self.meter.cost, len(self.coverage.online))

    def _count_costs(self, stack: AsyncExitStack) -> bool:
        """Let the kernel count the cost of BPF programs, if configured and permitted."""
        if not any(plan.payload.counts_costs for plan in self._plan.sessions):
            return False
        try:
            fd = self._kernel.enable_bpf_stats()
        except KernelError as error:
            _LOG.warning("bpf_stats_refused", error=str(error))
            return False
        stack.callback(self._kernel.close, fd)
        return True

    def _poll_heartbeat(self) -> None:
        hearts = (session.heart for session in self.sessions)
        self._heartbeat.poll([heart for heart in hearts if heart and heart.is_reached])

    def _forget(self, gone: Sequence[AnySession]) -> None:
        """Forget sessions that have ended."""
        self.coverage.follow(self.sessions.plans)
        self._follow_processes()
        for session in gone:
            self.meter.forget(session)

    async def _keep_limits(self) -> None:
        """Check age and free space, which change even if no segment of ours is sealed."""
        worker = self._workers.of()
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(worker, self.state_dir.look_at_shipping)
            await asyncio.sleep(_LIMITS_INTERVAL_S)
            short = False
            if self.state_dir.limited:
                try:
                    await loop.run_in_executor(worker, self.state_dir.make_room)
                    short = await loop.run_in_executor(worker, self.state_dir.is_short)
                except SinkError as error:
                    _LOG.error("limits_not_kept", error=str(error))
            await self.incidents.keep_limits(short=short)
