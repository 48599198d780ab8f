# SPDX-License-Identifier: Apache-2.0
"""Config and kernel facts to a plan: a pure function, so what `check` prints is what opens."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from collectord.config.schema_session import (
    BpfSourceConfig,
    RelaySourceConfig,
    TracefsSourceConfig,
)
from collectord.errors import PlanError, UsageError
from collectord.model import STREAMS_MAX
from collectord.plan import aux_areas, bpf_source, budget, relay_source, trace_source
from collectord.plan.bpf_metrics import check_metrics
from collectord.plan.drain_threads import drain_threads
from collectord.plan.freeze import freezing_tracepoint
from collectord.plan.kept import not_held, with_opener
from collectord.plan.plan import CorePlan, Plan
from collectord.plan.ring_set import numbered, perf_rings
from collectord.plan.scope import scope_of, shortfalls
from collectord.plan.session_plan import SessionPlan
from collectord.plan.settings import settings_of
from collectord.plan.sink_plan import RetentionPlan, SinkPlan
from collectord.plan.source_draft import SourceDraft
from collectord.text.units import show_bytes, show_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from collectord.config.schema import Config, DaemonConfig
    from collectord.config.schema_session import SessionConfig
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.model import Scope
    from collectord.plan.ring_set import Rings

# Sources each part of which becomes a plan of its own. A new source is a module and a line here.
_PLANNERS: Final[Mapping[type, Callable[[Any, KernelFacts], Iterable[SourceDraft]]]] = {
    RelaySourceConfig: relay_source.draft,
}

# Connections, epoll, eventfds, the log: descriptors that are neither events nor segments.
_OTHER_FILES: Final = 44
# Memory of the process besides rings and staging, as measured at the default configuration.
_PROCESS_BYTES: Final = 72 << 20
# Files for the state directory; and for each session the segment that it writes, the next one, and
# folder and manifest of the one that it seals.
_STATE_FILES: Final = 16
_SEGMENT_FILES: Final = 4
# Maps, functions and attachments of a BPF program.
_FILES_PER_PROGRAM: Final = 32


@dataclass(frozen=True, slots=True)
class _Draft:
    """A session before its budget.

    Attributes:
        rings: those of its perf sources, or of its BPF programs.
        facts: of the process that opens them: this one, or the opener.
        trace: its tracefs source, None where the host has none of it.
        apart: sources that are a plan of their own each.
    """

    config: SessionConfig
    scope: Scope
    rings: Rings
    facts: KernelFacts
    trace: SourceDraft | None = None
    apart: tuple[SourceDraft, ...] = ()

    @property
    def is_fed(self) -> bool:
        """Whether the rings, or programs with or without them, are a plan."""
        return bool(self.rings.sets) or self.rings.kind == BpfSourceConfig.kind

    @property
    def is_empty(self) -> bool:
        """Whether the host has none of its sources."""
        return not self.is_fed and self.trace is None and not self.apart


def build(config: Config, facts: KernelFacts) -> Plan:
    """Plan every session of a configuration on the kernel that the facts describe.

    Raises:
        PlanError: the host cannot do it: an absent CPU, a rate or a number of files or rings above
            its limits; more sessions than can run; or an event that a configuration file
            misspells.
        UsageError: an event that the command line misspells.
        MissingFeature: hardware, a PMU or tracefs is absent, and is not optional.
        MissingPrivilege: tracefs may not be read.
    """
    warnings: list[str] = []
    theirs = facts.for_opener() if config.daemon.opener else facts
    drafts = []
    for session in config.session:
        draft = _draft(session, config, facts, theirs)
        if draft.rings.sets:
            events = [event for ring_set in draft.rings.sets for event in ring_set.events]
            missing = shortfalls(draft.scope, events, draft.facts)
            warnings += [f"session {session.name}: {reason}" for reason in missing]
        drafts.append(draft)
        if draft.is_empty:
            reasons = "; ".join(draft.rings.degraded)
            warnings.append(f"session {session.name} records nothing: {reasons}")
    check_metrics(one.program for draft in drafts for one in draft.rings.payload.programs_run)
    sizes, pinned = _within_budgets(drafts, warnings)
    sessions = tuple(
        session
        for draft, own in zip(drafts, sizes, strict=True)
        for session in _sessions(config, draft, own)
    )
    check_streams(sessions)
    _check_chunks(sessions, config.daemon.chunk)
    files = sum(session.files for session in sessions)
    may_run = len(sessions) + config.control.max_sessions
    reserved = _STATE_FILES + _SEGMENT_FILES * may_run
    check_memory(sessions, config.daemon)
    _check_files(files + reserved, facts, warnings)
    return Plan(
        sessions=sessions,
        core=_core(config, facts, sessions, warnings),
        warnings=tuple(warnings),
        files=files,
        reserved_files=reserved,
        pinned_bytes=pinned,
        settings=settings_of(config),
    )


def _draft(
    session: SessionConfig, config: Config, facts: KernelFacts, theirs: KernelFacts
) -> _Draft:
    with blame(session):
        scope = scope_of(session.target, facts)
        rings, opening = _perf_rings(session, scope, facts, theirs)
        programs = [source for source in session.source if isinstance(source, BpfSourceConfig)]
        if programs:
            opening = facts if not_held(session, scope) else theirs
            # What is compiled here is put into folders of this process's user.
            asked = replace(opening, euid=facts.euid)
            rings = bpf_source.draft(programs, config, scope, asked)
        draft = _Draft(session, scope, rings, opening)
        for source in session.source:
            if isinstance(source, TracefsSourceConfig):
                freeze = freezing_tracepoint(session)
                trace = trace_source.draft(source, session.mode, scope, facts, freeze)
                if trace.rings:
                    draft = replace(draft, trace=trace)
                else:
                    degraded = (*draft.rings.degraded, *trace.degraded)
                    draft = replace(draft, rings=replace(draft.rings, degraded=degraded))
            elif type(source) in _PLANNERS:
                drafted = _PLANNERS[type(source)](source, facts)
                draft = replace(draft, apart=(*draft.apart, *drafted))
        return draft


def _perf_rings(
    session: SessionConfig, scope: Scope, facts: KernelFacts, theirs: KernelFacts
) -> tuple[Rings, KernelFacts]:
    """Plan a session's perf sources; returns also the facts of the process that opens them.

    Args:
        session: has the sources.
        scope: of the session.
        facts: of this process.
        theirs: of the opener, or of this process where there is none.
    """
    if theirs is not facts and not not_held(session, scope):
        rings = perf_rings(session, scope, theirs)
        areas = [ring_set.aux for ring_set in rings.sets if ring_set.aux is not None]
        if rings.sets and not any(area.snapshot for area in areas):
            return rings, theirs
    return perf_rings(session, scope, facts), facts


@contextmanager
def blame(session: SessionConfig) -> Iterator[None]:
    """Turn a usage error in a configuration file into one that names the file and session.

    Raises:
        PlanError: the configuration is at fault, not the command line: another exit code.
    """
    try:
        yield
    except UsageError as error:
        if not session.origin:
            raise
        where = f"{session.origin}: session {session.name!r}"
        raise PlanError(f"{where}: {error.message}", hint=error.hint) from error


def _within_budgets(
    drafts: Sequence[_Draft], warnings: list[str]
) -> tuple[list[list[tuple[int, int]]], int]:
    """Return data and AUX bytes of each session's ring sets, in turn, and all that they pin.

    Each process that opens rings has a budget of its own.
    """
    sizes: dict[int, list[tuple[int, int]]] = {}
    pinned = 0
    for facts in {id(draft.facts): draft.facts for draft in drafts}.values():
        own = [draft for draft in drafts if draft.facts is facts]
        fitting, more = _within_budget(own, facts, warnings)
        sizes |= {id(draft): one for draft, one in zip(own, fitting, strict=True)}
        pinned += more
    return [sizes[id(draft)] for draft in drafts], pinned


def _within_budget(
    drafts: Sequence[_Draft], facts: KernelFacts, warnings: list[str]
) -> tuple[list[list[tuple[int, int]]], int]:
    """Return the same for the sessions whose rings one process opens."""
    sets = [ring_set for draft in drafts for ring_set in draft.rings.sets]
    # A set without AUX has an area of 0 bytes on no CPU.
    wanted = [
        entry
        for ring_set in sets
        for entry in (
            (ring_set.requested_bytes, len(ring_set.cpus)),
            (ring_set.aux.requested_bytes, len(ring_set.cpus)) if ring_set.aux else (0, 0),
        )
    ]
    limits = budget.LockBudget.of(facts)
    page = facts.page_size
    sizes = budget.fit(wanted, page, limits.bytes)
    needed = sum(budget.pinned_bytes(size, page) * count for size, count in wanted)
    remedy = (
        "give CAP_IPC_LOCK, or raise RLIMIT_MEMLOCK (LimitMEMLOCK= of the unit) or "
        "kernel.perf_event_mlock_kb"
    )
    allowed = f"{show_bytes(needed)} of rings do not fit the {show_bytes(limits.bytes or 0)} "
    allowed += "that this user may lock"
    if sizes is None:
        raise PlanError(f"{allowed}, at any size", what="mlock", hint=remedy)
    pinned = sum(
        budget.pinned_bytes(size, page) * count
        for size, (_, count) in zip(sizes, wanted, strict=True)
    )
    if pinned < needed:
        shrunk = [
            f"{name} {show_bytes(asked)} to {show_bytes(size)}"
            for name, (asked, _), size in zip(_owned(drafts), wanted, sizes, strict=True)
            if size < asked
        ]
        warnings.append(f"{allowed}: the rings are made smaller, {', '.join(shrunk)}; {remedy}")
    remaining = iter(sizes)
    both = [[(next(remaining), next(remaining)) for _ in draft.rings.sets] for draft in drafts]
    return both, pinned


def _owned(drafts: Sequence[_Draft]) -> Iterator[str]:
    """Yield the owner of each size, as warnings name it."""
    for draft in drafts:
        for ring_set in draft.rings.sets:
            name = f"{draft.config.name}/{ring_set.source}"
            yield f"{name} {ring_set.role}"
            yield f"{name} aux"


def _sessions(
    config: Config, draft: _Draft, sizes: Sequence[tuple[int, int]]
) -> Iterator[SessionPlan]:
    """Yield a plan for each kind of source, whose sources share rings, ledger and files."""
    opener = config.daemon.opener
    for part in _parts(draft, sizes):
        plan = SessionPlan(
            name=draft.config.name,
            source=part.kind,
            scope=draft.scope,
            mode=draft.config.mode,
            rings=part.rings,
            sink=_sink(config, draft.config, part.form),
            files=part.files,
            notes=part.notes,
            degraded=part.degraded,
            payload=part.payload,
            freezes=draft.config.freeze_on is not None,
            may_fail=part.may_fail,
            optional=part.optional,
            loss_class=draft.config.loss_class,
            ends_ns=draft.config.ends_ns,
        )
        yield with_opener(plan, draft.config, opener) if opener else plan


def _parts(draft: _Draft, sizes: Sequence[tuple[int, int]]) -> Iterator[SourceDraft]:
    """Yield what becomes a plan.

    Sources that the host lacks altogether, and no other plan reports, are a plan without rings.
    """
    missing = draft.rings.degraded
    if draft.is_fed:
        yield _sized(draft.rings, sizes)
        missing = ()
    elif draft.trace is None and missing:
        absent = next(one for one in draft.config.source if type(one) not in _PLANNERS)
        yield SourceDraft(absent.kind, draft.rings.form, degraded=missing, may_fail=True)
    if draft.trace is not None:
        yield replace(draft.trace, degraded=(*missing, *draft.trace.degraded))
    numbers: Counter[str] = Counter()
    for part in draft.apart:
        numbers[part.kind] += 1
        name = numbered(part.kind, numbers[part.kind])
        rings = tuple(replace(ring, source=name) for ring in part.rings)
        yield replace(part, kind=name, rings=rings)


def _sized(drafted: Rings, sizes: Sequence[tuple[int, int]]) -> SourceDraft:
    """Return the rings of perf or BPF sources at the sizes that the budget allows."""
    rings = tuple(
        ring
        for ring_set, (size, area) in zip(drafted.sets, sizes, strict=True)
        for ring in ring_set.rings(size, area)
    )
    # An event that pauses an AUX area has another one beside it, which resumes the area.
    files = sum(1 + event.pauses for ring in rings for event in ring.events)
    late = [
        f"the watermark of {show_share(ring_set.watermark)} is more than half a ring: "
        f"wakes at {show_bytes(size // 2)}"
        for ring_set, (size, _) in zip(drafted.sets, sizes, strict=True)
        if budget.is_late(ring_set.watermark, size) and not ring_set.overwrite
    ]
    files += _FILES_PER_PROGRAM * len(drafted.payload.programs_run)
    return replace(drafted, rings=rings, files=files, notes=(*drafted.notes, *late))


def _sink(config: Config, session: SessionConfig, form: str) -> SinkPlan:
    if session.single_file:
        parent = str(PurePosixPath(session.single_file).parent)
        return SinkPlan(form, directory=parent, single_file=session.single_file)
    retention = config.retention
    directory = session.directory or str(PurePosixPath(config.daemon.state_dir, session.name))
    return SinkPlan(
        form,
        directory=directory,
        segment_bytes=session.segment_bytes,
        segment_age_ns=session.segment_age,
        retention=RetentionPlan(
            bytes=retention.bytes,
            age_ns=retention.age,
            free_bytes=retention.free.bytes,
            free_percent=retention.free.percent,
        ),
        compress_after_ns=retention.compress_after if session.compress else 0,
        keeps_maps=session.perf_maps,
    )


def _check_chunks(sessions: Sequence[SessionPlan], chunk_bytes: int) -> None:
    for session in sessions:
        if session.payload.piece_bytes > chunk_bytes:
            subbuf = show_bytes(session.payload.piece_bytes)
            raise PlanError(
                f"session {session.name}: a sub-buffer of {subbuf} does not fit into a chunk of "
                f"{show_bytes(chunk_bytes)}",
                what="subbuf",
                hint="a smaller `subbuf`, or a larger `chunk` in [daemon]",
            )


def check_streams(sessions: Iterable[SessionPlan]) -> None:
    """Compare sessions that are to run at a time with the places that the core has for them.

    Each kind of source takes one, and each relay source.

    Raises:
        PlanError: they need more.
    """
    needed = sum(bool(session.rings) for session in sessions)
    if needed > STREAMS_MAX:
        raise PlanError(
            f"{needed} sessions would run at a time, and at most {STREAMS_MAX} can",
            what="session",
            hint="put the events of several sessions into one, or leave some out; one of several "
            "kinds of source counts once for each, and a reload opens what is changed before it "
            "closes the old",
        )


def check_memory(sessions: Iterable[SessionPlan], daemon: DaemonConfig) -> None:
    """Compare the rings, as they may grow, and the staging memory with the limit.

    Raises:
        PlanError: they need more.
    """
    rings = sum(session.memory_bytes for session in sessions)
    needed = rings + daemon.staging + _PROCESS_BYTES
    if daemon.memory and needed > daemon.memory:
        raise PlanError(
            f"{_mib(needed)} of memory are needed, and `memory` allows {_mib(daemon.memory)}: "
            f"{_mib(rings)} of rings, {_mib(daemon.staging)} of staging and "
            f"{_mib(_PROCESS_BYTES)} for the process",
            what="memory",
            hint="a larger `memory` or a smaller `staging` in [daemon]; or, in the sources, a "
            "smaller `ring`, `sideband_ring`, `aux`, or `max` of a flight recorder",
        )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f}MiB"


def _core(
    config: Config, facts: KernelFacts, sessions: Sequence[SessionPlan], warnings: list[str]
) -> CorePlan:
    daemon = config.daemon
    areas = [ring.aux for session in sessions for ring in session.rings if ring.aux is not None]
    chunk, note = aux_areas.chunk_bytes(areas, daemon.chunk, daemon.staging)
    if note:
        warnings.append(note)
    drain = drain_threads(daemon, facts)
    if drain.shortfall is not None:
        warnings.append(drain.shortfall.words())
    return CorePlan(
        chunks=daemon.staging // chunk,
        chunk_bytes=chunk,
        flush_ns=daemon.flush_interval,
        floor_bytes=daemon.floor,
        drain=drain,
    )


def _check_files(files: int, facts: KernelFacts, warnings: list[str]) -> None:
    """Compare with RLIMIT_NOFILE: any process can raise the soft limit to the hard one."""
    needed = files + _OTHER_FILES
    if needed > facts.rlimit_nofile_hard:
        raise PlanError(
            f"{needed} file descriptors are needed, and RLIMIT_NOFILE allows "
            f"{facts.rlimit_nofile_hard}",
            what="RLIMIT_NOFILE",
            hint="fewer events, or raise it (LimitNOFILE= of the unit, ulimit -n)",
        )
    if needed > facts.rlimit_nofile:
        warnings.append(
            f"{needed} file descriptors are needed: the soft RLIMIT_NOFILE of "
            f"{facts.rlimit_nofile} is raised (LimitNOFILE= of the unit sets it)"
        )
