# SPDX-License-Identifier: Apache-2.0
"""The objects that a session's parts share, with one stand-in for those that a test omits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from collectord.session.coverage_file import Unnoted
from collectord.session.session_parts import SessionParts
from collectord.source.base import Abilities

if TYPE_CHECKING:
    from collectord.plan.session_plan import SessionPlan


def parts_of(plan: SessionPlan, one: Any, **named: Any) -> SessionParts:  # noqa: ANN401 - of any type
    """Return a session's parts: `one` stands for those that are not named.

    By default it has no rings, and its source can do nothing beyond draining.
    """
    shared = (
        "stream",
        "drain",
        "counter_reader",
        "sink",
        "state_dir",
        "kernel",
        "health",
        "tasks",
    )
    parts: dict[str, Any] = {
        **dict.fromkeys(shared, one),
        "rings": (),
        "covered": Unnoted(),
        **named,
    }
    parts.setdefault("source", SimpleNamespace(abilities=Abilities()))
    return SessionParts(plan=plan, **parts)
