# SPDX-License-Identifier: Apache-2.0
"""The stages of a run, one after the other; a stack undoes them in reverse order."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.control.watchdog import Watchdog, prolong
from collectord.daemon.budget_keeper import BudgetKeeper
from collectord.daemon.claims import await_salvages, claim_places
from collectord.daemon.coverage import Coverage
from collectord.daemon.cpu_watch import CpuWatch
from collectord.daemon.hotplug import Hotplug
from collectord.daemon.process_watch import ProcessWatch
from collectord.daemon.session_polls import SessionPolls
from collectord.daemon.session_set import SessionSet
from collectord.daemon.timed_sessions import Surroundings, TimedSessions
from collectord.errors import CollectordError, KernelError, SinkError
from collectord.plan.build import blame
from collectord.plan.session_plan import RetentionPlan
from collectord.recovery.predecessor import Repaired, repair_leftovers, salvage_traces
from collectord.session.cost_meter import CostMeter
from collectord.session.drain_loop import Drain
from collectord.session.file_workers import FileWorkers
from collectord.session.heartbeat import Heartbeat
from collectord.session.maps.map_watch import BpfWatch
from collectord.session.session_factory import SessionContext
from collectord.sink.state_dir import StateDir
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
    from concurrent.futures import Executor
    from typing import Any

    from collectord.config.schema import Config
    from collectord.config.schema_session import SessionConfig
    from collectord.control.service import Service
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import Kernel
    from collectord.plan.session_plan import Plan, SessionPlan
    from collectord.session.daemon_status import DaemonStatus
    from collectord.session.maps.map_watch import Contents
    from collectord.session.session_factory import AnySession

_LOG: Final = structlog.get_logger()
_LIMITS_INTERVAL_S: Final = 10.0
# Compiling takes time, during which signals are not handled.
_SIGNALS_PAUSE_S: Final = 0.01
# The time that the service manager is asked for: for segments and rings of killed processes, and
# for a session's programs besides compiling.
_RECOVERY_S: Final = 600.0
_LOADING_S: Final = 60.0


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
        salvage_all: see `Daemon.run`.
        keep_counted: likewise.
    """

    stop: asyncio.Event
    stack: AsyncExitStack
    service: Service
    on_open: Callable[[], Awaitable[None]] | None
    on_tick: Callable[[DaemonStatus], None] | None
    status: Callable[[], DaemonStatus]
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
        repaired: what was repaired at the start.
        left_records: records of block traces that a killed run left behind.
        store_limit_bytes: the most that all segments may take, 0 for no limit.
        polls: the schedule of the sessions' polls; None while nothing is collected.
        meter: of the cost of all this.
        timed: sessions that users start.
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
        self.clock = kernel.clocks()
        self.drain = Drain(plan.core, kernel)
        self.watch = BpfWatch()
        self.sessions = SessionSet(self.watch)
        self.timed = TimedSessions(kernel, config, self.sessions)
        self.counted: dict[str, Contents] = {}
        self.coverage = Coverage(plan.sessions, kernel.online_cpus())
        self.repaired = Repaired()
        self.left_records = 0
        self.polls: SessionPolls | None = None
        self._hotplug: Hotplug | None = None  # while something is collected
        self._processes = ProcessWatch(kernel, ())
        share, limit_bytes = config.daemon.budget.percent / 100, config.daemon.memory
        self.meter = CostMeter(share, plan.core.flush_ns, limit_bytes)
        self._heartbeat = Heartbeat(config.daemon.heartbeat)
        limits = _retention(plan)
        self.store_limit_bytes = limits.bytes
        self._state_dir = StateDir(Path(config.daemon.state_dir), limits)

    async def run(self, run: Run) -> bool:
        """Go through all stages; return False if `stop` came before all sessions were open.

        Raises:
            CollectordError: a session cannot be opened or begun.
        """
        workers = await self._claim(run)
        await self._recover(run)
        cpus = self._start_core(run, workers)
        context = self._context(run, workers)
        if not await self._open(run, context):
            return False
        await self._begin(context)
        await self._serve(run, workers)
        await self._collect(run, workers, cpus, context)
        await self._close(run, workers, cpus)
        return True

    async def _claim(self, run: Run) -> FileWorkers:
        """Claim what only one daemon can have: descriptors, names, and places of segments."""
        self._kernel.reserve_files(self._plan.files + self._plan.reserved_files)
        await await_salvages(self._plan, self._kernel, run.stop)
        devices = claim_places(self._plan, self._kernel, run.stack, shared=not run.salvage_all)
        return run.stack.enter_context(FileWorkers(devices))

    async def _recover(self, run: Run) -> None:
        """Seal and salvage what killed processes left."""
        run.service.status("sealing what earlier runs left")
        run.service.extend(_RECOVERY_S)
        place = Path(self._config.daemon.state_dir)
        self.repaired = repair_leftovers(self._plan, place)
        self.left_records = salvage_traces(
            self._plan,
            place,
            kernel=self._kernel,
            host=self._host,
            room_for=self._state_dir.room_for,
            everything=run.salvage_all,
        )
        await await_salvages(self._plan, self._kernel, run.stop)  # those that began meanwhile

    def _start_core(self, run: Run, workers: FileWorkers) -> CpuWatch:
        """Start the threads of the core, and watch the CPUs."""
        run.stack.enter_context(self.drain)
        for device in workers.devices:
            self.drain.core.add_disk(device)
        run.stack.enter_context(self._heartbeat)
        for reason in self.drain.threads().lacks:
            _LOG.warning("drain_threads_degraded", reason=reason)
        return run.stack.enter_context(CpuWatch(self._kernel))

    async def _open(self, run: Run, context: SessionContext) -> bool:
        """Open all sessions; return False if `stop` came before all were open."""
        await run.stack.enter_async_context(self.sessions)
        await asyncio.sleep(_SIGNALS_PAUSE_S)
        if run.stop.is_set():
            return False
        progress = Opening(run.service, self._plan, self._config)
        for plan in self._plan.sessions:
            progress.begin(plan)
            if plan.payload.has_programs:
                await asyncio.sleep(_SIGNALS_PAUSE_S)
            if run.stop.is_set():
                return False
            async with AsyncExitStack() as own:
                with blame(self._config_of(plan)):
                    session = await context.open(plan, own)
                self.sessions.add(session, own.pop_all())
        return True

    async def _begin(self, context: SessionContext) -> None:
        """Begin all sessions; one that may fail is replaced by a placeholder with the reason."""
        for session in self.sessions:
            try:
                with blame(self._config_of(session.plan)):
                    await self.sessions.begin(session)
            except CollectordError as error:
                if not session.plan.contains(error):
                    raise
                failed = context.failed(session.plan, error)
                await self.sessions.replace(failed, AsyncExitStack())
        self.coverage = Coverage(self.sessions.plans, self._kernel.online_cpus())
        self._poll_heartbeat()

    async def _serve(self, run: Run, workers: FileWorkers) -> None:
        """Hold the limits of the state directory, and let others see what is collected."""
        if self._state_dir.limited:
            limits = _keep_limits(self._state_dir, workers.of())
            await run.stack.enter_async_context(_running(limits))
        followers = [f for session in self.sessions for f in session.followers]
        self._processes = run.stack.enter_context(ProcessWatch(self._kernel, followers))
        self._measure_cost()  # its series are there from the first scrape on
        if run.on_open is not None:
            await run.on_open()
        run.service.ready(f"recording: {self.sessions.summary()}")
        watchdog = Watchdog(self.drain.core, run.service)
        await run.stack.enter_async_context(_running(watchdog.watch()))

    async def _collect(
        self, run: Run, workers: FileWorkers, cpus: CpuWatch, context: SessionContext
    ) -> None:
        """Follow the core's flush timer until `stop`."""
        stopping = asyncio.ensure_future(run.stop.wait())
        stopping.add_done_callback(lambda _: self.drain.wake())
        self._tell_of_cpus()
        look = partial(self._look_at_cpus, cpus)
        self._hotplug = hotplug = Hotplug(self.sessions, self.coverage, self._tell_of_cpus, look)
        hotplug.listen(cpus.fileno())
        hotplug.follow()  # CPUs may have come while the sessions were opened
        self.polls = polls = SessionPolls(
            self.sessions,
            kernel=self._kernel,
            watch=self.watch,
            worker=workers.of(),
            before=look,
            flush_ns=self._plan.core.flush_ns,
            stretched=run.on_tick is None,
        )
        # What `record` is told to record has no budget.
        pauses = self._config.daemon.budget_pauses if run.salvage_all else "none"
        keeper = BudgetKeeper(self.meter, pauses)
        self.timed.allow(Surroundings(context, self._joined, self._left, hotplug.settled))
        try:
            while await self.drain.next_pass(run.stop, passes=polls.passes):
                self._processes.poll()
                polls.poll()
                self.timed.poll()
                run.service.status(f"recording: {self.sessions.summary()}")
                self._poll_heartbeat()
                if self._measure_cost():
                    keeper.poll(self.sessions, time.monotonic_ns())
                if run.on_tick is not None:
                    run.on_tick(run.status())
        finally:
            await self.timed.end()
            self.polls = self._hotplug = None
            await hotplug.end()
            await self._heartbeat.rest()
        stopping.cancel()

    async def _close(self, run: Run, workers: FileWorkers, cpus: CpuWatch) -> None:
        """Flush and seal all sessions, and read their programs a last time."""
        run.service.stopping("flushing")
        self._processes.end()
        self._look_at_cpus(cpus)
        async with _running(prolong(run.service, self._written)):
            await self.sessions.end()
        await self.watch.poll(workers.of())
        if run.keep_counted:
            self.counted = await self.watch.contents(workers.of())

    def _written(self) -> int:
        return self.drain.core.counters().written_bytes

    def _context(self, run: Run, workers: FileWorkers) -> SessionContext:
        return SessionContext(
            kernel=self._kernel,
            drain=self.drain,
            host=self._host,
            facts=self._facts,
            clock=self.clock,
            state_dir=self._state_dir,
            workers=workers,
            watch=self.watch,
            stats=self._count_costs(run.stack),
            child=self._child,
            lasting=run.salvage_all,
        )

    def _measure_cost(self) -> bool:
        """Take a reading of the cost if it is time; return whether it was."""
        return self.meter.poll(self.sessions, self.watch.status(), len(self.coverage.online))

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

    def _config_of(self, plan: SessionPlan) -> SessionConfig:
        (config,) = (s for s in self._config.session if s.name == plan.name)
        return config

    def _poll_heartbeat(self) -> None:
        hearts = (session.heart for session in self.sessions)
        self._heartbeat.poll([heart for heart in hearts if heart and heart.is_reached])

    def _look_at_cpus(self, cpus: CpuWatch) -> None:
        """Find the present CPUs, and notify the sessions of those that they lack."""
        if self.coverage.poll(cpus):
            self._tell_of_cpus()
            if self._hotplug is not None:
                self._hotplug.follow()

    def _joined(self) -> None:
        """Watch the CPUs for a session that has come."""
        self.coverage.follow(self.sessions.plans)
        if self._hotplug is not None:
            self._hotplug.follow()  # for CPUs that its plan does not know
        self._tell_of_cpus()

    def _left(self, gone: Sequence[AnySession]) -> None:
        """Forget sessions that have ended."""
        self.coverage.follow(self.sessions.plans)
        for session in gone:
            self.meter.forget(session)

    def _tell_of_cpus(self) -> None:
        for session in self.sessions:
            session.note("cpus", self.coverage.trouble(session.plan))


