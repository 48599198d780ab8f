# SPDX-License-Identifier: Apache-2.0
"""A part of a source that becomes a session's plan of its own: one device, one channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collectord.plan.session_plan import Payload, RingPlan


@dataclass(frozen=True, slots=True)
class SourceDraft:
    """One part of a source; without rings the host cannot have it.

    Attributes:
        kind: kind of the source.
        form: format of its files.
        payload: what it has beside rings and events.
        rings: all rings. They are not locked memory, and so shrink to no budget.
        files: file descriptors at open.
        notes, degraded, may_fail: see `SessionPlan`.
    """

    kind: str
    form: str
    payload: Payload
    rings: tuple[RingPlan, ...] = ()
    files: int = 0
    notes: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    may_fail: bool = False
