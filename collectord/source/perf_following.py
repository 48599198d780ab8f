# SPDX-License-Identifier: Apache-2.0
"""Processes that come and go in a perf session, whose events write into rings that stay.

Facts of the kernel (kernel/events/core.c) that shape this module:

- Events of any task may write into a ring, if their CPU and clock are those of its owner. So the
  number of rings does not grow with the processes; each thread takes an event of every kind on
  every CPU.
- A new event has a new id, which files that were begun before do not name. So its records get
  the id of the stand-in that was opened with the ring.
- A task in its exit (PF_EXITING) takes no event any more (ESRCH), and passes all its tracepoints
  of the exit afterwards. So a task that took one more event after its others were enabled has its
  end counted.
- poll(2) reports HUP for an event whose task has exited, and all children that inherited it. It
  takes the ring's POLLIN away otherwise; so a ring of names and mappings is asked, which nobody
  waits for.
"""

from __future__ import annotations

import errno
import select
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_attr import DUMMY
from collectord.errors import NoSuchTarget
from collectord.kernel.values.limits import Purpose
from collectord.model import RingLabel, RingRole
from collectord.source.event_counts import EventCount, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.kernel.port import Kernel
    from collectord.source.perf_opening import Opening
    from collectord.source.perf_ring import PerfRing
    from collectord.source.ring import CounterFd, RingHandle

_SCANS_MAX: Final = 8


@dataclass(slots=True)
class _Process:
    """A process whose events are open; `ids` outlive them."""

    pid: int
    events: ExitStack
    counters: dict[RingLabel, list[CounterFd]] = field(default_factory=lambda: defaultdict(list))
    ids: dict[RingLabel, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    threads: set[int] = field(default_factory=set)


class PerfFollowing:
    """The followed processes, and the counts of the rings. See `base.Following`, `EventCounts`.

    Args:
        kernel: opens the events.
        opening: what has opened the rings, with a stand-in for each event.
        rings: these rings.
        stack: closes all that is opened.
    """

    def __init__(
        self, kernel: Kernel, opening: Opening, rings: Sequence[PerfRing], stack: ExitStack
    ) -> None:
        self._kernel = kernel
        self._opening = opening
        self._stand_ins = {
            ring.label: {counter.event_index: counter for counter in ring.counters}
            for ring in rings
        }
        self._watched = next(r.label for r in rings if r.label.role is RingRole.SIDEBAND)
        self._numbers = count(1)
        self._processes: dict[int, _Process] = {}
        self._fading: dict[int, _Process] = {}
        self._closed: dict[RingLabel, dict[int, EventCount]] = {
            label: {
                index: EventCount(index, one.event_id, 0, 0) for index, one in stand_ins.items()
            }
            for label, stand_ins in self._stand_ins.items()
        }
        stack.callback(self._close)

    def _close(self) -> None:
        while self._processes:
            self._processes.popitem()[1].events.close()

    def take(self, pid: int) -> int:
        """See `base.Following`."""
        with ExitStack() as own:
            process = _Process(pid, own)
            for _ in range(_SCANS_MAX):
                new = [t for t in self._kernel.threads_of(pid) if t not in process.threads]
                if not sum([self._add(process, tid) for tid in new]):
                    break
            if not any(process.counters.values()):
                raise NoSuchTarget(f"pid {pid} has no running thread", errno=errno.ESRCH)
            process.events = own.pop_all()
        number = next(self._numbers)
        self._processes[number] = process
        return number

    def _add(self, process: _Process, tid: int) -> bool:
        """Open the events of a thread; return False if it has exited."""
        process.threads.add(tid)
        with ExitStack() as own:
            try:
                added = self._opening.add(tid, own)
            except NoSuchTarget as gone:
                if gone.errno != errno.ESRCH:
                    raise
                return False
            process.events.push(own.pop_all())
        for label, counters in added.items():
            for counter in counters:
                known = self._stand_ins[label][counter.event_index].event_id
                process.ids[label][counter.event_id] = known
                own_id = counter.event_id
                process.counters[label].append(replace(counter, event_id=known, kernel_id=own_id))
        return True

    def ids(self, ring: RingHandle) -> Mapping[int, int]:
        """See `base.Following`."""
        known = {one.event_id: one.event_id for one in self._stand_ins[ring.label].values()}
        for process in (*self._processes.values(), *self._fading.values()):
            known |= process.ids[ring.label]
        return known

    def start(self, number: int) -> bool:
        """See `base.Following`."""
        process = self._processes[number]
        for role in (RingRole.SIDEBAND, RingRole.DATA):
            for label, counters in process.counters.items():
                if label.role is role:
                    # Members of a group count from the moment its leader is enabled.
                    for counter in reversed(counters):
                        self._kernel.enable(counter.fd)
        try:
            fd = self._kernel.perf_event_open(
                DUMMY, pid=process.pid, cpu=-1, group_fd=-1, flags=0, purpose=Purpose("a probe")
            )
        except NoSuchTarget:
            return False
        self._kernel.close(fd)
        return True

    def is_over(self, number: int) -> bool:
        """See `base.Following`."""
        poller = select.poll()
        watched = self._processes[number].counters[self._watched]
        for counter in watched:
            poller.register(counter.fd, 0)
        return len(poller.poll(0)) == len(watched)

    def release(self, number: int) -> None:
        """See `base.Following`."""
        process = self._processes[number]
        for label, counters in process.counters.items():
            sums = self._closed[label]
            for one in [read(self._kernel, counter) for counter in counters]:
                sums[one.event_index] = _sum(sums[one.event_index], one)
        del self._processes[number]
        process.counters.clear()
        self._fading[number] = process
        process.events.close()

    def forget(self, number: int) -> None:
        """See `base.Following`."""
        del self._fading[number]

    def of(self, ring: RingHandle) -> Sequence[CounterFd]:
        """See `EventCounts`: stand-ins stay off."""
        return [
            counter
            for process in self._processes.values()
            for counter in process.counters[ring.label]
        ]

    def read(self, ring: RingHandle) -> Sequence[EventCount]:
        """See `EventCounts`."""
        sums = dict(self._closed[ring.label])
        for counter in self.of(ring):
            one = read(self._kernel, counter)
            sums[one.event_index] = _sum(sums[one.event_index], one)
        return list(sums.values())


def _sum(one: EventCount, other: EventCount) -> EventCount:
    known = one.lost is not None and other.lost is not None
    lost = (one.lost or 0) + (other.lost or 0) if known else None
    return one._replace(value=one.value + other.value, lost=lost)
