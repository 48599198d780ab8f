# SPDX-License-Identifier: Apache-2.0
"""The heartbeat: a record of our own in each ring, which tells a dead source from a quiet one.

A thread visits the CPUs one after the other. Where it is, it renames itself: that is a record in
the sideband rings of perf and BPF sessions, and no sample. Into ftrace's rings it writes a marker.
A heartbeat has arrived in a session when more has arrived in each of its rings on the visited
CPUs: any other record is as good.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.errors import KernelError
from collectord.model import RingRole, ScopeKind
from collectord.session.cpu_visit import rename, visit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from typing import Self

    from collectord.ledger.record_ledger import RingBalance, SessionBalance
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.base import Tracing

_NAME: Final = "heartbeat"
# Those whose rings take records of any task on their CPUs.
_SCOPES: Final = (ScopeKind.SYSTEM, ScopeKind.CPUS)


class Heart:
    """One session's part of the heartbeat.

    Args:
        plan: of the session.
        instances: its ftrace instances, which are written to.
        balance: returns the session's balance as of the last reading.

    Attributes:
        heard_ns: Unix time of the last heartbeat that has arrived, at first of the start; 0 if no
            heartbeats are made.
        is_reached: a heartbeat comes to its rings: they take records of any task on their CPUs.
    """

    def __init__(
        self,
        plan: SessionPlan,
        instances: Sequence[Tracing],
        balance: Callable[[], SessionBalance],
    ) -> None:
        self.instances = instances
        self._balance = balance
        self._role = RingRole.DATA if instances else RingRole.SIDEBAND
        self.heard_ns = 0
        cpus = [ring.cpu for ring in plan.rings if ring.role is self._role]
        self.is_reached = plan.scope.kind in _SCOPES and bool(cpus) and min(cpus) >= 0

    def counts(self) -> Mapping[int, int]:
        """Return by CPU how many records have arrived in its rings so far."""
        counts: Counter[int] = Counter()
        for ring in self._balance().rings:
            if ring.label.role is self._role:
                counts[ring.label.cpu] += (
                    _arrived(ring) if self.instances else ring.counters.records
                )
        return counts


def _arrived(ring: RingBalance) -> int:
    """Return how many records are known to have been written into an ftrace ring."""
    if ring.produced is not None:
        return ring.produced
    return ring.stored + ring.in_flight + (ring.overwritten or 0)


@dataclass(frozen=True, slots=True)
class _Beat:
    """A heartbeat: the CPUs that were visited, and when the last one was."""

    cpus: frozenset[int]
    at_ns: int


class Heartbeat:
    """The heartbeat of all sessions of a daemon. Its thread runs once it is entered.

    Args:
        interval_ns: from one heartbeat to the next; 0: never.
    """

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._due_ns = time.monotonic_ns() + interval_ns
        self._thread = ThreadPoolExecutor(1, _NAME)
        self._beating: Future[_Beat] | None = None
        self._ending = threading.Event()
        self._awaited: list[tuple[Heart, Mapping[int, int]]] = []  # with the counts before

    def __enter__(self) -> Self:
        self._thread.submit(time.time_ns).result()  # its id is known to what is opened
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def poll(self, hearts: Sequence[Heart]) -> None:
        """See where the last heartbeat has arrived, and begin another one if it is due.

        Args:
            hearts: of the sessions that record.
        """
        if not self._interval_ns:
            return
        for heart in hearts:
            heart.heard_ns = heart.heard_ns or time.time_ns()
        if self._beating is not None:
            if not self._beating.done():
                return
            self._look(self._beating.result())
        now_ns = time.monotonic_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + self._interval_ns
            self._awaited = [(heart, heart.counts()) for heart in hearts]
            self._beating = self._thread.submit(_beat, self._awaited, self._ending)

    def beat_every(self, interval_ns: int) -> None:
        """Set another interval, which begins now."""
        if interval_ns != self._interval_ns:
            self._interval_ns = interval_ns
            self._due_ns = time.monotonic_ns() + interval_ns

    async def stop(self) -> None:
        """Stop the heartbeats, and wait for the present one: then sessions may be closed."""
        self._interval_ns = 0
        self._ending.set()
        if self._beating is not None:
            await asyncio.wait([asyncio.wrap_future(self._beating)])

    def _look(self, beat: _Beat) -> None:
        left = []
        for heart, before in self._awaited:
            counts, cpus = heart.counts(), beat.cpus & before.keys()
            if cpus and all(counts.get(cpu, 0) > before[cpu] for cpu in cpus):
                heart.heard_ns = beat.at_ns
            else:
                left.append((heart, before))
        self._awaited = left


def _beat(awaited: Iterable[tuple[Heart, Mapping[int, int]]], ending: threading.Event) -> _Beat:
    """Visit the CPUs of all sessions until `ending` is set; called in the thread."""
    instances: dict[int, list[Tracing]] = {}
    for heart, counts in awaited:
        for cpu in counts:
            instances.setdefault(cpu, []).extend(heart.instances)
    reached = set()
    for cpu in visit(sorted(instances)):
        if ending.is_set():
            break
        with suppress(OSError):
            rename(_NAME)
        for instance in instances[cpu]:
            # It is frozen, or its session has been closed meanwhile: then nothing arrives.
            with suppress(KernelError, LookupError):
                instance.mark(_NAME)
        reached.add(cpu)
    return _Beat(frozenset(reached), time.time_ns())
