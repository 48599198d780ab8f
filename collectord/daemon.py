# SPDX-License-Identifier: Apache-2.0
"""The main path: load, probe, plan, open, drain, sink, close.

`run` and `record` are the same path. They differ in what ends them, and in where the
configuration comes from.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.control import workload
from collectord.drain.loop import Drain
from collectord.kernel.host import read_host
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.probe import probe
from collectord.meter import Drained, Meter
from collectord.model import RingRole, ScopeKind
from collectord.plan.build import build
from collectord.plan.session import RetentionPlan
from collectord.plan.source_events import tracepoint_patterns
from collectord.session import Session
from collectord.sink.build import make_sink
from collectord.sink.repair import Action, repair
from collectord.sink.store import Store
from collectord.source import SOURCES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
    from concurrent.futures import Executor
    from typing import Any

    from collectord._native._core import CoreCounters
    from collectord.config.schema import Config
    from collectord.kernel.port import Kernel
    from collectord.ledger import SessionBalance
    from collectord.model import ClockReading
    from collectord.plan.facts import KernelFacts
    from collectord.plan.session import Plan, SessionPlan
    from collectord.sink.repair import Outcome

_LOG: Final = structlog.get_logger()
_WORKERS: Final = 2  # one prepares the next segment while the other seals the last


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """All that metrics, the control API and the live line show; reading it touches no ring."""

    sessions: tuple[SessionBalance, ...]
    core: CoreCounters
    clocks: ClockReading
    started_ns: int
    config_sha256: str
    cpus_online: int
    cpus_covered: int
    uncovered_ns: int
    unclean_stops: int


@dataclass(frozen=True, slots=True)
class RecordResult:
    """What `record` ends with; `command_status` is negative for a signal, None if none ran."""

    balances: tuple[SessionBalance, ...]
    command_status: int | None


class Daemon:
    """One configuration, run once.

    Args:
        config: what to collect.
        kernel: makes the privileged calls; by default this process does.
        facts: what the kernel can do; by default it is probed.
        child: pid of the process that sessions of the `command` scope observe.
    """

    def __init__(
        self,
        config: Config,
        *,
        kernel: Kernel | None = None,
        facts: KernelFacts | None = None,
        child: int | None = None,
    ) -> None:
        self._config = config
        self._kernel = kernel or LinuxKernel()
        self._facts = facts or host_facts(config)
        self.plan: Plan = build(config, self._facts)
        self._child = child
        self._sessions: list[Session] = []
        self._drain = Drain(self.plan.core)
        self._host = read_host()
        self._clock = self._kernel.clocks()
        self._started_ns = time.time_ns()
        self._unclean_stops = 0
        self._online = frozenset(self._kernel.online_cpus())
        self._detached: frozenset[int] = frozenset()
        self._uncovered_ns = 0
        self._looked_ns = time.monotonic_ns()
        self._config_sha256 = hashlib.sha256(repr(config).encode()).hexdigest()

    async def run(
        self,
        stop: asyncio.Event,
        *,
        on_open: Callable[[], Awaitable[None]] | None = None,
        on_close: Callable[[], None] | None = None,
        on_tick: Callable[[DaemonStatus], None] | None = None,
    ) -> tuple[SessionBalance, ...]:
        """Open every session, collect until `stop`, then flush, seal and balance.

        Args:
            stop: ends the collection.
            on_open: awaited once all rings are open and enabled.
            on_close: called when the final flush begins.
            on_tick: called with the status once per flush interval.

        Raises:
            CollectordError: a session cannot be opened or begun; nothing is left open.
        """
        async with AsyncExitStack() as stack:
            worker = stack.enter_context(_worker())
            store = self._store()
            self._repair()
            stack.enter_context(self._drain)
            for plan in self.plan.sessions:
                self._sessions.append(self._open(plan, store, worker, stack))
            for session in self._sessions:
                await session.begin()
            if on_open is not None:
                await on_open()
            await self._collect(stop, on_tick)
            if on_close is not None:
                on_close()
            for session in self._sessions:
                await session.close()
        return tuple(session.balance() for session in self._sessions)

    def status(self) -> DaemonStatus:
        """The last readings, and the core's counters as they are now."""
        return DaemonStatus(
            sessions=tuple(session.balance() for session in self._sessions),
            core=self._drain.core.counters(),
            clocks=self._clock,
            started_ns=self._started_ns,
            config_sha256=self._config_sha256,
            cpus_online=len(self._online),
            cpus_covered=len(self._online & self._covered()),
            uncovered_ns=self._uncovered_ns,
            unclean_stops=self._unclean_stops,
        )

    @property
    def target_fds(self) -> tuple[int, ...]:
        """Readable once a process or thread that was named has exited."""
        return tuple(fd for session in self._sessions for fd in session.source.target_fds)

    def _open(
        self, plan: SessionPlan, store: Store, worker: Executor, stack: AsyncExitStack
    ) -> Session:
        """Open rings, give them to the core, make the sink; the stack undoes it backwards."""
        if plan.scope.kind is ScopeKind.COMMAND and self._child is not None:
            plan = replace(plan, scope=replace(plan.scope, pids=(self._child,)))
        own = stack.enter_context(ExitStack())
        source = SOURCES[plan.source](self._kernel, plan, own, exclude_tids=_own_threads())
        core = self._drain.core
        stream = core.add_stream()
        rings = []
        for number, handle in enumerate(source.rings):
            ring = core.add_ring(
                number % self.plan.core.shards,
                stream,
                handle.map,
                handle.wakeup_fd,
                sideband=handle.label.role is RingRole.SIDEBAND,
                time_offset=handle.time_offset,
                time_trailer=handle.time_trailer,
            )
            own.callback(core.remove_ring, ring)
            rings.append(Drained(handle, ring))
        tracepoints = tuple(e.tracepoint for e in plan.events if e.tracepoint is not None)
        sink = make_sink(
            plan,
            event_ids=source.event_ids,
            tracing=self._kernel.tracing_data(tracepoints) if tracepoints else None,
            host=self._host,
            facts=self._facts,
            clock=self._clock,
            make_room=store.make_room,
        )
        own.callback(sink.close)
        return Session(
            plan,
            source=source,
            rings=tuple(rings),
            stream=stream,
            meter=Meter(source, rings, plan.events),
            sink=sink,
            kernel=self._kernel,
            drain=self._drain,
            store=store,
            worker=worker,
        )

    async def _collect(
        self, stop: asyncio.Event, on_tick: Callable[[DaemonStatus], None] | None
    ) -> None:
        """Follow the core's flush timer until `stop`."""
        stopping = asyncio.ensure_future(stop.wait())
        while not stopping.done():
            passing = asyncio.ensure_future(self._drain.next_pass())
            await asyncio.wait({stopping, passing}, return_when=asyncio.FIRST_COMPLETED)
            if not passing.done():
                passing.cancel()
                break
            self._look_at_cpus()
            for session in self._sessions:
                session.tick()
            if on_tick is not None:
                on_tick(self.status())
        stopping.cancel()

    def _store(self) -> Store:
        rotated = [s.sink.retention for s in self.plan.sessions if s.sink.single_file is None]
        retention = rotated[0] if rotated else RetentionPlan()
        return Store(Path(self._config.daemon.state_dir), retention)

    def _repair(self) -> None:
        """Seal what a killed predecessor left."""
        root = Path(self._config.daemon.state_dir)
        if not root.is_dir():
            return
        outcomes = repair(root)
        for outcome in outcomes:
            _LOG.warning("segment_repaired", path=str(outcome.path), **_told(outcome))
        self._unclean_stops = int(any(o.action is Action.RECOVERED for o in outcomes))

    def _look_at_cpus(self) -> None:
        """Add up the time that planned CPUs are without rings.

        The kernel detaches events from a CPU that goes offline; it does not attach them again.
        """
        now_ns = time.monotonic_ns()
        self._online = frozenset(self._kernel.online_cpus())
        self._detached |= self._planned() - self._online
        uncovered = (self._planned() | self._online) - self._covered()
        self._uncovered_ns += len(uncovered) * (now_ns - self._looked_ns)
        self._looked_ns = now_ns

    def _planned(self) -> frozenset[int]:
        """CPUs that have rings."""
        return frozenset(
            ring.cpu for plan in self.plan.sessions for ring in plan.rings if ring.cpu >= 0
        )

    def _covered(self) -> frozenset[int]:
        """CPUs on which nothing that is to be seen goes unseen."""
        systems = [p for p in self.plan.sessions if p.scope.kind is ScopeKind.SYSTEM]
        covered = self._online if not systems else self._planned()
        return covered - self._detached


