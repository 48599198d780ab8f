# SPDX-License-Identifier: Apache-2.0
"""The scheduling of the core's drain threads: as planned, or with a note of what was refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectord.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.kernel.port import Kernel
    from collectord.kernel.values.host import Scheduling
    from collectord.plan.drain_threads import DrainThread, DrainThreads


@dataclass(frozen=True, slots=True)
class RunningThread:
    """The present state of a drain thread.

    Attributes:
        name: as `ps -L` shows it.
        tid: its kernel id.
        drains: CPUs whose rings it drains.
        scheduling: the policy in effect.
    """

    name: str
    tid: int
    drains: tuple[int, ...]
    scheduling: Scheduling


@dataclass(frozen=True, slots=True)
class RunningThreads:
    """All drain threads, and the reasons why they fall short of the plan."""

    threads: tuple[RunningThread, ...] = ()
    lacks: tuple[str, ...] = ()


class Placement:
    """Applies the planned scheduling to the threads, once they run.

    Args:
        kernel: gives it to them.
        plan: of the threads.
        tids: their kernel ids, in the order of the plan.
    """

    def __init__(self, kernel: Kernel, plan: DrainThreads, tids: Sequence[int]) -> None:
        self._kernel = kernel
        self._tids = tids
        self._plan = plan
        self.lacks = tuple(dict.fromkeys(self._give()))

    def read(self) -> RunningThreads:
        """Return what is in effect."""
        found = []
        for number, (tid, thread) in enumerate(self._pairs()):
            scheduling = self._kernel.scheduling(tid)
            if scheduling is not None:
                found.append(RunningThread(f"drain/{number}", tid, thread.drains, scheduling))
        return RunningThreads(tuple(found), self.lacks)

    def _pairs(self) -> Iterator[tuple[int, DrainThread]]:
        return zip(self._tids, self._plan.threads, strict=True)

    def _give(self) -> Iterator[str]:
        if self._plan.shortfall is not None:
            yield self._plan.shortfall.words()
        for tid, thread in self._pairs():
            try:
                self._kernel.prioritise(tid, self._plan.priority)
            except KernelError as error:
                yield str(error)
            try:
                if thread.cpus:
                    self._kernel.confine(tid, thread.cpus)
            except KernelError as error:
                yield str(error)
