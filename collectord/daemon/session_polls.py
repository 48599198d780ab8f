# SPDX-License-Identifier: Apache-2.0
"""The looks of a daemon at all its sessions: at each flush, or at every other one.

Nothing is drained or written by a look: it reads counters, and sees to what is due.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from collectord.kernel.port import Kernel
    from collectord.session.maps.map_watch import BpfWatch
    from collectord.session.session_factory import AnySession

# While all sessions are quiet: figures are never older than two flush intervals.
_QUIET_PASSES: Final = 2


class SessionPolls:
    """When each session is looked at, all of them together.

    Args:
        sessions: all of the daemon.
        kernel: read once for all of them.
        watch: of their BPF programs, whose maps are read at each flush.
        worker: where that is done.
        before: called at the beginning of each look.
        flush_ns: the flush interval.
        stretched: quiet sessions may be looked at less often; False where each look is shown.
    """

    def __init__(
        self,
        sessions: Sequence[AnySession],
        *,
        kernel: Kernel,
        watch: BpfWatch,
        worker: Executor,
        before: Callable[[], None],
        flush_ns: int,
        stretched: bool,
    ) -> None:
        self._sessions = sessions
        self._kernel = kernel
        self._watch = watch
        self._worker = worker
        self._before = before
        self._flush_ns = flush_ns
        self._stretched = stretched
        self._looked_ns = 0
        self.passes = 1  # the next look is at the pass that comes as many after the last

    def poll(self) -> None:
        """Look at all sessions."""
        self._looked_ns = time.monotonic_ns()
        self._before()
        # One reading does for all sessions.
        clocks, programs = cache(self._kernel.clocks), cache(self._kernel.bpf_program_ids)
        quiet = self._stretched and self._watch.is_idle
        for session in self._sessions:
            quiet &= session.tick(clocks, programs)
            session.note("maps", self._watch.trouble(session.plan.name))
        self._watch.tick(self._worker)
        self.passes = _QUIET_PASSES if quiet else 1

    def refresh(self) -> None:
        """Look, if the last look is longer ago than a flush interval: figures are asked for."""
        if time.monotonic_ns() - self._looked_ns > self._flush_ns:
            self.poll()