class Opening:
    """Notifies the manager of what is opened, and asks for the time that compilers may take.

    Args:
        service: the manager.
        plan: of all sessions.
        config: limits the compilers.
    """

    def __init__(self, service: Service, plan: Plan, config: Config) -> None:
        self._service = service
        self._limit_s = config.bpf.compile_time / NS_PER_SECOND
        self._kinds = {s.kind: None for s in plan.sessions if not s.payload.has_programs}
        self._programs = sum(len(s.payload.programs_run) for s in plan.sessions)
        self._compiled = 0

    def begin(self, plan: SessionPlan) -> None:
        """Say that the next session is opened."""
        programs = plan.payload.programs_run
        self._compiled += len(programs)
        if programs:
            names = ", ".join(one.name for one in programs)
            self._service.status(f"compiling {names} ({self._compiled} of {self._programs})")
            self._service.extend(len(programs) * self._limit_s + _LOADING_S)
        elif not plan.payload.has_programs:
            self._service.status(f"opening rings ({', '.join(self._kinds)})")


def _retention(plan: Plan) -> RetentionPlan:
    """Return the limits of the state directory; none for single files, which are never deleted."""
    rotated = [s.sink.retention for s in plan.sessions if s.sink.single_file is None]
    return rotated[0] if rotated else RetentionPlan()


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run work beside a block; it ends with the block, and its errors are raised."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _keep_limits(state_dir: StateDir, worker: Executor) -> None:
    """Check age and free space, which change even if no segment of ours is sealed."""
    while True:
        await asyncio.sleep(_LIMITS_INTERVAL_S)
        try:
            await asyncio.get_running_loop().run_in_executor(worker, state_dir.make_room)
        except SinkError as error:
            _LOG.error("limits_not_kept", error=str(error))
