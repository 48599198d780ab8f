# SPDX-License-Identifier: Apache-2.0
"""The main path: load, probe, plan, open, drain, sink, close.

`run` and `record` take the same path. They differ in what ends them, and in the origin of the
configuration.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.daemon.claims import await_salvages, claim_places
from collectord.daemon.coverage import Coverage
from collectord.daemon.cpu_watch import CpuWatch
from collectord.daemon.host_facts import host_facts
from collectord.daemon.session_polls import SessionPolls
from collectord.errors import CollectordError, KernelError, SinkError, UsageError
from collectord.model import FLIGHT_RECORDER
from collectord.plan.build import blame, build
from collectord.plan.session_plan import RetentionPlan
from collectord.recovery.predecessor import Repaired, repair_leftovers, salvage_traces
from collectord.session.daemon_status import DaemonStatus
from collectord.session.drain_loop import Drain
from collectord.session.file_workers import FileWorkers
from collectord.session.maps.map_watch import BpfWatch
from collectord.session.ring_snapshot import Snapshot, Trigger
from collectord.session.session_factory import SessionContext
from collectord.sink.state_dir import StateDir
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
    from concurrent.futures import Executor
    from typing import Any

    from collectord.config.schema import Config
    from collectord.config.schema_session import SessionConfig
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import Kernel
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.session_plan import Plan, SessionPlan
    from collectord.session.maps.map_watch import Contents
    from collectord.session.session_factory import AnySession

_LOG: Final = structlog.get_logger()
_LIMITS_INTERVAL_S: Final = 10.0
_SNAPSHOTS_KEPT: Final = 1000
# Compiling takes time, during which signals are not handled.
_SIGNALS_PAUSE_S: Final = 0.01


class Daemon:
    """A single run of one configuration.

    Args:
        kernel: its rings are opened.
        config: what to collect.
        facts: what the kernel can do; by default it is probed.
        child: pid of the process that sessions of the `command` scope observe.

    Attributes:
        plan: what is opened.
        counted: the tables for answers of BPF programs, by session; set at the end of the run.
        snapshots: the last ones that were requested; after the run also all others.
    """

    def __init__(
        self,
        kernel: Kernel,
        config: Config,
        *,
        facts: KernelFacts | None = None,
        child: int | None = None,
    ) -> None:
        self._config = config
        self._kernel = kernel
        self._facts = facts or host_facts(kernel, config, mount=True)
        self.plan: Plan = build(config, self._facts)
        self._child = child
        self._sessions: list[AnySession] = []
        self._watch = BpfWatch()
        self.counted: dict[str, Contents] = {}
        self.snapshots: deque[Snapshot] = deque(maxlen=_SNAPSHOTS_KEPT)
        self._drain = Drain(self.plan.core, kernel)
        self._host = kernel.host()
        self._clock = self._kernel.clocks()
        self._started_ns = time.time_ns()
        self._state_dir = Path(config.daemon.state_dir)
        self._repaired = Repaired()
        self._left_records = 0
        self._coverage = Coverage(self.plan.sessions, self._kernel.online_cpus())
        self._polls: SessionPolls | None = None  # while it collects
        self._config_sha256 = hashlib.sha256(repr(config).encode()).hexdigest()

    async def run(
        self,
        stop: asyncio.Event,
        *,
        on_open: Callable[[], Awaitable[None]] | None = None,
        on_close: Callable[[], None] | None = None,
        on_tick: Callable[[DaemonStatus], None] | None = None,
        salvage_all: bool = True,
        keep_counted: bool = False,
    ) -> tuple[SessionBalance, ...]:
        """Open every session, collect until `stop`, then flush, seal and balance.

        Args:
            stop: ends the collection.
            on_open: awaited once all rings are open and enabled.
            on_close: called when the final flush begins.
            on_tick: called with the status once per flush interval.
            salvage_all: salvage the remains of killed processes for all ftrace sessions, not only
                for those planned here, and use the directories of segments exclusively.
            keep_counted: read at the end the tables for answers of BPF programs.

        Raises:
            CollectordError: a session cannot be opened or begun; nothing is left open.
        """
        async with AsyncExitStack() as stack:
            self._kernel.reserve_files(self.plan.files + self.plan.reserved_files)
            await await_salvages(self.plan, self._kernel, stop)
            devices = claim_places(self.plan, self._kernel, stack, shared=not salvage_all)
            workers = stack.enter_context(FileWorkers(devices))
            state_dir = self._open_state_dir()
            self._repaired = repair_leftovers(self.plan, self._state_dir)
            self._left_records = salvage_traces(
                self.plan,
                self._state_dir,
                kernel=self._kernel,
                host=self._host,
                room_for=state_dir.room_for,
                everything=salvage_all,
            )
            await await_salvages(self.plan, self._kernel, stop)  # those that began meanwhile
            stack.enter_context(self._drain)
            for device in {*devices.values()}:
                self._drain.core.add_disk(device)
            for reason in self._drain.threads().lacks:
                _LOG.warning("drain_threads_degraded", reason=reason)
            cpus = stack.enter_context(CpuWatch(self._kernel))
            if not await self._open(stop, state_dir, workers, stack):
                return ()
            if state_dir.limited:
                await stack.enter_async_context(_running(_keep_limits(state_dir, workers.of())))
            if on_open is not None:
                await on_open()
            await self._collect(stop, on_tick, workers.of(), cpus)
            if on_close is not None:
                on_close()
            self._look_at_cpus(cpus)
            await asyncio.gather(*map(_close, self._sessions))
            recorders = [s.recorder for s in self._sessions if s.recorder is not None]
            self.snapshots.extend(one for recorder in recorders for one in recorder.snapshots)
            await self._watch.poll(workers.of())
            if keep_counted:
                self.counted = await self._watch.contents(workers.of())
        return tuple(session.balance() for session in self._sessions)

    def status(self) -> DaemonStatus:
        """Return the readings of the last flush interval, and the core's present counters."""
        if self._polls is not None:
            self._polls.refresh()
        return DaemonStatus(
            sessions=tuple(session.balance() for session in self._sessions),
            core=self._drain.core.counters(),
            clocks=self._clock,
            started_ns=self._started_ns,
            config_sha256=self._config_sha256,
            cpus_online=len(self._coverage.online),
            cpus_covered=len(self._coverage.online & self._coverage.covered),
            uncovered_ns=self._coverage.uncovered_ns(),
            **self._repaired._asdict(),
            left_records=self._left_records,
            bpf=self._watch.status(),
            drain=self._drain.threads(),
        )

    async def snapshot(
        self, names: Sequence[str] = (), trigger: str = Trigger.REQUEST
    ) -> list[Snapshot]:
        """Store the contents of the flight recorders, all at the same moment.

        Args:
            names: of sessions; empty for all flight recorders.
            trigger: one of `ring_snapshot.Trigger`.

        Raises:
            UsageError: there is no flight recorder of that name, or none at all, or it could not
                be opened.
            SinkError: a segment cannot be written.
            KernelError: rings cannot be stopped, or not started again.
        """
        named = self._named(names)
        recorders = [(s.plan.name, s.recorder) for s in named if s.recorder is not None]
        with_one = {name for name, _ in recorders}
        others = [session for session in named if session.plan.name not in with_one]
        if not recorders or (names and others):
            raise _no_recorder(names, others)
        made = await asyncio.gather(
            *(recorder.snapshot(trigger) for _, recorder in recorders), return_exceptions=True
        )
        snapshots = [one for one in made if isinstance(one, Snapshot)]
        self.snapshots.extend(snapshots)
        for one in made:
            if isinstance(one, BaseException):
                raise one  # the others are stored
        return snapshots

    async def mark(self, text: str, session: str | None = None) -> int:
        """Write a marker to the ftrace rings of a session, or of all; return how many took it.

        Raises:
            UsageError: there is no such session, or none records ftrace.
            KernelError: a ring is full and does not overwrite.
        """
        named = self._named([session] if session else ())
        marked = [instance for s in named for instance in s.abilities.tracing]
        if not marked:
            raise UsageError(
                f"session {session} records no ftrace" if session else "no session records ftrace",
                hint='markers go into sources of kind "tracefs"',
            )
        for instance in marked:
            instance.mark(text)
        return len(marked)

    def _named(self, names: Sequence[str]) -> list[AnySession]:
        known = {session.plan.name for session in self._sessions}
        for name in names:
            if name not in known:
                raise UsageError(f"no session {name}", hint=did_you_mean(name, known))
        return [s for s in self._sessions if not names or s.plan.name in names]

    @property
    def target_fds(self) -> tuple[int, ...]:
        """The descriptors that become readable once a named process or thread has exited."""
        sources = [s.source for s in self._sessions if s.source is not None]
        return tuple(fd for source in sources for fd in source.target_fds)

    async def _open(
        self, stop: asyncio.Event, state_dir: StateDir, workers: FileWorkers, stack: AsyncExitStack
    ) -> bool:
        """Open and begin all sessions; return False if `stop` came before all were open."""
        context = self._context(state_dir, workers, stats=self._count_costs(stack))
        await asyncio.sleep(_SIGNALS_PAUSE_S)
        if stop.is_set():
            return False
        for plan in self.plan.sessions:
            if plan.payload.has_programs:
                await asyncio.sleep(_SIGNALS_PAUSE_S)
            if stop.is_set():
                return False
            own = await stack.enter_async_context(AsyncExitStack())
            with blame(self._config_of(plan)):
                self._sessions.append(await context.open(plan, own))
        stack.push_async_callback(self._watch.join)
        for number, session in enumerate(self._sessions):
            stack.push_async_callback(session.close)
            await self._begin(number, session, context)
        self._coverage = Coverage(
            [session.plan for session in self._sessions], self._kernel.online_cpus()
        )
        return True

    async def _begin(self, number: int, session: AnySession, context: SessionContext) -> None:
        """Start a session; one that may fail is replaced by a placeholder with the reason."""
        try:
            with blame(self._config_of(session.plan)):
                await session.begin()
        except CollectordError as error:
            if not session.plan.contains(error):
                raise
            await session.close()
            self._sessions[number] = context.failed(session.plan, error)

    def _count_costs(self, stack: AsyncExitStack) -> bool:
        """Let the kernel count the cost of BPF programs, if configured and permitted."""
        if not any(plan.payload.counts_costs for plan in self.plan.sessions):
            return False
        try:
            fd = self._kernel.enable_bpf_stats()
        except KernelError as error:
            _LOG.warning("bpf_stats_refused", error=str(error))
            return False
        stack.callback(self._kernel.close, fd)
        return True

    def _context(
        self, state_dir: StateDir, workers: FileWorkers, *, stats: bool
    ) -> SessionContext:
        return SessionContext(
            kernel=self._kernel,
            drain=self._drain,
            host=self._host,
            facts=self._facts,
            clock=self._clock,
            state_dir=state_dir,
            workers=workers,
            watch=self._watch,
            stats=stats,
            child=self._child,
        )

    def _config_of(self, plan: SessionPlan) -> SessionConfig:
        (config,) = (s for s in self._config.session if s.name == plan.name)
        return config

    async def _collect(
        self,
        stop: asyncio.Event,
        on_tick: Callable[[DaemonStatus], None] | None,
        worker: Executor,
        cpus: CpuWatch,
    ) -> None:
        """Follow the core's flush timer until `stop`."""
        stopping = asyncio.ensure_future(stop.wait())
        stopping.add_done_callback(lambda _: self._drain.wake())
        self._tell_of_cpus()
        self._polls = polls = SessionPolls(
            self._sessions,
            kernel=self._kernel,
            watch=self._watch,
            worker=worker,
            before=partial(self._look_at_cpus, cpus),
            flush_ns=self.plan.core.flush_ns,
            stretched=on_tick is None,
        )
        try:
            while await self._drain.next_pass(stop, passes=polls.passes):
                polls.poll()
                if on_tick is not None:
                    on_tick(self.status())
        finally:
            self._polls = None
        stopping.cancel()

    def _look_at_cpus(self, cpus: CpuWatch) -> None:
        """Find the present CPUs, and notify the sessions of those that they lack."""
        if self._coverage.poll(cpus):
            self._tell_of_cpus()

    def _tell_of_cpus(self) -> None:
        for session in self._sessions:
            session.note("cpus", self._coverage.trouble(session.plan))

    def _open_state_dir(self) -> StateDir:
        rotated = [s.sink.retention for s in self.plan.sessions if s.sink.single_file is None]
        retention = rotated[0] if rotated else RetentionPlan()
        return StateDir(self._state_dir, retention)


def _no_recorder(names: Sequence[str], sessions: Sequence[AnySession]) -> UsageError:
    """Return why there is no snapshot of these sessions: the named ones, or all of them."""
    shut = [session for session in sessions if session.plan.mode == FLIGHT_RECORDER]
    if shut:
        balances = [session.balance() for session in shut]
        return UsageError("; ".join(f"flight recorder {_shut_text(one)}" for one in balances))
    among = ", ".join(dict.fromkeys(session.plan.name for session in sessions))
    return UsageError(
        f"there is no flight recorder among {among}" if names else "no flight recorder runs",
        hint='flight recorders are sessions with mode = "flight-recorder"',
    )


def _shut_text(balance: SessionBalance) -> str:
    """Return the text about a session that could not be opened: its state and its reasons."""
    why = "is degraded, its hardware is absent" if balance.state == "degraded" else "has failed"
    return f"{balance.name} {why}: {'; '.join(balance.degraded_reasons)}"


async def _close(session: AnySession) -> None:
    """End a session; log its errors, so that the others are ended too."""
    try:
        await session.close()
    except CollectordError as error:
        session.note("close", f"not closed: {error}")
        _LOG.error("session_not_closed", session=session.plan.name, error=str(error))


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
