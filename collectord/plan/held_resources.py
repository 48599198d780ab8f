# SPDX-License-Identifier: Apache-2.0
"""Sessions whose rings and programs outlive the daemon: the opener or the kernel holds them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from collectord.model import FLIGHT_RECORDER, ScopeKind
from collectord.plan.ftrace_plan import FtracePlan
from collectord.plan.relay_source import RelayPlan
from collectord.text.foreign import encode_json, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.config.schema import Config
    from collectord.config.schema_session import SessionConfig
    from collectord.model import Scope
    from collectord.plan.event_attrs import EventPlan
    from collectord.plan.ring_plan import RingPlan
    from collectord.plan.session_plan import SessionPlan

HELD_KINDS: Final = ("perf", "bpf")
_NOT_HELD: Final = "not held by the opener: "


def held_part(config: Config) -> Config:
    """Return a configuration with the sources alone that an opener may hold.

    The others may want what its unit does not permit: ftrace instances, block devices.
    """
    sessions = (
        structs.replace(session, source=tuple(s for s in session.source if s.kind in HELD_KINDS))
        for session in config.session
    )
    return structs.replace(config, session=tuple(one for one in sessions if one.source))


def with_opener(plan: SessionPlan, session: SessionConfig, opener: str) -> SessionPlan:
    """Return a session whose rings outlive the daemon, or with a note why they do not.

    An opener holds those of perf and BPF. An instance of ftrace and a block trace stay in the
    kernel; the opener's end shows that nobody will go on with them.

    Args:
        plan: the session's.
        session: from which it was planned.
        opener: the opener's socket.
    """
    ftrace = plan.payload if isinstance(plan.payload, FtracePlan) else None
    block = plan.payload if isinstance(plan.payload, RelayPlan) else None
    is_trace = block is not None and block.is_blktrace
    held = plan.kind in HELD_KINDS or ftrace is not None or is_trace
    probes = ftrace is not None and bool(ftrace.probes)
    window = ftrace is not None and session.mode == FLIGHT_RECORDER
    areas = [ring.aux for ring in plan.rings if ring.aux is not None]
    reasons = (
        (not held, "the files of a channel end with its client"),
        (plan.is_absent, "there is nothing to open"),
        (
            any(area.snapshot for area in areas),
            "flight recorders of AUX areas end with the daemon",
        ),
        (probes, "probes end with the daemon"),
        (window, "flight recorders of ftrace end with the daemon"),
    )
    reason = next(
        (reason for applies, reason in reasons if applies), not_held(session, plan.scope)
    )
    if reason:
        return replace(plan, notes=(*plan.notes, _NOT_HELD + reason))
    if ftrace is not None:
        return replace(plan, payload=replace(ftrace, lasts=True))
    if block is not None:
        return replace(plan, payload=replace(block, lasts=True))
    rings = tuple(
        # An event takes a filter once, and the next daemon has other threads.
        replace(ring, events=tuple(replace(one, exclude_self=False) for one in ring.events))
        for ring in plan.rings
    )
    return replace(plan, rings=rings, opener=opener)


def not_held(session: SessionConfig, scope: Scope) -> str:
    """Return the reason why an opener holds neither rings nor programs of a session, "" if it may.

    There are others, which are known after planning: see `with_opener`.
    """
    reasons = (
        (session.ends_ns > 0, "it ends by itself"),
        (
            session.mode == FLIGHT_RECORDER and any(s.kind == "bpf" for s in session.source),
            "flight recorders of BPF programs end with the daemon",
        ),
        (scope.kind not in (ScopeKind.SYSTEM, ScopeKind.CPUS), "it opens whole CPUs alone"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def digest(plan: SessionPlan, programs: Sequence[object] = ()) -> str:
    """Return a digest of all that is opened for a session.

    The sizes that a budget allows are left out: it is the opener's that counts.

    Args:
        plan: of the session.
        programs: its BPF programs as they are compiled, in plain data.
    """
    rings = [_ring(ring) for ring in plan.rings]
    opened = [plan.scope.describe(), rings, list(programs)]
    return hashlib.sha256(encode_json(opened)).hexdigest()


def trace_digest(plan: SessionPlan) -> str:
    """Return a digest of all that makes a session's instance of ftrace what it is."""
    ftrace = plan.payload_of(FtracePlan)
    made = [ftrace.buffer_bytes, ftrace.subbuf_bytes, ftrace.overwrite, ftrace.buffer_percent]
    events = [[*plain(event).values()] for event in ftrace.events]
    text = encode_json([plan.scope.describe(), list(plan.scope.cpus), *made, *events])
    return hashlib.sha256(text).hexdigest()


def block_digest(plan: SessionPlan) -> str:
    """Return a digest of all that makes a session's block trace what it is, and where it goes."""
    relay = plan.payload_of(RelayPlan)
    text = encode_json([plan.name, str(plan.sink.directory), plain(relay)])
    return hashlib.sha256(text).hexdigest()


def _ring(ring: RingPlan) -> list[object]:
    events = [_event(event) for event in ring.events]
    own = [ring.source, str(ring.role), ring.cpu, ring.requested_bytes, events]
    return own if ring.aux is None else [*own, ring.aux.requested_bytes]


def _event(event: EventPlan) -> list[object]:
    group = [event.index, event.group, event.leader, list(event.cpus)]
    return [*group, event.attr.encode().hex(), event.filter]
