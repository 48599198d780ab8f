# SPDX-License-Identifier: Apache-2.0
"""Config and kernel facts to a plan: a pure function, so what `check` prints is what opens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from collectord.plan import aux_areas, ring_sizes
from collectord.plan.bpf_metrics import check_metrics
from collectord.plan.drain_threads import drain_threads
from collectord.plan.held_resources import with_opener
from collectord.plan.lock_budget import within_budgets
from collectord.plan.plan import CorePlan, Plan
from collectord.plan.plan_limits import check_chunks, check_files, check_memory, check_streams
from collectord.plan.ring_set import numbered
from collectord.plan.scope import shortfalls
from collectord.plan.session_draft import SessionDraft, draft_session
from collectord.plan.session_plan import SessionPlan
from collectord.plan.settings import settings_of
from collectord.plan.sink_plan import HoldPlan, RetentionPlan, SinkPlan
from collectord.plan.source_draft import SourceDraft
from collectord.text.units import show_bytes, show_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.config.schema import Config
    from collectord.config.schema_session import SessionConfig
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.ring_set import Rings

# Files for the state directory; and for each session the segment that it writes, the next one, and
# folder and manifest of the one that it seals.
_STATE_FILES: Final = 16
_SEGMENT_FILES: Final = 4
# Maps, functions and attachments of a BPF program.
_FILES_PER_PROGRAM: Final = 32


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
        draft = draft_session(session, config, facts, theirs)
        if draft.rings.sets:
            events = [event for ring_set in draft.rings.sets for event in ring_set.events]
            missing = shortfalls(draft.scope, events, draft.facts)
            warnings += [f"session {session.name}: {reason}" for reason in missing]
        drafts.append(draft)
        if draft.is_empty:
            reasons = "; ".join(draft.rings.degraded)
            warnings.append(f"session {session.name} records nothing: {reasons}")
    check_metrics(one.program for draft in drafts for one in draft.rings.payload.programs_run)
    sizes, pinned = within_budgets(drafts, warnings)
    sessions = tuple(
        session
        for draft, own in zip(drafts, sizes, strict=True)
        for session in _sessions(config, draft, own)
    )
    check_streams(sessions)
    check_chunks(sessions, config.daemon.chunk)
    files = sum(session.files for session in sessions)
    may_run = len(sessions) + config.control.max_sessions
    reserved = _STATE_FILES + _SEGMENT_FILES * may_run
    check_memory(sessions, config.daemon)
    check_files(files + reserved, facts, warnings)
    return Plan(
        sessions=sessions,
        core=_core(config, facts, sessions, warnings),
        warnings=tuple(warnings),
        files=files,
        reserved_files=reserved,
        pinned_bytes=pinned,
        settings=settings_of(config),
    )


def _sessions(
    config: Config, draft: SessionDraft, sizes: Sequence[tuple[int, int]]
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


def _parts(draft: SessionDraft, sizes: Sequence[tuple[int, int]]) -> Iterator[SourceDraft]:
    """Yield what becomes a plan.

    Sources that the host lacks altogether, and no other plan reports, are a plan without rings.
    """
    missing = draft.rings.degraded
    if draft.is_fed:
        yield _sized(draft.rings, sizes)
        missing = ()
    elif draft.trace is None and missing:
        yield SourceDraft(draft.shared_kind, draft.rings.form, degraded=missing, may_fail=True)
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
        if ring_sizes.is_late(ring_set.watermark, size) and not ring_set.overwrite
    ]
    files += _FILES_PER_PROGRAM * len(drafted.payload.programs_run)
    return replace(drafted, rings=rings, files=files, notes=(*drafted.notes, *late))


def _hold(config: Config) -> HoldPlan:
    ship = config.ship
    shipped = [session for session in config.session if session.ship != "none"]
    if not ship.store or not shipped:
        return HoldPlan()
    return HoldPlan(
        note=ship.directory,
        folders=tuple((one.name, config.directory_of(one)) for one in shipped),
        bytes=ship.hold,
        age_ns=ship.hold_age,
    )


def _sink(config: Config, session: SessionConfig, form: str) -> SinkPlan:
    if session.single_file:
        parent = str(PurePosixPath(session.single_file).parent)
        return SinkPlan(form, directory=parent, single_file=session.single_file)
    retention = config.retention
    directory = config.directory_of(session)
    return SinkPlan(
        form,
        directory=directory,
        segment_bytes=session.segment_bytes,
        segment_age_ns=session.segment_age,
        retention=RetentionPlan(
            bytes=retention.bytes.bytes,
            percent=retention.bytes.percent,
            age_ns=retention.age,
            free_bytes=retention.free.bytes,
            free_percent=retention.free.percent,
            hold=_hold(config),
        ),
        compress_after_ns=retention.compress_after if session.compress else 0,
        keeps_maps=session.perf_maps,
    )


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
        cpus=facts.cpus_online,
    )
