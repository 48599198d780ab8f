# SPDX-License-Identifier: Apache-2.0
"""Open stage: from a session's plan to its rings in the core and its files in the sink."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import structlog

from collectord.errors import BpfError, CollectordError, MissingFeature
from collectord.model import RingRole, ScopeKind
from collectord.session.counter_reader import CounterReader, Drained
from collectord.session.coverage_file import CoverageFile, Unnoted
from collectord.session.follower import Follower, NameFeed
from collectord.session.health import Health
from collectord.session.lasting_account import NOT_HELD, LastingAccount
from collectord.session.maps.device_names import HostNames
from collectord.session.maps.map_reader import BpfReader
from collectord.session.program_watch import ProgramWatch
from collectord.session.ringless_session import RinglessSession
from collectord.session.session import Session
from collectord.session.session_parts import SessionParts
from collectord.session.sink_factory import make_sink
from collectord.session.task_group import TaskGroup
from collectord.source import SOURCES
from collectord.source.fed_ring import fed_ring

if TYPE_CHECKING:
    from collections.abc import Collection

    from collectord._native import _core
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.host import Host
    from collectord.model import ClockReading
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.drain_loop import Drain
    from collectord.session.file_workers import FileWorkers
    from collectord.session.maps.map_watch import BpfWatch
    from collectord.session.opening_thread import OpeningThread
    from collectord.sink.state_dir import StateDir
    from collectord.source.base import OpenSource
    from collectord.source.ring import RingHandle

T = TypeVar("T")

_LOG: Final = structlog.get_logger()

AnySession = Session | RinglessSession


class Progress(Protocol):
    """The part of a caller that is told how far an opening is."""

    def opening(self) -> None:
        """Handle that the source is opened now, which may be cancelled."""

    def loading(self) -> None:
        """Handle that the source is open; what follows waits for the disk."""


Contains = Callable[["SessionPlan", CollectordError], bool]


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Shared objects with which all sessions of a daemon are opened.

    Attributes:
        clock: a reading at the start.
        watch: reads BPF programs.
        stats: whether the kernel counts the run time of BPF programs.
        child: pid of the process that sessions of the `command` scope observe.
        opening: where sources are opened.
        repair: seals what earlier processes left in a folder, unless that is done.
        lasting: the sessions go on in the next process, which is to know when they were open.
    """

    kernel: Kernel
    drain: Drain
    host: Host
    facts: KernelFacts
    clock: ClockReading
    state_dir: StateDir
    workers: FileWorkers
    watch: BpfWatch
    stats: bool
    child: int | None
    opening: OpeningThread
    repair: Callable[[Path], None]
    lasting: bool = False

    def use_disk(self, session: str, device: int) -> None:
        """Set up threads, and a queue of the core, for the file system of a session's segments."""
        self.workers.add({session: device})
        self.drain.core.add_disk(device)

    async def open(
        self, plan: SessionPlan, stack: AsyncExitStack, contains: Contains, progress: Progress
    ) -> AnySession:
        """Open a session; the stack undoes it in reverse order.

        Hardware that turns out to be absent does not affect the other sources, if the plan allows
        it.

        Args:
            plan: of the session.
            stack: undoes it.
            contains: tells whether a failure leaves the other sessions alone.
            progress: is told how far it is.

        Raises:
            CollectordError: the session cannot be opened; nothing of it is left open.
        """
        while not plan.is_absent:
            try:
                return await self._open(plan, stack, progress)
            except CollectordError as error:
                if isinstance(error, MissingFeature) and error.source in plan.optional:
                    _LOG.warning("source_absent", session=plan.name, error=str(error))
                    plan = plan.without(error.source, str(error))
                elif not contains(plan, error):
                    raise
                else:
                    return self.failed(plan, error)
        # A BPF program that lacks something has failed: the cause may be the program itself.
        return RinglessSession(plan, None, absent=not plan.payload.has_programs)

    def failed(self, plan: SessionPlan, error: CollectordError) -> RinglessSession:
        """Return a placeholder that says why its session cannot be opened, and log it."""
        said = error.text if isinstance(error, BpfError) else ""
        _LOG.error("session_failed", session=plan.name, error=str(error), text=said)
        absent = isinstance(error, MissingFeature) and not plan.payload.has_programs
        return RinglessSession(plan, None, str(error), absent=absent)

    async def _open(
        self, plan: SessionPlan, stack: AsyncExitStack, progress: Progress
    ) -> AnySession:
        async with AsyncExitStack() as own:
            opened = await self._open_parts(plan, own, progress)
            stack.push_async_exit(own.pop_all())
        return opened

    async def _open_parts(
        self, plan: SessionPlan, own: AsyncExitStack, progress: Progress
    ) -> AnySession:
        if plan.scope.kind is ScopeKind.COMMAND and self.child is not None:
            plan = replace(plan, scope=replace(plan.scope, pids=(self.child,)))
        files = own.enter_context(ExitStack())
        tids = own_threads(plan.scope.cpus)
        source = await self.opening.open(
            partial(SOURCES[plan.kind], self.kernel, plan, files, exclude_tids=tids),
            progress.opening,
        )
        progress.loading()
        readers = []
        for programs in source.abilities.programs:
            names = HostNames()
            reader = BpfReader(self.kernel, plan.name, programs, names, stats=self.stats)
            readers.append((reader, reader.read()))
            own.callback(self.watch.remove, reader)  # before the descriptors close
        drains_first = any(one.resumed for one in source.abilities.lasting)
        if not drains_first:
            await self._recover(plan)
        opened = await self._opened(plan, source, own)
        opened.readers = tuple(readers)
        if isinstance(opened, Session):
            own.push_async_callback(opened.abandon)
            await opened.take_over()
        return opened

    async def _recover(self, plan: SessionPlan) -> None:
        await self._in_worker(plan, partial(self.repair, Path(plan.sink.directory)))

    async def _in_worker(self, plan: SessionPlan, call: Callable[[], T]) -> T:
        """Make a call that waits for the session's disk."""
        worker = self.workers.of(plan.name)
        return await asyncio.get_running_loop().run_in_executor(worker, call)

    async def _opened(
        self, plan: SessionPlan, source: OpenSource, own: AsyncExitStack
    ) -> AnySession:
        if not source.rings:
            ringless = RinglessSession(plan, source)
            if plan.opener and not source.abilities.lasting:
                ringless.note("opener", NOT_HELD)
            return ringless
        for instance in source.abilities.tracing:
            self.kernel.note_instance(instance.name, instance.lasting.note)
            own.callback(self.kernel.forget_instance, instance.name)
        return await self._drained(plan, source, own)

    async def _drained(
        self, plan: SessionPlan, source: OpenSource, own: AsyncExitStack
    ) -> Session:
        """Add the rings to the core, and make the sink."""
        stream = self.drain.add_stream(source)
        stream.rank = plan.rank
        own.callback(self.drain.forget, stream)
        rings = []
        for handle in source.rings:
            ring = self.drain.add_ring(stream, handle)
            own.push_async_callback(self.drain.remove, [ring])
            rings.append(Drained(handle, ring, self.drain.add_areas(ring, handle)))
        programs = self._watched_programs(plan, source, stream, own)
        sink = await self._in_worker(
            plan,
            partial(
                make_sink,
                plan,
                source=source,
                rings=rings,
                kernel=self.kernel,
                host=self.host,
                facts=self.facts,
                clock=self.clock,
                make_room=self.state_dir.room_for(Path(plan.sink.directory)),
            ),
        )
        own.callback(sink.close)
        directory = Path(plan.sink.directory)
        lasting = tuple(
            LastingAccount(one, directory, sink.so_far.run) for one in source.abilities.lasting
        )
        counter_reader = CounterReader(source, rings, plan.events)
        health = Health(plan, source.abilities.tracing, counter_reader)
        if plan.opener and not lasting:
            health.note("opener", NOT_HELD)
        covered = Unnoted()
        goes_on = [one.resumed for one in source.abilities.lasting]
        goes_on += [instance.lasting.resumed for instance in source.abilities.tracing]
        if self.lasting:
            covered = CoverageFile(
                directory,
                plan.source,
                self.host.boot_id,
                self.kernel.clocks,
                goes_on=any(goes_on),
                paused_ns=max((account.paused_ns for account in lasting), default=0),
            )
        parts = SessionParts(
            plan=plan,
            source=source,
            rings=tuple(rings),
            stream=stream,
            drain=self.drain.of(stream),
            counter_reader=counter_reader,
            sink=sink,
            state_dir=self.state_dir,
            kernel=self.kernel,
            health=health,
            tasks=TaskGroup(self.workers.of(plan.name), self.workers.short(plan.name)),
            covered=covered,
            lasting=lasting,
            recover=partial(self._recover, plan),
        )
        followers = tuple(
            Follower(parts, one, self._name_feed(plan, source, stream, own))
            for one in source.abilities.following
        )
        session = Session(parts, self.drain, programs, followers)
        own.push_async_callback(session.rings.remove_joined)
        return session

    def _watched_programs(
        self, plan: SessionPlan, source: OpenSource, stream: _core.Stream, own: AsyncExitStack
    ) -> ProgramWatch | None:
        """Return the watch of BPF programs for a stream with sideband; None for one without."""
        if not any(ring.counters for ring in _sideband(source)):
            return None
        feed = self._name_feed(plan, source, stream, own)
        return ProgramWatch(
            self.kernel,
            feed.ring,
            feed.attr,
            feed.event_id,
            stream.round_ns,
            perf_clock=plan.perf_clock,
        )

    def _name_feed(
        self, plan: SessionPlan, source: OpenSource, stream: _core.Stream, own: AsyncExitStack
    ) -> NameFeed:
        """Add a fed ring of sideband to a stream that has some."""
        sideband = _sideband(source)
        counter = next(counter for ring in sideband for counter in ring.counters)
        attr = next(e.attr for e in plan.events if e.index == counter.event_index)
        ring = fed_ring(attr, sideband[0].label, own.enter_context(ExitStack()))
        own.push_async_callback(self.drain.remove, [self.drain.add_ring(stream, ring)])
        return NameFeed(ring.map, attr, counter.event_id)


def _sideband(source: OpenSource) -> list[RingHandle]:
    return [ring for ring in source.rings if ring.label.role is RingRole.SIDEBAND]


def contained(plan: SessionPlan, error: CollectordError) -> bool:
    """Whether a failure leaves the other sessions alone, as their plan says."""
    return plan.contains(error)


def own_threads(cpus: Collection[int] = ()) -> tuple[int, ...]:
    """Return the kernel ids of this process's threads that may run on any of these CPUs.

    Those of the core and of the workers are among them. A filter costs each event some 30 ns: a
    daemon that is kept away from the CPUs that it records needs none.

    Args:
        cpus: empty for all.
    """
    tids = sorted(int(entry.name) for entry in Path("/proc/self/task").iterdir())
    return tuple(tid for tid in tids if not cpus or _may_run(tid, cpus))


def _may_run(tid: int, cpus: Collection[int]) -> bool:
    try:
        return not os.sched_getaffinity(tid).isdisjoint(cpus)
    except ProcessLookupError:  # it has ended since it was listed
        return False
