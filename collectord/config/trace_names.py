# SPDX-License-Identifier: Apache-2.0
"""Events of a tracefs source: only tracepoints, in perf's spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.codec.tracepoint import Tracepoint
from collectord.config import event_spec
from collectord.config.event_spec import Modifiers
from collectord.errors import UsageError

if TYPE_CHECKING:
    from collectord.config.event_spec import EventChoices, EventSpec


def parse(text: str) -> EventChoices:
    """Parse a list such as "sched:sched_switch,block:*", with alternatives separated by "|".

    Raises:
        UsageError: it does not parse, or names something that ftrace does not have.
    """
    return checked(event_spec.parse_choices(text))


def checked(choices: EventChoices) -> EventChoices:
    """Return the events if ftrace has them. Raises UsageError for others."""
    for group in (group for choice in choices for group in choice):
        if group.braced:
            raise UsageError(
                f"ftrace has no groups: {group.text!r}", hint="list the events without braces"
            )
        check_event(group.events[0])
    return choices


def check_event(event: EventSpec) -> None:
    """Raise UsageError for an event that ftrace cannot have."""
    if not isinstance(event.body, Tracepoint):
        raise UsageError(
            f"{event.text!r} is not a tracepoint",
            hint="ftrace records tracepoints (SYSTEM:NAME); perf records this",
        )
    if event.modifiers != Modifiers():
        raise UsageError(
            f"{event.text!r}: an ftrace event takes no modifiers",
            hint="leave out the text after the second colon",
        )
