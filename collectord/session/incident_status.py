# SPDX-License-Identifier: Apache-2.0
"""The state of a daemon's triggers and incidents, for metrics, the control API and `status`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Suppression(StrEnum):
    """Why a trigger whose condition was met makes no incident."""

    BUSY = "busy"  # one is being made, which names it
    COOLDOWN = "cooldown"  # its last one is too recent
    PER_DAY = "per_day"  # it has made as many as it may within 24 hours


@dataclass(frozen=True, slots=True)
class TriggerStatus:
    """A trigger.

    Attributes:
        kind: as in the configuration; "request" for those by hand and by signal.
        made: incidents so far, those of earlier daemons included.
        suppressed: times that it made none, by `Suppression`.
        fired_ns: UTC of the last incident, 0 for none.
        trouble: why it does not work, or works less well, "" if it does.
    """

    name: str
    kind: str
    made: int = 0
    suppressed: Mapping[str, int] = field(default_factory=dict)
    fired_ns: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class IncidentLine:
    """An incident in a list.

    Attributes:
        fired_ns: UTC.
    """

    id: str
    trigger: str
    fired_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class IncidentsStatus:
    """All triggers, and the incidents that are kept.

    Attributes:
        last: the newest ones, newest first.
        kept: how many there are.
        bytes: space that they alone take.
        evicted: deleted ones.
        failed: those that could not be written.
    """

    triggers: tuple[TriggerStatus, ...] = ()
    last: tuple[IncidentLine, ...] = ()
    kept: int = 0
    bytes: int = 0
    evicted: int = 0
    failed: int = 0
