# SPDX-License-Identifier: Apache-2.0
"""Planning of tracefs sources: kernel facts to the plan of the instance and its rings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord.codec.file_formats import TRACE_DAT
from collectord.config.schema_session import TracefsSourceConfig
from collectord.errors import (
    CollectordError,
    MissingFeature,
    MissingPrivilege,
    PlanError,
    UsageError,
)
from collectord.model import FLIGHT_RECORDER, FOLLOWING, RingRole, ScopeKind, Transport
from collectord.plan import ring_sizes, transport
from collectord.plan.ftrace_plan import FtraceEvent, FtracePlan
from collectord.plan.kinds import kinds_of
from collectord.plan.ring_plan import RingPlan
from collectord.plan.ring_set import ASSUMED_BYTES_PER_SECOND
from collectord.plan.scope import excludes_self, ring_cpus
from collectord.plan.source_draft import SourceDraft
from collectord.plan.source_events import ABSENCE
from collectord.text.units import NS_PER_SECOND, RingSize, show_bytes, show_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.codec.tracepoint import Tracepoint
    from collectord.config.event_spec import EventChoices
    from collectord.config.schema import Config
    from collectord.config.trace_probe import Probe
    from collectord.facts.kernel_facts import FtraceFacts, KernelFacts
    from collectord.model import Scope
    from collectord.text.units import Share

SOURCE: Final = "tracefs"

# Ring of a stream. A pass that comes 20 ms late meets 2 MB of 60-byte events at 1.7 million a
# second; the ring wakes us when it is a quarter full.
STREAM_RING_BYTES: Final = 4 << 20
# A sub-buffer's header; the kernel takes a ring's size for the room behind the headers.
_HEADER_BYTES: Final = 16
# The kernel's limits: two sub-buffers a ring at least, and 128 pages a sub-buffer at most.
_SUBBUFS_MIN: Final = 2
_SUBBUF_PAGES_MAX: Final = 128
# A larger sub-buffer costs fewer calls; a ring of few large ones wakes late, and a full one gives
# up much at once.
_SUBBUF_BYTES: Final = 64 << 10
_SUBBUFS_WANTED: Final = 32
# GET_READER walks a sub-buffer's events with interrupts off, about 0.5 us per KiB.
_MAPPED_SUBBUF_BYTES: Final = 16 << 10
# A flight recorder is never woken, and a later process recognises it by this value.
RECORDER_PERCENT: Final = 100
_PERCENT_MAX: Final = 99

# The assumed rate of a CPU when a flight recorder begins: a busy scheduler's, about 4000 events a
# second. The measured rate decides after that.
_RECORDER_RING_MIN_BYTES: Final = 64 << 10

# trace_pipe_raw and stats of each CPU, a pipe to splice through; the lock and the marker.
_FILES_PER_RING: Final = 2
_FILES_PER_PIPE: Final = 2
_FILES_OF_INSTANCE: Final = 2

_NO_SCOPE: Final = {
    ScopeKind.THREAD: "a single thread's children and siblings cannot be left out",
    ScopeKind.USER: "it can follow processes, but not users",
    ScopeKind.CGROUP: "it can follow processes, but not cgroups",
    **dict.fromkeys(FOLLOWING, "it cannot follow processes that begin later; perf's rings can"),
}


def is_used(config: Config) -> bool:
    """Whether a session records ftrace, so that a probe must try it."""
    return any(True for _ in _sources(config))


def chooses(config: Config) -> bool:
    """Whether a transport is to be chosen, so that a probe must measure their costs."""
    return any(source.transport == "auto" for source in _sources(config))


def _sources(config: Config) -> Iterator[TracefsSourceConfig]:
    for session in config.session:
        for source in session.source:
            if isinstance(source, TracefsSourceConfig):
                yield source


def draft(
    source: TracefsSourceConfig,
    mode: str,
    scope: Scope,
    facts: KernelFacts,
    freeze: FtraceEvent | None = None,
) -> SourceDraft:
    """Plan a tracefs source; without rings the host has none of it.

    Args:
        source: its configuration.
        mode: mode of its session.
        scope: scope of its session.
        facts: capabilities of the kernel.
        freeze: the event that stops the rings.

    Raises:
        PlanError: a scope that ftrace does not have, or a size that the kernel does not take.
        UsageError: an event that is misspelt, or two filters for one.
        MissingFeature, MissingPrivilege: the host lacks it, and it is not optional.
    """
    degraded: list[str] = []
    _check_scope(scope)
    try:
        _check_instances(facts.ftrace)
        recorder = mode == FLIGHT_RECORDER
        exclude_self = excludes_self(source.include_self, scope, drained=not recorder)
        for probe in source.probes:
            _check_probe(probe, facts.ftrace)
        events = _with(freeze, tuple(_events(source, facts, degraded, exclude_self=exclude_self)))
        chosen = transport.choose(facts.ftrace, source.transport, resized=recorder)
    except ABSENCE as error:
        if source.when == "always":
            raise
        return SourceDraft(SOURCE, TRACE_DAT, degraded=(f"{SOURCE}: {error.message}",))
    if not events and not source.probes:
        return SourceDraft(SOURCE, TRACE_DAT, degraded=tuple(degraded))
    cpus = ring_cpus(scope, facts)
    notes: list[str] = []
    keep_ns = max_bytes = 0
    if recorder:
        keep_ns = ring_sizes.KEEP_NS if source.keep is None else source.keep
        most = source.max or ring_sizes.recorder_limit(len(cpus))
        max_bytes = most.of(facts.memory_bytes) or ring_sizes.RECORDER_MAX.bytes
        default = _recorder_bytes(keep_ns, max_bytes, len(cpus))
    else:
        default = STREAM_RING_BYTES
    wanted_bytes = source.ring.in_bytes(facts.page_size, default)
    subbuf_bytes = _subbuf_bytes(source.subbuf, wanted_bytes, chosen.transport, facts)
    if recorder and source.ring == RingSize():
        wanted_bytes = _within(wanted_bytes, subbuf_bytes)
    ring_bytes = _ring_bytes(wanted_bytes, subbuf_bytes)
    ring_sizes.check_size(ring_bytes)
    if recorder:
        notes += _window(keep_ns, max_bytes, ring_bytes, len(cpus))
        if chosen.transport is Transport.MMAP:
            notes.append("mapped rings keep their size, whatever the measured rate is")
    # A flight recorder is full as it should be, and wakes nobody then.
    percent = RECORDER_PERCENT if recorder else _percent(source.watermark, ring_bytes)
    plan = FtracePlan(
        events=events,
        probes=source.probes,
        exclude_self=exclude_self,
        buffer_bytes=wanted_bytes,
        subbuf_bytes=subbuf_bytes,
        overwrite=source.overwrite,
        buffer_percent=percent,
        transport=chosen.transport,
        transport_reason=chosen.reason,
        keep_ns=keep_ns,
        max_bytes=max_bytes,
        freeze=freeze,
    )
    rings = tuple(
        RingPlan(
            source=SOURCE,
            role=RingRole.DATA,
            cpu=cpu,
            requested_bytes=ring_bytes,
            data_bytes=ring_bytes,
            watermark_bytes=0 if recorder else ring_bytes * percent // 100,
            events=(),
        )
        for cpu in cpus
    )
    a_ring = _FILES_PER_RING
    if chosen.transport is Transport.SPLICE:
        a_ring += _FILES_PER_PIPE
    files = len(rings) * a_ring + _FILES_OF_INSTANCE
    may_fail = source.when != "always"
    return SourceDraft(
        SOURCE, TRACE_DAT, plan, rings, files, tuple(notes), tuple(degraded), may_fail
    )


def _with(freeze: FtraceEvent | None, events: tuple[FtraceEvent, ...]) -> tuple[FtraceEvent, ...]:
    """Return the events with the one that stops the rings, recorded whichever task causes it."""
    if freeze is None:
        return events
    if str(freeze) not in map(str, events):
        return (*events, freeze)
    return tuple(
        replace(event, exclude_self=event.exclude_self and str(event) != str(freeze))
        for event in events
    )


def _check_scope(scope: Scope) -> None:
    reason = _NO_SCOPE.get(scope.kind, "")
    if scope.per_thread:
        reason = "it has a ring for each CPU, and none for a thread"
    if reason:
        what = "per-thread rings" if scope.per_thread else f"the {scope.kind} scope"
        raise PlanError(
            f"ftrace does not support {what}: {reason}",
            what=str(scope.kind),
            hint="use the scope system, cpus, process or command, or a perf source",
        )


def _check_instances(facts: FtraceFacts) -> None:
    if facts.need:
        raise MissingPrivilege(f"no ftrace instance: {facts.problem}", need=facts.need)
    if not facts.instances:
        raise MissingFeature(
            f"no ftrace instance: {facts.problem or 'this kernel does not have them'}",
            feature="tracefs instances",
            hint="see the row `ftrace instances` of `collectord doctor`",
        )
    if not facts.clock_mono:
        raise MissingFeature(
            "this kernel's ftrace has no CLOCK_MONOTONIC",
            feature="trace_clock mono",
            hint="Linux 4.1",
        )


def _check_probe(probe: Probe, facts: FtraceFacts) -> None:
    here = {"k": facts.kprobes, "u": facts.uprobes, "e": facts.eprobes}
    if not here[probe.kind[0]]:
        raise MissingFeature(
            f"probe {probe.name}: this kernel has no {probe.kind}s", feature=f"{probe.kind}s"
        )


def _events(
    source: TracefsSourceConfig, facts: KernelFacts, degraded: list[str], *, exclude_self: bool
) -> Iterator[FtraceEvent]:
    """Yield each event once. An instance has one filter for it: the one of its own entry.

    An event that names another task is recorded in our own threads too, as in perf: see
    `plan.event_attrs.may_exclude_self`.
    """
    own: dict[Tracepoint, str] = {}
    for entry in source.events:
        try:
            tracepoints = _first_choice(entry.event, facts)
        except ABSENCE as error:
            if entry.when != "present":
                raise
            degraded.append(f"{SOURCE}: {error.message}")
            continue
        for tracepoint in tracepoints:
            before = own.get(tracepoint, "")
            if entry.filter and before and before != entry.filter:
                raise UsageError(
                    f"two filters for {tracepoint}: {before!r} and {entry.filter!r}",
                    hint="join them with ||, or record it in two sessions",
                )
            own[tracepoint] = entry.filter or before
    for tracepoint, text in own.items():
        hides_self = exclude_self and tracepoint not in facts.task_tracepoints
        yield FtraceEvent(*tracepoint, text or source.filter, hides_self)


def _first_choice(choices: EventChoices, facts: KernelFacts) -> list[Tracepoint]:
    """Return the tracepoints of the first alternative that the host has."""
    missing: list[CollectordError] = []
    for choice in choices:
        try:
            specs = [spec for group in choice for spec in group.events]
            kinds = [kind for spec in specs for kind in kinds_of(spec, facts)]
        except ABSENCE as error:
            missing.append(error)
            continue
        return [kind.tracepoint for kind in kinds if kind.tracepoint is not None]
    raise missing[-1]


def _subbuf_bytes(
    wanted_bytes: int, ring_bytes: int, chosen: Transport, facts: KernelFacts
) -> int:
    page = facts.page_size
    if not facts.ftrace.subbuf_sizes:
        if wanted_bytes > page:
            raise MissingFeature(
                f"sub-buffers of {show_bytes(wanted_bytes)}: this kernel's have the size of a "
                "page",
                feature="buffer_subbuf_size_kb",
                hint="Linux 6.8 or newer; leave subbuf out",
            )
        return page
    if not wanted_bytes:
        limit = _MAPPED_SUBBUF_BYTES if chosen is Transport.MMAP else _SUBBUF_BYTES
        wanted_bytes = min(limit, ring_bytes // _SUBBUFS_WANTED)
        # Rounded down, so that the ring does not grow by it.
        return max(page, 1 << max(wanted_bytes, 1).bit_length() - 1)
    pages = -(-wanted_bytes // page)
    if pages > _SUBBUF_PAGES_MAX:
        raise PlanError(
            f"sub-buffers of {show_bytes(wanted_bytes)}",
            what="subbuf",
            hint=f"at most {show_bytes(_SUBBUF_PAGES_MAX * page)}",
        )
    return page << (pages - 1).bit_length()


def _ring_bytes(wanted_bytes: int, subbuf_bytes: int) -> int:
    """Return the ring size that the kernel makes: room for so many bytes behind the headers."""
    subbufs = -(-wanted_bytes // (subbuf_bytes - _HEADER_BYTES))
    return max(_SUBBUFS_MIN, subbufs) * subbuf_bytes


def _within(ring_bytes: int, subbuf_bytes: int) -> int:
    """Return the size to ask for so that ring and reader's sub-buffer fit in `ring_bytes`."""
    subbufs = max(_SUBBUFS_MIN, ring_bytes // subbuf_bytes - 1)
    return subbufs * (subbuf_bytes - _HEADER_BYTES)


def _percent(watermark: Share, ring_bytes: int) -> int:
    """Return a watermark as buffer_percent, where 0 would mean each event."""
    percent = watermark.percent or 100 * watermark.bytes / ring_bytes
    return max(1, min(round(percent), _PERCENT_MAX))


def _recorder_bytes(keep_ns: int, max_bytes: int, rings: int) -> int:
    """Return a recorder's first ring size: `keep` at the assumed rate, within `max`."""
    most = max_bytes // rings
    if most < _RECORDER_RING_MIN_BYTES:
        raise PlanError(
            f"max = {show_bytes(max_bytes)} leaves {show_bytes(most)} for each of {rings} CPUs",
            what="max",
            hint=f"at least {show_bytes(_RECORDER_RING_MIN_BYTES * rings)}",
        )
    wanted = keep_ns * ASSUMED_BYTES_PER_SECOND // NS_PER_SECOND
    return max(_RECORDER_RING_MIN_BYTES, min(wanted, most))


def _window(keep_ns: int, max_bytes: int, ring_bytes: int, rings: int) -> Iterator[str]:
    """Yield in words what a flight recorder can hold."""
    most = max_bytes // rings
    keep, rate = show_ns(keep_ns), f"{_rate(ASSUMED_BYTES_PER_SECOND)} a CPU"
    held_s = ring_bytes / ASSUMED_BYTES_PER_SECOND
    yield (
        f"begins with {_size(ring_bytes)} a CPU, {held_s:.3g}s at an assumed {rate}; "
        "then the measured rate decides"
    )
    limit_rate = most * NS_PER_SECOND / keep_ns
    words = f"max of {show_bytes(max_bytes)} is {_size(most)} a CPU"
    if limit_rate < ASSUMED_BYTES_PER_SECOND:
        yield f"{words}: {most / ASSUMED_BYTES_PER_SECOND:.3g}s at that rate, not {keep}"
    else:
        yield f"{words}: {keep} up to {_rate(limit_rate)} a CPU"


def _size(count: float) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= scale:
            return f"{count / scale:.3g}{unit}"
    return f"{count / 1024:.3g}KiB"


def _rate(bytes_per_second: float) -> str:
    return f"{_size(bytes_per_second)}/s"
