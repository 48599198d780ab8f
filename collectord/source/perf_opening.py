# SPDX-License-Identifier: Apache-2.0
"""Opening a perf session: its rings, and the events that write into them, all disabled.

Facts of the kernel (kernel/events/core.c) that shape this module:

- One event owns a ring: it alone is mapped and polled, the others are sent there by SET_OUTPUT,
  which requires the same CPU and clock. The watermark is that of the event that is mapped.
- poll(2) reports HUP for good once the owner's task has exited, whoever else still writes. Rings
  that several threads share are therefore owned by a keeper: a disabled dummy event of this
  process, which outlives them. `target_fds` tell when the targets are gone.
- An event with an AUX area owns its ring, whichever threads share that. When its task has exited
  the ring is drained by the timer, as long as others write. Its group's leader is opened before
  it, and gets its ring afterwards.
- An AUX area that an event's overflow has paused is resumed only by another event: neither an
  ioctl nor stopping and starting its own event does it. So a ring whose area is paused to freeze
  it has a third event, of the CPU's clock, that writes into no ring, is off, and resumes the area
  once it is armed.
- An event takes a filter once (EEXIST afterwards), so the threads to leave out must be known
  before it is opened. Events that a filter refuses are not counted by read(2) either: value =
  samples + lost holds for the events let through, and the balance stays exact.
- A thread that began between two scans may have inherited some of the events already. It is
  opened all the same: seeing a thread twice is better than missing it. Each of its events counts
  for itself, so the balance holds.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_attr import (
    DUMMY,
    AuxAction,
    EventType,
    OpenFlag,
    PerfEventAttr,
    SoftwareId,
)
from collectord.errors import MissingFeature, NoSuchTarget
from collectord.kernel.values.limits import Purpose
from collectord.model import FOLLOWING, RingLabel, RingRole, Scope, ScopeKind
from collectord.source.perf_filter import set_filter
from collectord.source.perf_new_ring import NewRing, map_new_ring
from collectord.source.ring import CounterFd
from collectord.source.scope_threads import no_such_target, threads_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from collectord.kernel.port import Kernel
    from collectord.plan.event_attrs import EventPlan
    from collectord.plan.ring_plan import RingPlan
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.perf_ring import PerfRing

# A process that keeps making threads never gives two equal scans; inherit covers the rest.
_SCANS_MAX: Final = 8
_EVERY_TASK: Final = -1
_SHARED_BY_THREADS: Final = (ScopeKind.PROCESS, ScopeKind.THREAD, ScopeKind.USER, *FOLLOWING)


@dataclass(frozen=True, slots=True)
class Opened:
    """The rings and descriptors of an `Opening`; the ExitStack that it was given closes them.

    Attributes:
        rings: in the plan's order.
        target_fds: see `source.base.OpenSource`.
        pids: processes whose threads run already, None for everybody's.
        resumers: by the descriptor of an event that pauses an AUX area, the one that resumes it.
        closers: closes the rings of a CPU, with all their events, before the others. A ring that
            has no CPU has none.
    """

    rings: tuple[PerfRing, ...]
    target_fds: tuple[int, ...]
    pids: tuple[int, ...] | None
    resumers: Mapping[int, CounterFd]
    closers: Mapping[int, ExitStack]


@dataclass(frozen=True, slots=True)
class _Target:
    """The target of one perf_event_open call. `tid` -1: every task."""

    pid: int
    tid: int = -1
    flags: int = 0


class Opening:
    """A stepwise opening of a plan; everything opened is on the stack at once.

    Args:
        kernel: opens the events.
        plan: the plan.
        stack: closes all that is opened.
        exclude_tids: see `source.base.Source`.
        cpu: only its rings are opened; None: all.
    """

    def __init__(
        self,
        kernel: Kernel,
        plan: SessionPlan,
        stack: ExitStack,
        exclude_tids: tuple[int, ...],
        cpu: int | None = None,
    ) -> None:
        self._kernel = kernel
        self._plan = plan
        self._scope: Scope = plan.scope
        self._stack = stack
        self._closers: dict[int, ExitStack] = {}
        self._at = stack  # what is opened now is closed by it
        self._wanted = [
            (position, ring)
            for position, ring in enumerate(plan.rings)
            if cpu is None or ring.cpu == cpu
        ]
        self._exclude_tids = exclude_tids
        self._rings: dict[tuple[int, int], NewRing] = {}  # by plan's position and tid
        self._target_fds: list[int] = []
        self._resumers: dict[int, CounterFd] = {}
        self._planned_fds = 0

    def run(self) -> None:
        """Open the rings for every target of the scope."""
        kind = self._scope.kind
        if kind in (ScopeKind.SYSTEM, ScopeKind.CPUS):
            self._open_targets([_Target(_EVERY_TASK)])
        elif kind is ScopeKind.CGROUP:
            fd = self._own(self._kernel.open_cgroup(self._scope.cgroup))
            self._open_targets([_Target(fd, flags=OpenFlag.PID_CGROUP)])
        elif kind in FOLLOWING:
            # Stand-ins on this process, which stay off: files know their ids, and a tracepoint
            # that has one is ready for those of processes that come and go.
            self._open_targets([_Target(os.getpid())])
        elif kind in (ScopeKind.COMMAND, ScopeKind.THREAD):
            if kind is ScopeKind.THREAD:
                self._watch(self._scope.pids)
            self._open_targets([_Target(tid, tid) for tid in self._scope.pids])
        else:
            self._open_processes()

    def result(self) -> Opened:
        """Return what was opened."""
        order = sorted(self._rings)
        # A CPU's rings keep their numbers when they alone are opened anew.
        numbers = [key[0] for key in order] if self._closers else range(len(order))
        rings = tuple(
            self._rings[key].handle(self._label(self._rings[key].plan, key[1]), number)
            for number, key in zip(numbers, order, strict=True)
        )
        by_pid = self._scope.kind in (ScopeKind.PROCESS, ScopeKind.COMMAND, *FOLLOWING)
        pids = self._scope.pids if by_pid else None
        return Opened(rings, tuple(self._target_fds), pids, self._resumers, self._closers)

    def add(self, tid: int, stack: ExitStack) -> Mapping[RingLabel, list[CounterFd]]:
        """Open the events of one more thread, for rings that are open, and return them by ring.

        Args:
            tid: the thread.
            stack: closes them.

        Raises:
            NoSuchTarget: it has exited.
            KernelError: they cannot be opened.
        """
        added: dict[RingLabel, list[CounterFd]] = {}
        self._at = stack
        try:
            for position, plan in self._wanted:
                ring = self._rings[position, -1]
                known, ring.counters = ring.counters, []
                try:
                    self._open_on(position, plan, _Target(tid, tid))
                    added[self._label(plan, -1)] = ring.counters
                finally:
                    ring.counters = known
        finally:
            self._at = self._stack
        return added

    def _label(self, plan: RingPlan, tid: int) -> RingLabel:
        return RingLabel(self._plan.name, plan.source, plan.role, plan.cpu, tid)

    def _open_processes(self) -> None:
        """Open every thread of the processes, again until no scan finds a new one."""
        if self._scope.kind is ScopeKind.PROCESS:
            self._watch(self._scope.pids)
        seen: set[int] = set()
        opened = 0
        for _ in range(_SCANS_MAX):
            new = [tid for tid in threads_of(self._kernel, self._scope) if tid not in seen]
            if not new:
                break
            seen.update(new)
            opened += self._open_targets([_Target(tid, tid) for tid in new], may_vanish=True)
        if not opened:
            raise no_such_target(self._scope)

    def _watch(self, pids: Iterable[int]) -> None:
        self._target_fds += [self._own(self._kernel.open_pid(pid)) for pid in pids]

    def _own(self, fd: int) -> int:
        self._at.callback(self._kernel.close, fd)
        return fd

    @contextmanager
    def _closing_with(self, cpu: int) -> Iterator[None]:
        """Let the rings of this CPU close what is opened in this block."""
        if cpu >= 0:
            if cpu not in self._closers:
                self._closers[cpu] = self._stack.enter_context(ExitStack())
            self._at = self._closers[cpu]
        try:
            yield
        finally:
            self._at = self._stack

    def _open_targets(self, targets: list[_Target], *, may_vanish: bool = False) -> int:
        """Open all rings' events for the targets; return how many targets are observed."""
        per_target = sum(len(ring.events) for _, ring in self._wanted)
        files = per_target * len(targets) + len(self._wanted)
        self._planned_fds += files
        self._kernel.reserve_files(files)
        opened = 0
        for target in targets:
            try:
                for position, plan in self._wanted:
                    with _of_source(plan.source), self._closing_with(plan.cpu):
                        self._open_on(position, plan, target)
            except NoSuchTarget as gone:
                if not may_vanish or gone.errno != errno.ESRCH:
                    raise
            else:
                opened += 1
        return opened

    def _open_on(self, position: int, plan: RingPlan, target: _Target) -> None:
        """Open one ring's events for one target, and the ring itself if it is the first."""
        if plan.role is RingRole.SIDEBAND and target.flags & OpenFlag.PID_CGROUP:
            # Tasks get their names and maps before they enter the cgroup.
            target = _Target(_EVERY_TASK)
        key = (position, target.tid if plan.cpu < 0 else -1)
        shared = plan.cpu >= 0 and self._scope.kind in _SHARED_BY_THREADS
        # A freezing event wakes us by its samples, a ring by its watermark: one event cannot do
        # both.
        apart = plan.aux is None and (shared or plan.events[0].freezes)
        if key not in self._rings and apart:
            keeper = _keeper_attr(plan.events[0].attr)
            self._map_ring(key, plan, keeper, _Target(os.getpid()), Purpose("a ring"))
        leaders: dict[int, int] = {}
        waiting: list[CounterFd] = []  # opened before their ring was
        for event in plan.events:
            if event.cpus and plan.cpu >= 0 and plan.cpu not in event.cpus:
                continue
            group_fd = -1 if event.leader else leaders[event.group]
            fd = self._open_event(key, plan, event, target, group_fd)
            if event.leader:
                leaders[event.group] = fd
            set_filter(self._kernel, fd, event, self._scope, self._exclude_tids)
            event_id = self._kernel.event_id(fd)
            counter = CounterFd(fd, event.index, event_id, event.attr.read_format, target.tid)
            waiting.append(counter)
            ring = self._rings.get(key)
            if ring is not None:
                for counter in waiting:
                    if counter.fd != ring.owner_fd:
                        self._kernel.set_output(counter.fd, ring.owner_fd)
                ring.counters += waiting
                waiting.clear()
            if event.pauses:
                self._resumers[fd] = self._open_resumer(plan, event, target, group_fd)

    def _open_event(
        self,
        key: tuple[int, int],
        plan: RingPlan,
        event: EventPlan,
        target: _Target,
        group_fd: int,
    ) -> int:
        """Open an event; it becomes the owner of a ring that is not there yet, if it may."""
        attr = replace(event.attr, disabled=event.attr.disabled or event.leader)
        purpose = Purpose(event.name, self._planned_fds)
        if key not in self._rings and (plan.aux is None or event.aux):
            return self._map_ring(key, plan, attr, target, purpose, group_fd=group_fd)
        return self._own(self._perf_open(attr, plan.cpu, target, group_fd, purpose))

    def _map_ring(
        self,
        key: tuple[int, int],
        plan: RingPlan,
        attr: PerfEventAttr,
        target: _Target,
        purpose: Purpose,
        *,
        group_fd: int = -1,
    ) -> int:
        """Open and map a ring, and return its owner's descriptor."""

        def open_owner(sized: PerfEventAttr) -> int:
            return self._perf_open(sized, plan.cpu, target, group_fd, purpose)

        ring = map_new_ring(self._kernel, plan, attr, open_owner, self._at)
        self._rings[key] = ring
        return ring.owner_fd

    def _open_resumer(
        self, plan: RingPlan, event: EventPlan, target: _Target, group_fd: int
    ) -> CounterFd:
        """Open the event that, once armed, resumes an AUX area that `event` has paused."""
        attr = PerfEventAttr(
            type=EventType.SOFTWARE,
            config=SoftwareId.CPU_CLOCK,
            sample_period=1,  # the kernel's shortest
            read_format=event.attr.read_format,
            disabled=True,
            use_clockid=event.attr.use_clockid,
            clockid=event.attr.clockid,
            aux_action=AuxAction.RESUME,
        )
        purpose = Purpose("an event that resumes an AUX area", self._planned_fds)
        fd = self._own(self._perf_open(attr, plan.cpu, target, group_fd, purpose))
        return CounterFd(fd, event.index, self._kernel.event_id(fd), attr.read_format)

    def _perf_open(
        self, attr: PerfEventAttr, cpu: int, target: _Target, group_fd: int, purpose: Purpose
    ) -> int:
        return self._kernel.perf_event_open(
            attr, pid=target.pid, cpu=cpu, group_fd=group_fd, flags=target.flags, purpose=purpose
        )


@contextmanager
def _of_source(name: str) -> Iterator[None]:
    """Name the source in errors about features that the host lacks."""
    try:
        yield
    except MissingFeature as error:
        error.source = name
        raise


def _keeper_attr(attr: PerfEventAttr) -> PerfEventAttr:
    """Return a dummy event that may own a ring of events with `attr`: of the same clock."""
    return replace(
        DUMMY,
        use_clockid=attr.use_clockid,
        clockid=attr.clockid,
        write_backward=attr.write_backward,
    )
