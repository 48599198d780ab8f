# SPDX-License-Identifier: Apache-2.0
"""The polls of a daemon's sessions: of each at every flush or, while it is quiet, every other one.

A poll drains and writes nothing: it reads counters, and starts work that is due.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor

    from collectord.kernel.port import Kernel
    from collectord.session.maps.map_watch import BpfWatch
    from collectord.session.session_factory import AnySession

# Used while all sessions are quiet. Figures are never older than two flush intervals.
_QUIET_PASSES: Final = 2


class SessionPolls:
    """The schedule of the polls, which are common to all sessions.

    Args:
        sessions: all of the daemon.
        kernel: read once for all sessions.
        watch: of their BPF programs, whose maps are read at each flush.
        worker: where the maps are read.
        before: called at the beginning of each poll.
        flush_ns: the flush interval.
        stretched: quiet sessions may be polled less often; False if each poll is shown.
    """

    def __init__(
        self,
        sessions: Iterable[AnySession],
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
        self._resting: frozenset[str] = frozenset()  # the sessions that the next poll leaves out
        self._left_out = False  # whether the last poll left out any
        self.passes = 1  # the number of passes from the last poll to the next

    def poll(self) -> None:
        """Poll all sessions but those that were quiet in the last poll while others were not."""
        self._looked_ns = time.monotonic_ns()
        self._before()
        # One reading is enough for all sessions.
        clocks, programs = cache(self._kernel.clocks), cache(self._kernel.bpf_program_ids)
        resting, quiet = self._resting, set()
        is_busy = not (self._stretched and self._watch.is_idle)
        for session in self._sessions:
            name = session.plan.name
            if name in resting:
                continue
            if session.tick(clocks, programs):
                quiet.add(name)
            else:
                is_busy = True
            session.note("maps", self._watch.trouble(name))
        self._watch.tick(self._worker)
        self._left_out = bool(resting)
        # Those that are quiet together are polled together, so that whole passes can be left out.
        self.passes = 1 if is_busy or resting else _QUIET_PASSES
        self._resting = frozenset(quiet if is_busy and self._stretched else ())

    def refresh(self) -> None:
        """Poll for up-to-date figures if those of a session are older than a flush interval."""
        if self._left_out or time.monotonic_ns() - self._looked_ns > self._flush_ns:
            self._resting = frozenset()
            self.poll()
