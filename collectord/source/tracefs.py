# SPDX-License-Identifier: Apache-2.0
"""The `tracefs` source: ftrace's per-CPU rings, in an instance of the session's own.

Facts of the kernel (kernel/trace) that shape this module:

- Rings belong to the instance, not to events or tasks: there is one per CPU whatever the scope,
  and all events go into it. A process scope is a list of thread ids that the kernel itself
  extends (`event-fork`); a ring counts only what these threads write into it.
- The counters in `stats` are kept apart from the events and exist for every ring, so that each
  balance is exact. They count from the ring's last reset on, which anybody can cause.
- A BPF program on a tracepoint hides its events from perf only.
- A command's thread is known before it runs the command: its events until then are recorded.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from collectord.errors import KernelError, NoSuchTarget
from collectord.kernel.mappings import map_pages
from collectord.kernel.values.instance_settings import (
    ASIDE_MARK,
    OWNER_MARK,
    InstanceSettings,
    TraceEvent,
)
from collectord.model import (
    FLIGHT_RECORDER,
    RECORD_SESSION,
    Basis,
    Geometry,
    Produced,
    RingLabel,
    ScopeKind,
    Transport,
)
from collectord.plan.ftrace_plan import FtracePlan
from collectord.source.base import Abilities
from collectord.source.ftrace_ring import FtraceRing
from collectord.source.late_joining import LateJoining
from collectord.source.monotonic_stats import MonotonicStats
from collectord.source.open_instance import OpenInstance
from collectord.source.trace_counts import LateTraceRings, open_ring, produced
from collectord.source.trace_end import open_instance
from collectord.text import cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from collectord._native._core import Core, Stream
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.instance_settings import OpenedInstance
    from collectord.kernel.values.ring_stats import CpuStats
    from collectord.plan.ftrace_plan import FtraceEvent
    from collectord.plan.ring_plan import RingPlan
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.base import Hotplug, LateRing
    from collectord.source.ring import RingHandle

_SPARE_FDS: Final = 8


def open_session(
    kernel: Kernel,
    plan: SessionPlan,
    stack: ExitStack,
    *,
    exclude_tids: tuple[int, ...] = (),
    abort: int = -1,  # noqa: ARG001 - nothing here takes long
) -> OpenTracefs:
    """Make a session's instance, all events off, and open its rings. See `source.base.Source`.

    Raises:
        KernelError: EEXIST; the session runs already, or what a crash left must be salvaged.
        UsageError: the kernel refuses a filter or a probe; with its reason.
        UnknownEvent: with the nearest name.
    """
    ftrace = plan.payload_of(FtracePlan)
    with ExitStack() as own:
        scope = plan.scope
        targets: tuple[int, ...] = ()
        if scope.kind is ScopeKind.PROCESS:
            targets = tuple(_watch(kernel, own, pid) for pid in scope.pids)
        _check_online(kernel, plan.rings)
        kernel.reserve_files(2 * len(plan.rings) + _SPARE_FDS)
        lasting = open_instance(kernel, plan, _settings(kernel, plan, ftrace))
        own.callback(lasting.close)
        instance = lasting.opened
        if scope.kind is ScopeKind.PROCESS:
            _follow(kernel, instance, scope.pids)
        rings = _open_rings(kernel, plan, instance, own)
        kernel.choose_events(instance.id, _events(ftrace, instance, exclude_tids))
        stack.push(own.pop_all())
    recorder = plan.mode == FLIGHT_RECORDER
    taken = lasting.note.taken
    late = LateTraceRings(kernel, instance, plan, recorder=recorder, taken=taken)
    tracing = OpenInstance(kernel, lasting, ftrace, rings, late)
    opened = OpenTracefs(kernel, tracing, rings, targets, recorder=recorder, freeze=ftrace.freeze)
    if plan.sink.single_file is None and not plan.scope.cpus:

        def open_late(cpu: int, stack: ExitStack) -> FtraceRing:
            kernel.reserve_files(2)
            like = replace(plan.rings[0], cpu=cpu)
            ring = _open_ring(kernel, plan, instance, like, stack)
            if ftrace.keep_ns:  # the others may have grown: the kernel has made it small then
                kernel.resize_ring(instance.id, cpu, ring.geometry.data_bytes)
            return replace(ring, joined=True)

        opened.hotplug = (LateJoining(opened, open_late, stack),)
    return opened


def instance_session(plan: SessionPlan) -> str:
    """Return the session part of the instance's name; `LeftInstance.session` is the reverse."""
    if plan.name == RECORD_SESSION:
        return f"{plan.name}{OWNER_MARK}{os.getpid()}"
    return plan.name


