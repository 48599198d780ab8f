# SPDX-License-Identifier: Apache-2.0
"""The processes that a session follows: which of those that begin are attached, and until when.

A process that matches is attached with all its threads, and stays so while it lives, whatever
name it gets. Its children inherit its events: they are not attached again. So the time of a fork
decides whether a child has inherited; where that cannot be told the child is attached, and may
then be counted twice, since missing it would be worse.
"""

from __future__ import annotations

import asyncio
import errno
import re
import time
from collections import Counter, deque
from dataclasses import dataclass
from fnmatch import translate
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError, NoSuchTarget
from collectord.ledger.followed_processes import FollowedProcesses, Missed

if TYPE_CHECKING:
    from collectord._native._core import Ring, RingMap, Stream
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.codec.process_event import Forked
    from collectord.kernel.port import Kernel
    from collectord.session.session_parts import SessionParts
    from collectord.source.base import Following
    from collectord.source.ring import RingHandle

_LOG: Final = structlog.get_logger()
# A fork takes about so long from passing the parent's events on to its message.
_FORK_NS: Final = 200_000
# The ends of a process's events are some microseconds apart, and its last ones are no news.
_END_PAUSE_S: Final = 0.05
_END_PAUSE_MAX_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class NameFeed:
    """The fed ring that takes names and mappings of attached processes.

    Attributes:
        ring: takes the records.
        attr: of the event that they belong to.
        event_id: its id.
    """

    ring: RingMap
    attr: PerfEventAttr
    event_id: int


@dataclass(slots=True)
class _Attached:
    """A process with open events.

    Attributes:
        number: its source's.
        since_ns: when all its events had been opened.
        is_over: nobody has its events any more, as of the last look.
        pause_s: time to the next look.
        look_at_s: when that is, by the loop's clock.
    """

    number: int
    since_ns: int
    is_over: bool = False
    pause_s: float = _END_PAUSE_S
    look_at_s: float = 0.0


