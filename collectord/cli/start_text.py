# SPDX-License-Identifier: Apache-2.0
"""The text of a daemon's start: what it records, what that costs, and what to type next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli.output import bytes_text, wrapped
from collectord.cli.segments import STATE_DIRECTORY
from collectord.model import CONTROL_SOCKET, RingRole
from collectord.text.units import NS_PER_SECOND, show_share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.config.schema import Config
    from collectord.plan.plan import Plan
    from collectord.plan.session_plan import SessionPlan

_NAMED: Final = 3  # events of a session
_RECORDER: Final = "flight-recorder"


def start_lines(plan: Plan, config: Config, places: list[str]) -> Iterator[str]:
    """Yield lines of at most 80 columns, few enough for a screen with a handful of sessions."""
    widest = max((len(session.name) for session in plan.sessions), default=0)
    for session in plan.sessions:
        head = f"  {session.name:<{widest}}  "
        yield from wrapped(_session(session), first=head, rest=" " * len(head))
        for reason in session.degraded:
            yield from wrapped(f"lacks {reason}", first=" " * len(head), rest=" " * len(head))
    staging = bytes_text(plan.core.chunks * plan.core.chunk_bytes)
    rings = bytes_text(plan.ring_bytes)
    yield f"memory   {rings} of rings, {staging} of staging"
    budget = show_share(config.daemon.budget)
    limit = f"the budget is {budget} of all CPUs" if config.daemon.budget.percent else "no budget"
    yield f"cost     {limit}; `collectord status` shows what it takes"
    yield f"files    below {config.daemon.state_dir}"
    for warning in plan.warnings:
        yield from wrapped(f"warning: {warning}", first="", rest="  ")
    yield from places
    for number, command in enumerate(_next(plan, config)):
        yield f"{'' if number else 'next':<9}{command}"


def _session(session: SessionPlan) -> str:
    """Return what a session records, how, and what an event costs the traced programs."""
    if session.is_absent:
        return "nothing to record"
    data = (ring for ring in session.rings if ring.role is RingRole.DATA)
    names = [*dict.fromkeys(e.name for ring in data for e in ring.events), *session.payload.names]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    words = [f"{session.source}, {', '.join(names[:_NAMED])}{more}"]
    if session.mode == _RECORDER:
        words.append("a flight recorder")
    if session.payload.window_ns:
        words.append(f"of {session.payload.window_ns / NS_PER_SECOND:g} s")
    cost = session.imposed
    if cost is not None:
        words.append(f"{cost.event_ns} ns an event")
    return ", ".join(words)


def _next(plan: Plan, config: Config) -> Iterator[str]:
    """Yield three commands that show something of what runs, as they are to be typed."""
    directory = config.daemon.state_dir
    where = "" if Path(directory) == STATE_DIRECTORY else f" {directory}"
    socket = config.control.socket
    asked = "" if socket == CONTROL_SOCKET else f" --socket {socket}"
    if socket:
        yield f"collectord top{asked}"
    recorder = next((s.name for s in plan.sessions if s.mode == _RECORDER), None)
    if recorder is not None and socket:
        yield f"collectord snapshot{asked} {recorder}"
    if any(session.has_chains for session in plan.sessions):
        yield f"collectord flame --since -2m -o load.html{where}"
    else:
        yield f"collectord answer list{where}"