class OpenTracefs:
    """The rings of an instance. See `source.base.OpenSource`."""

    stands_still = False

    def __init__(
        self,
        kernel: Kernel,
        tracing: OpenInstance,
        rings: tuple[FtraceRing, ...],
        target_fds: tuple[int, ...],
        *,
        recorder: bool,
        freeze: FtraceEvent | None,
    ) -> None:
        self.rings = rings
        self.hotplug: tuple[Hotplug, ...] = ()
        self.target_fds = target_fds
        self.event_ids: Mapping[int, tuple[int, ...]] = {}
        self._recorder = recorder
        self.tracing = tracing
        self._kernel = kernel
        self._id = tracing.id
        self._freeze = freeze
        self._frozen = False
        self._leaves = False
        self._stats: dict[RingLabel, MonotonicStats] = {}
        for ring in rings:
            self._count(ring)

    def _count(self, ring: FtraceRing) -> None:
        taken = self.tracing.lasting.note.taken.get(ring.label.cpu)
        self._stats[ring.label] = MonotonicStats(ring.stats_fd, taken)

    @property
    def abilities(self) -> Abilities:
        """See `source.base.OpenSource`."""
        return Abilities(
            recording=(self,),
            late=(self,),
            tracing=(self.tracing,),
            pausable=(self,),
            hotplug=self.hotplug,
            outliving=(self,) if self.tracing.lasts else (),
        )

    def add_ring(self, ring: FtraceRing) -> None:
        """Add a ring that the kernel made after the opening."""
        self.rings += (ring,)
        self._count(ring)
        self.tracing.add_ring(ring)

    def drop_ring(self, cpu: int) -> None:
        """Forget the ring of a CPU."""
        (ring,) = (ring for ring in self.rings if ring.label.cpu == cpu)
        self.rings = tuple(one for one in self.rings if one is not ring)
        del self._stats[ring.label]
        self.tracing.drop_ring(cpu)

    def add_stream(self, core: Core) -> Stream:
        """See `source.base.OpenSource`."""
        return core.add_stream(subbuf_bytes=self.rings[0].subbuf_bytes)

    def enable(self) -> None:
        """Start recording, in all rings at one moment.

        Raises:
            UsageError: a probe cannot be placed.
            MissingPrivilege, KernelError: an event cannot be enabled.
        """
        self.tracing.lasting.begin()
        self._kernel.enable_instance(self._id)
        if self._freeze is not None:
            system, name = self._freeze.system, self._freeze.name
            self._kernel.freeze_on(self._id, TraceEvent(system, name, self._freeze.filter))

    def disable(self) -> None:
        """Stop recording, in all rings at one moment, unless it is to go on."""
        if not self._leaves:
            self._kernel.disable_instance(self._id)

    disable_events = disable  # its sideband is not recorded but looked up

    def outlive(self) -> bool:
        """See `source.base.Outliving`.

        Not if it is paused, as the next process would not know; nor if there are rings that nobody
        drained, whose contents are stored at the end.
        """
        with suppress(KernelError):
            is_on = self._kernel.is_recording(self._id)
            self._leaves = is_on and not self.tracing.late.read(last=False)
        if self._leaves:
            self.tracing.lasting.leave(self._taken)
        return self._leaves

    def _taken(self) -> Mapping[int, CpuStats]:
        taken = {label.cpu: stats.taken for label, stats in self._stats.items()}
        return {cpu: stats for cpu, stats in taken.items() if stats is not None}

    @property
    def freeze_fds(self) -> tuple[int, ...]:
        """Always empty: only polling shows that an instance was stopped."""
        return ()

    def frozen(self) -> bool:
        """Whether the instance has stopped itself. Raises KernelError."""
        if self._freeze is not None and not self._kernel.is_recording(self._id):
            self._frozen = True
        return self._frozen

    def pause(self) -> None:
        """Do nothing: sub-buffers are taken out of a ring while it is written, without a loss."""

    def resume(self) -> None:
        """Resume if the instance has stopped itself; nothing else was stopped."""
        if self._frozen:
            self._frozen = False
            self._kernel.resume_recording(self._id)

    def read_produced(self, ring: RingHandle) -> Produced:
        """Read the ring's `stats`, without an interrupt of its CPU. Raises KernelError."""
        stats = self._stats[ring.label]
        reading = stats.read()
        if self._leaves:  # what is unread is not this session's any more
            reading = replace(reading, entries=0, bytes=0, oldest_event_ns=None)
        return produced(
            reading,
            recorder=self._recorder,
            resets=stats.resets,
            uncounted=bool(stats.resets) or self.tracing.grew,
            capacity_bytes=self.tracing.sizes[ring.label.cpu],
        )

    def late_rings(self, *, last: bool) -> tuple[LateRing, ...]:
        """Return the rings that the kernel made since. Raises KernelError."""
        return self.tracing.late.read(last=last)


