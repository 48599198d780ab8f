# SPDX-License-Identifier: Apache-2.0
"""An incident that is being made, and which triggers are in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collectord.daemon.incidents.triggers import Fired

# These triggers tell of an event, which is in no snapshot that was taken before it.
_EVENTS: Final = frozenset({"event", "freeze", "oom-kill"})
_ALERT: Final = "alert"
SHOWN: Final = 5


@dataclass(slots=True)
class PendingIncident:
    """An incident that is being made.

    Attributes:
        also: the triggers that fire meanwhile, as far as they are named in it.
        is_taking: whether its snapshots are being taken, or were.
        is_noted: whether its note is made, which names no more triggers.
    """

    also: list[Fired] = field(default_factory=list)
    is_taking: bool = False
    is_noted: bool = False

    def misses(self, fired: Fired) -> bool:
        """Whether a trigger fires too late for it. Alertmanager will tell of an alert again."""
        is_late = self.is_noted or (self.is_taking and fired.kind in _EVENTS)
        return is_late and fired.kind != _ALERT

    def add(self, fired: Fired) -> None:
        """Add a trigger to the incident, as long as its note is not written."""
        is_new = fired.name not in {one.name for one in self.also}
        if is_new and not self.is_noted and len(self.also) < SHOWN:
            self.also.append(fired)
