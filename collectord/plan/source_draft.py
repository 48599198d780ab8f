# SPDX-License-Identifier: Apache-2.0
"""A part of a session that becomes a plan of its own: sources that share rings, or one device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collectord.plan.payload import Payload

if TYPE_CHECKING:
    from collectord.plan.ring_plan import RingPlan


@dataclass(frozen=True, slots=True)
class SourceDraft:
    """One part of a session; without rings the host cannot have it.

    Attributes:
        kind: kind of the source.
        form: format of its files.
        payload: what it has beside rings and events.
        rings: all rings, at their final sizes.
        files: file descriptors at open.
        notes, degraded, may_fail, optional: see `SessionPlan`.
    """

    kind: str
    form: str
    payload: Payload = field(default_factory=Payload)
    rings: tuple[RingPlan, ...] = ()
    files: int = 0
    notes: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    may_fail: bool = False
    optional: tuple[str, ...] = ()
