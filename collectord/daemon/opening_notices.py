# SPDX-License-Identifier: Apache-2.0
"""Notifications to the service manager about what is opened, and how long that may take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.config.schema import Config
    from collectord.control.service import Service
    from collectord.plan.session_plan import SessionPlan

# The time that the manager is asked for, for a session's programs besides compiling.
_LOADING_S: Final = 60.0


class Opening:
    """Notifies the manager of what is opened, and asks for the time that compilers may take.

    Args:
        service: the manager.
        plans: what is opened.
        config: limits the compilers.
    """

    def __init__(self, service: Service, plans: Sequence[SessionPlan], config: Config) -> None:
        self._service = service
        self._limit_s = config.bpf.compile_time / NS_PER_SECOND
        self._kinds = {s.kind: None for s in plans if not s.payload.has_programs}
        self._programs = sum(len(s.payload.programs_run) for s in plans)
        self._compiled = 0

    def begin(self, plan: SessionPlan) -> None:
        """Say that the next session is opened."""
        programs = plan.payload.programs_run
        self._compiled += len(programs)
        if programs:
            names = ", ".join(one.name for one in programs)
            self._service.status(f"compiling {names} ({self._compiled} of {self._programs})")
            self._service.extend(len(programs) * self._limit_s + _LOADING_S)
        elif not plan.payload.has_programs:
            self._service.status(f"opening rings ({', '.join(self._kinds)})")