def _settings(kernel: Kernel, plan: SessionPlan, ftrace: FtracePlan) -> InstanceSettings:
    session = instance_session(plan)
    if kernel.holds_instance(session):  # a changed session, beside the one before it
        session += ASIDE_MARK
    by_task = plan.scope.kind in (ScopeKind.PROCESS, ScopeKind.COMMAND)
    return InstanceSettings(
        session=session,
        buffer_bytes=ftrace.buffer_bytes,
        subbuf_bytes=ftrace.subbuf_bytes,
        overwrite=ftrace.overwrite,
        buffer_percent=ftrace.buffer_percent,
        cpus=plan.scope.cpus,
        pids=plan.scope.pids if by_task else (),
        follow_forks=plan.scope.inherit,
        probes=ftrace.probes,
    )


def _events(
    ftrace: FtracePlan, instance: OpenedInstance, exclude_tids: tuple[int, ...]
) -> list[TraceEvent]:
    """Return the plan's events, and those of its probes."""
    events = [
        TraceEvent(
            event.system, event.name, event.filter, exclude_tids if event.exclude_self else ()
        )
        for event in ftrace.events
    ]
    filters = {probe.name: probe.event_filter for probe in ftrace.probes}
    tids = exclude_tids if ftrace.exclude_self else ()
    return events + [
        replace(event, filter=filters[event.name], exclude_tids=tids)
        for event in instance.probe_events
    ]


def _watch(kernel: Kernel, stack: ExitStack, pid: int) -> int:
    fd = kernel.open_pid(pid)
    stack.callback(kernel.close, fd)
    return fd


def _check_online(kernel: Kernel, rings: Iterable[RingPlan]) -> None:
    """Check that CPUs are online: an offline CPU's ring may be missing, and would stay empty."""
    online = kernel.online_cpus()
    for ring in rings:
        if ring.cpu not in online:
            raise NoSuchTarget(
                f"CPU {ring.cpu} is offline or absent",
                errno=errno.ENODEV,
                hint=f"CPUs online: {cpu_list.render(online)}",
            )


def _follow(kernel: Kernel, instance: OpenedInstance, pids: Sequence[int]) -> None:
    """Trace every thread that the processes have now; the kernel adds later ones."""
    if not kernel.follow_threads(instance.id, pids):
        who = "pid " + ",".join(map(str, pids))
        raise NoSuchTarget(f"{who} has no running thread", errno=errno.ESRCH)


def _open_rings(
    kernel: Kernel,
    plan: SessionPlan,
    instance: OpenedInstance,
    stack: ExitStack,
) -> tuple[FtraceRing, ...]:
    return tuple(_open_ring(kernel, plan, instance, ring, stack) for ring in plan.rings)


def _open_ring(
    kernel: Kernel,
    plan: SessionPlan,
    instance: OpenedInstance,
    ring: RingPlan,
    stack: ExitStack,
) -> FtraceRing:
    effective, ftrace = instance.effective, plan.payload_of(FtracePlan)
    files = open_ring(kernel, instance, ring.cpu, stack)
    page_map = None
    if ftrace.transport is Transport.MMAP:
        page_map = map_pages(files.raw_fd, partial(kernel.instance_users, instance.id))
        stack.callback(page_map.close)
    return FtraceRing(
        fd=files.raw_fd,
        basis=Basis.EXACT,
        geometry=Geometry(
            data_bytes=effective.buffer_bytes,
            watermark_bytes=effective.buffer_bytes * effective.buffer_percent // 100,
            requested_bytes=ftrace.buffer_bytes,
        ),
        label=RingLabel(plan.name, ring.source, ring.role, ring.cpu),
        held=plan.mode == FLIGHT_RECORDER,
        stats_fd=files.stats_fd,
        transport=ftrace.transport,
        subbuf_bytes=effective.subbuf_bytes,
        subbufs=max(effective.buffer_bytes, ftrace.max_bytes) // effective.subbuf_bytes,
        page_map=page_map,
    )
