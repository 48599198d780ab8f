# SPDX-License-Identifier: Apache-2.0
"""Events of a tracefs source: tracepoints and nothing else, in perf's spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.config import event_spec
from collectord.config.event_spec import Modifiers, Tracepoint
from collectord.errors import UsageError

if TYPE_CHECKING:
    from collectord.config.event_spec import EventGroup, EventSpec


def parse(text: str) -> tuple[tuple[EventSpec, ...], ...]:
    """Read a list such as "sched:sched_switch,block:*", with alternatives behind "|".

    Returns:
        the alternatives, each with its tracepoints.

    Raises:
        UsageError: it does not parse, or is something that ftrace does not have.
    """
    return tuple(
        tuple(_tracepoint(group, text) for group in choice)
        for choice in event_spec.parse_choices(text)
    )


def _tracepoint(group: EventGroup, text: str) -> EventSpec:
    if group.braced:
        raise UsageError(
            f"ftrace has no groups: {text!r}", text=text, hint="list the events without braces"
        )
    (event,) = group.events
    if not isinstance(event.body, Tracepoint):
        raise UsageError(
            f"{event.text!r} is no tracepoint",
            text=event.text,
            hint="ftrace records tracepoints (SYSTEM:NAME); perf records this",
        )
    if event.modifiers != Modifiers():
        raise UsageError(
            f"{event.text!r}: an ftrace event takes no modifiers",
            text=event.text,
            hint="leave out what is behind the second colon",
        )
    return event
