# SPDX-License-Identifier: Apache-2.0
"""The beginning and the end of an ftrace instance that may outlive its process.

The kernel keeps an instance, with all that is in its rings, until it is removed. So a daemon that
restarts leaves it recording, with a note of what it has taken, and the next one goes on with it.
After a kill there is no such note: the rings are salvaged (`recovery.ftrace_rings`).
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import NoSuchTarget
from collectord.kernel.values.instance_settings import ASIDE_MARK, PREFIX
from collectord.kernel.values.left_instance import InstanceNote
from collectord.plan.ftrace_plan import FtracePlan
from collectord.plan.held_resources import trace_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from collectord.kernel.port import Kernel
    from collectord.kernel.values.instance_settings import InstanceSettings, OpenedInstance
    from collectord.kernel.values.ring_stats import CpuStats
    from collectord.plan.session_plan import SessionPlan

_LOG: Final = structlog.get_logger()


def left_instance(
    plan: SessionPlan, noted: Callable[[str], InstanceNote | None]
) -> tuple[str, InstanceNote] | None:
    """Return the instance that a process has left for a plan, with its note; None without one.

    Args:
        plan: of the session.
        noted: returns the note about an instance, by its name.
    """
    if not isinstance(plan.payload, FtracePlan) or not plan.payload.lasts:
        return None
    digest_ = trace_digest(plan)
    for name in (PREFIX + plan.name, PREFIX + plan.name + ASIDE_MARK):
        note = noted(name)
        if note is not None and note.digest == digest_:
            return name, note
    return None


class LastingInstance:
    """A session's instance, made or gone on with, and its end.

    Attributes:
        opened: the instance.
        note: what earlier processes have had of it.
        resumed: an earlier process has drained it.
    """

    def __init__(
        self, kernel: Kernel, plan: SessionPlan, opened: OpenedInstance, left: InstanceNote | None
    ) -> None:
        self.opened = opened
        self.resumed = left is not None
        self.note = InstanceNote(Path(plan.sink.directory))
        if left is not None:
            self.note = replace(self.note, since_ns=time.time_ns(), taken=left.taken)
        self._kernel = kernel
        self._plan = plan
        # The next process gets these; None: the instance ends with the session.
        self._left: Callable[[], Mapping[int, CpuStats]] | None = None
        if self.resumed:
            self._left = lambda: self.note.taken

    def begin(self) -> None:
        """Remove the instance with the session, as its rings are drained from now on."""
        self._left = None

    def leave(self, taken: Callable[[], Mapping[int, CpuStats]]) -> None:
        """Let the instance outlive the session.

        Args:
            taken: returns by CPU the counters of which the session's balance is made.
        """
        self._left = taken

    def close(self) -> None:
        """Remove the instance, or leave it to the next process."""
        if self._left is None:
            self._kernel.remove_instance(self.opened.id)
            return
        note = replace(
            self.note,
            since_ns=time.time_ns(),
            taken={**self.note.taken, **self._left()},
            digest=trace_digest(self._plan),
        )
        self._kernel.note_instance(self.opened.name, note)
        self._kernel.leave_instance(self.opened.id)


def open_instance(
    kernel: Kernel, plan: SessionPlan, settings: InstanceSettings
) -> LastingInstance:
    """Go on with the instance that was left for a plan, or make one. Raises as these do."""
    left = left_instance(plan, kernel.noted_instance)
    if left is not None:
        name, note = left
        try:
            opened = kernel.resume_instance(replace(settings, session=name.removeprefix(PREFIX)))
        except NoSuchTarget as error:  # the host was booted, or somebody has removed it
            _LOG.warning("instance_not_resumed", session=plan.name, error=str(error))
        else:
            return LastingInstance(kernel, plan, opened, note)
    return LastingInstance(kernel, plan, kernel.create_instance(settings), None)