class Follower:
    """The followed processes of one session.

    Args:
        parts: of the session.
        source: opens and closes the events of processes.
        feed: takes the names of those that are attached.
    """

    def __init__(self, parts: SessionParts, source: Following, feed: NameFeed) -> None:
        self._scope = parts.plan.scope
        self._matches = re.compile(translate(self._scope.pattern)).match
        self._kernel: Kernel = parts.kernel
        self._source = source
        self._feed = feed
        self._stream: Stream = parts.stream
        self._health = parts.health
        self._rings: list[tuple[RingHandle, Ring]] = [(d.handle, d.ring) for d in parts.rings]
        self._log = _LOG.bind(session=parts.plan.name)
        self._attached: dict[int, _Attached] = {}  # by pid, those whose first thread lives
        self._ending: list[_Attached] = []
        self._inherited: set[int] = set()
        self._left_out: set[int] = set()  # processes that matched and live, unattached
        self._fading: deque[tuple[int, int]] = deque()  # generation and number of released ones
        self._timer: asyncio.TimerHandle | None = None
        self._total = self._rescans = 0
        self._has_ended = False
        self._missed: Counter[Missed] = Counter()

    @property
    def counts(self) -> FollowedProcesses:
        """The present counts."""
        missed = {str(reason): self._missed[reason] for reason in Missed}
        return FollowedProcesses(self._open, self._total, missed, self._rescans)

    @property
    def _open(self) -> int:
        return len(self._attached) + len(self._ending)

    def begin(self) -> None:
        """Attach the processes that match now."""
        for pid in self._kernel.processes():
            self._consider(pid, is_new=False)

    def rescan(self) -> None:
        """Find what has begun and ended since the last news that are known."""
        self._rescans += 1
        running = set(self._kernel.processes())
        for pid in (*self._attached, *self._inherited, *self._left_out):
            if pid not in running:
                self.exited(pid)
        for pid in sorted(running - self._attached.keys() - self._inherited - self._left_out):
            if self._has_inherited(pid):
                self._inherited.add(pid)
            else:
                self._consider(pid, is_new=False)

    def _has_inherited(self, pid: int) -> bool:
        try:
            origin = self._kernel.origin_of(pid)
        except NoSuchTarget:
            return False
        parent = self._attached.get(origin.parent)
        if parent is not None:
            return origin.started_ns > parent.since_ns
        return origin.parent in self._inherited

    def forked(self, news: Forked) -> None:
        """Take note of a process that has begun as another one's child."""
        parent = self._attached.get(news.parent)
        if parent is not None and news.time_ns <= parent.since_ns + _FORK_NS:
            self._attach(news.pid)
        elif parent is not None or news.parent in self._inherited:
            self._inherited.add(news.pid)
        elif news.parent in self._left_out:
            self._consider(news.pid, is_new=True)

    def renamed(self, pid: int) -> None:
        """Look at a process that has another name or program."""
        if pid not in self._attached and pid not in self._inherited:
            self._left_out.discard(pid)
            self._consider(pid, is_new=True)

    def exited(self, pid: int) -> None:
        """Take note of the end of a process's first thread."""
        self._inherited.discard(pid)
        self._left_out.discard(pid)
        attached = self._attached.pop(pid, None)
        if attached is not None:
            self._end(attached)

    def _consider(self, pid: int, *, is_new: bool) -> None:
        """Attach a process if it matches; one that has gone may have, if it `is_new`."""
        try:
            traits = self._kernel.traits_of(pid, self._scope.kind)
        except KernelError as error:
            if is_new:
                self._missed[Missed.UNKNOWN] += 1
                if not isinstance(error, NoSuchTarget):
                    self._health.note("follow", str(error))
            return
        if any(map(self._matches, traits)):
            self._attach(pid)

    def _attach(self, pid: int) -> None:
        if self._has_ended:
            return
        if self._open >= self._scope.limit:
            self._miss(pid, Missed.LIMIT)
            return
        began_ns = time.monotonic_ns()
        try:
            number = self._source.take(pid)
        except KernelError as error:
            if error.errno == errno.ESRCH:
                self._missed[Missed.GONE] += 1
            else:
                self._refuse(pid, error)
            return
        one = _Attached(number, time.monotonic_ns())
        try:
            for handle, ring in self._rings:
                ring.set_ids(self._source.ids(handle))
            lives = self._source.start(number)
        except (KernelError, OSError) as error:
            self._refuse(pid, error)
            self._end(one)
            return
        if lives:
            self._total += 1
            self._attached[pid] = one
            self._left_out.discard(pid)
            self._name(pid, began_ns)
        else:
            self._missed[Missed.GONE] += 1
            self._end(one)

    def _miss(self, pid: int, reason: Missed) -> None:
        if pid not in self._left_out:
            self._left_out.add(pid)
            self._missed[reason] += 1

    def _refuse(self, pid: int, error: Exception) -> None:
        self._miss(pid, Missed.REFUSED)
        if self._health.note("follow", f"a process that matches was not attached: {error}"):
            self._log.error("process_not_attached", pid=pid, error=str(error))

    def _name(self, pid: int, began_ns: int) -> None:
        """Record names and mappings that the process had before its events told of them."""
        time_ns = max(began_ns, self._stream.round_ns())
        feed = self._feed
        # A ring that is full takes none of them: then samples have a pid and no name.
        feed.ring.feed(self._kernel.process_state(feed.attr, feed.event_id, pid, time_ns))

    def _end(self, one: _Attached) -> None:
        self._ending.append(one)
        if self._timer is None and not self._has_ended:
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_END_PAUSE_S, self._look_at_ends)

    def _look_at_ends(self) -> None:
        """Release the processes that were over at the last look already; look at the others."""
        self._timer = None
        now_s = time.monotonic()
        for one in [one for one in self._ending if one.look_at_s <= now_s]:
            if one.is_over:
                self._release(one)
            else:
                one.is_over = self._source.is_over(one.number)
                longer_s = min(2 * one.pause_s, _END_PAUSE_MAX_S)
                one.pause_s = _END_PAUSE_S if one.is_over else longer_s
                one.look_at_s = now_s + one.pause_s
        if self._ending:
            self._set_timer()

    def _release(self, one: _Attached) -> None:
        try:
            self._source.release(one.number)
        except KernelError as error:
            if self._health.note("follow", f"counters of a process not read: {error}"):
                self._log.error("counters_not_read", error=str(error))
            return
        self._ending.remove(one)
        self._fading.append((self._stream.issued_generation(), one.number))

    def tick(self) -> None:
        """Find ends that no news told of; forget released processes that are all drained."""
        for pid, one in tuple(self._attached.items()):
            if self._source.is_over(one.number):
                self.exited(pid)
        while self._fading and self._fading[0][0] < self._stream.drained_generation():
            self._source.forget(self._fading.popleft()[1])

    def end(self) -> None:
        """Stop attaching and releasing processes."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