def host_facts(config: Config) -> KernelFacts:
    """Probe this host for what a configuration needs to know; mounts tracefs if it must."""
    return probe(LinuxKernel(), tracepoint_patterns(config), mount=True)


async def record(
    config: Config,
    facts: KernelFacts,
    *,
    command: Sequence[str] | None,
    duration_ns: int,
    on_tick: Callable[[DaemonStatus], None],
    stop: asyncio.Event,
) -> RecordResult:
    """Record until the command or the targets end, the duration is over, or `stop`.

    Args:
        config: one or more sessions; those of the `command` scope observe the command.
        facts: of this host.
        command: argv, or None.
        duration_ns: 0 for no limit.
        on_tick: see `Daemon.run`.
        stop: ends the recording, and the command with it.

    Raises:
        CollectordError: see `Daemon.run`.
    """
    status = None
    async with AsyncExitStack() as stack:
        child = None
        if command:
            child = await stack.enter_async_context(workload.waiting(command))
        daemon = Daemon(config, facts=facts, child=child.pid if child is not None else None)

        async def on_open() -> None:
            """Everything counts: let the command run, and watch for the end."""
            if child is not None:
                child.go()
                stack.enter_context(_stop_after(child.wait(), stop))
            if duration_ns:
                stack.enter_context(_stop_after(asyncio.sleep(duration_ns / 1e9), stop))
            if daemon.target_fds:
                stack.enter_context(_stop_after(_all_readable(daemon.target_fds), stop))

        balances = await daemon.run(stop, on_open=on_open, on_tick=on_tick)
    if child is not None:
        status = child.status
    return RecordResult(balances, status)


