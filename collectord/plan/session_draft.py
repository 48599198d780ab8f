# SPDX-License-Identifier: Apache-2.0
"""A session before its rings have sizes: what its sources want of the host."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from collectord.config.schema_session import (
    BpfSourceConfig,
    RelaySourceConfig,
    TracefsSourceConfig,
)
from collectord.errors import PlanError, UsageError
from collectord.model import FLIGHT_RECORDER
from collectord.plan import bpf_source, relay_source, trace_source
from collectord.plan.freeze import freezing_tracepoint
from collectord.plan.held_resources import not_held
from collectord.plan.ring_set import Rings, perf_rings
from collectord.plan.scope import scope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from collectord.config.schema import Config
    from collectord.config.schema_session import SessionConfig
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.model import Scope
    from collectord.plan.source_draft import SourceDraft

# Sources each part of which becomes a plan of its own. A new source is a module and a line here.
_PLANNERS: Final[Mapping[type, Callable[[Any, KernelFacts], Iterable[SourceDraft]]]] = {
    RelaySourceConfig: relay_source.draft,
}


@dataclass(frozen=True, slots=True)
class SessionDraft:
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
    def shared_kind(self) -> str:
        """The kind of its first source that is not a plan of its own."""
        return next(one.kind for one in self.config.source if type(one) not in _PLANNERS)

    @property
    def is_empty(self) -> bool:
        """Whether the host has none of its sources."""
        return not self.is_fed and self.trace is None and not self.apart


def draft_session(
    session: SessionConfig, config: Config, facts: KernelFacts, theirs: KernelFacts
) -> SessionDraft:
    """Draft a session of a configuration.

    Args:
        session: the session.
        config: has it.
        facts: of this process.
        theirs: of the opener, or of this process where there is none.

    Raises:
        PlanError, UsageError, MissingFeature, MissingPrivilege: see `build`.
    """
    with blame(session):
        scope = scope_of(session.target, facts)
        rings, opening = _perf_rings(session, scope, facts, theirs)
        programs = [source for source in session.source if isinstance(source, BpfSourceConfig)]
        if programs:
            opening = facts if not_held(session, scope) else theirs
            # Programs that are compiled here are put into folders of this process's user.
            asked = replace(opening, euid=facts.euid)
            if not has_stand_in(session):  # else it is tried again
                asked = replace(asked, bpf=replace(asked.bpf, failed_programs={}))
            recorder = session.mode == FLIGHT_RECORDER
            rings = bpf_source.draft(programs, config, scope, asked, recorder=recorder)
        draft = SessionDraft(session, scope, rings, opening)
        for source in session.source:
            if isinstance(source, TracefsSourceConfig):
                draft, lacks = _otherwise(draft, source)
                if lacks is None:
                    continue
                freeze = freezing_tracepoint(session)
                trace = trace_source.draft(source, session.mode, scope, facts, freeze)
                if trace.rings:
                    why = (f"ftrace, as the host lacks what is preferred: {one}" for one in lacks)
                    draft = replace(draft, trace=replace(trace, notes=(*why, *trace.notes)))
                else:
                    degraded = (*draft.rings.degraded, *lacks, *trace.degraded)
                    draft = replace(draft, rings=replace(draft.rings, degraded=degraded))
            elif type(source) in _PLANNERS:
                drafted = _PLANNERS[type(source)](source, facts)
                draft = replace(draft, apart=(*draft.apart, *drafted))
        return draft


def has_stand_in(session: SessionConfig) -> bool:
    """Whether a session has a source that is used where none of those before it can be."""
    return any(
        isinstance(source, TracefsSourceConfig) and source.when == "otherwise"
        for source in session.source
    )


def _otherwise(
    draft: SessionDraft, source: TracefsSourceConfig
) -> tuple[SessionDraft, tuple[str, ...] | None]:
    """Choose between a tracefs source and those that it stands in for, by `when = "otherwise"`.

    Returns:
        the draft, and what the host lacks of the others; None if the source is left out.
    """
    if source.when != "otherwise":
        return draft, ()
    rings = draft.rings
    if rings.sets:
        note = "ftrace is not needed: the host can run what is preferred"
        return replace(draft, rings=replace(rings, notes=(*rings.notes, note))), None
    return replace(draft, rings=Rings()), rings.degraded


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