@contextmanager
def _stop_after(end: Coroutine[Any, Any, object], stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` once `end` is over, unless the block ends first."""
    task = asyncio.ensure_future(end)
    task.add_done_callback(lambda _task: stop.set())
    try:
        yield
    finally:
        task.cancel()


async def _all_readable(fds: Sequence[int]) -> None:
    """Wait until each of the fds has been readable."""
    loop = asyncio.get_running_loop()
    waiting = {}
    for fd in fds:
        waiting[fd] = loop.create_future()
        loop.add_reader(fd, _done_once, waiting[fd])
    try:
        for fd, readable in waiting.items():
            await readable
            loop.remove_reader(fd)
    finally:
        for fd in fds:
            loop.remove_reader(fd)


def _done_once(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@contextmanager
def _worker() -> Iterator[Executor]:
    """Threads for file work, all running, so that their ids are known before events open."""
    with ThreadPoolExecutor(_WORKERS, "sink") as worker:
        all_running = threading.Barrier(_WORKERS + 1)
        for _ in range(_WORKERS):
            worker.submit(all_running.wait)
        all_running.wait()
        yield worker


def _own_threads() -> tuple[int, ...]:
    """Kernel ids of this process's threads, the core's and the workers' included."""
    return tuple(sorted(int(entry.name) for entry in Path("/proc/self/task").iterdir()))


def _told(outcome: Outcome) -> dict[str, object]:
    return {"action": str(outcome.action), "detail": outcome.detail, "samples": outcome.samples}
