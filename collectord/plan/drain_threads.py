# SPDX-License-Identifier: Apache-2.0
"""Drain threads: how each is scheduled, which CPUs it runs on, and whose rings it drains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from collectord.config.scheduling import AUTO, FIFO, NICE, NORMAL, SHARDS_MAX, DrainPriority
from collectord.errors import PlanError
from collectord.text import cpu_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.config.schema import DaemonConfig
    from collectord.facts.kernel_facts import KernelFacts

# A saturated CPU fills a ring of 512KiB in 2 to 5 ms, and a thread of the usual policy may wait
# longer than that for the time slice of another one, of its own process too. The lowest priority
# of SCHED_FIFO is above all of them. A nice value is not: it counts among the threads of the same
# cgroup and session alone, and takes CPU time from these: from the command that is recorded, too.
AUTO_FIFO: Final = 1
# A drain thread empties a million events a second per CPU for a few CPUs, and hundreds of CPUs
# at usual rates; more threads mean more open chunks.
_CPUS_PER_THREAD: Final = 16
_NORMAL: Final = DrainPriority(NORMAL)


@dataclass(frozen=True, slots=True)
class DrainThread:
    """One thread.

    Attributes:
        drains: CPUs whose rings it drains; those of a CPU that comes later are anybody's.
        cpus: CPUs that it may run on; none: those of the process.
    """

    drains: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A priority that was asked for by name and is not to be had.

    Attributes:
        asked: that priority.
        given: what the threads have instead.
        need: the least that would give it.
    """

    asked: DrainPriority
    given: DrainPriority
    need: str

    def words(self) -> str:
        """Say it in one line."""
        return f"drain_priority {self.asked} is not permitted, {self.given} instead: {self.need}"


@dataclass(frozen=True, slots=True)
class DrainThreads:
    """All of them.

    Attributes:
        threads: one for each shard of rings.
        priority: of all, never AUTO.
        shortfall: what they do not get.
    """

    threads: tuple[DrainThread, ...] = (DrainThread(),)
    priority: DrainPriority = field(default_factory=lambda: _NORMAL)
    shortfall: Shortfall | None = None

    def shard_of(self, cpu: int) -> int | None:
        """The thread that drains the rings of a CPU, None for any."""
        for index, thread in enumerate(self.threads):
            if cpu in thread.drains:
                return index
        return None

    def describe(self) -> str:
        """Say it as `check` does, behind the sizes."""
        words = [f"drain threads: {len(self.threads)}"]
        if self.priority.policy != NORMAL:
            words.append(f"at {self.priority}")
        cpus = {cpu for thread in self.threads for cpu in thread.cpus}
        if cpus:
            words.append(f"on CPUs {cpu_list.render(tuple(cpus))}")
        return " ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """The threads for `check --json`."""
        return {
            "priority": str(self.priority),
            "lacks": self.shortfall.words() if self.shortfall is not None else "",
            "threads": [
                {"drains": cpu_list.render(one.drains), "cpus": cpu_list.render(one.cpus)}
                for one in self.threads
            ],
        }


def drain_threads(daemon: DaemonConfig, facts: KernelFacts) -> DrainThreads:
    """Plan the threads that a configuration asks for, on a host.

    Raises:
        PlanError: they are to run on a CPU that is not there.
    """
    absent = sorted(set(daemon.drain_cpus.cpus) - set(facts.cpus_online))
    if absent:
        raise PlanError(
            f"drain_cpus: CPU {cpu_list.render(absent)} is not online",
            what="drain_cpus",
            hint=f"online are {cpu_list.render(facts.cpus_online)}",
        )
    priority, shortfall = _priority(daemon.drain_priority, facts)
    nodes = tuple(node for node in facts.numa_nodes if node) or (facts.cpus_online,)
    usual = max(len(nodes), -(-len(facts.cpus_online) // _CPUS_PER_THREAD))
    threads = _placed(daemon.shards or min(usual, SHARDS_MAX), nodes, daemon.drain_cpus.cpus)
    return DrainThreads(threads, priority, shortfall)


def _placed(
    count: int, nodes: Sequence[tuple[int, ...]], wanted: tuple[int, ...]
) -> tuple[DrainThread, ...]:
    """Deal the CPUs, those of a node to threads on it; `wanted` has the last word on where."""
    placed = []
    for number in range(count):
        # Nodes go round the threads, or threads round the nodes: of these several share a node.
        own = nodes[number % len(nodes) :: count]
        sharers = range(number % len(nodes), count, len(nodes))
        here = sorted(cpu for node in own for cpu in node)
        near = tuple(here) if len(nodes) > 1 else ()
        within = tuple(cpu for cpu in wanted if cpu in here) if near else ()
        placed.append(
            DrainThread(
                tuple(here[sharers.index(number) :: len(sharers)]), within or wanted or near
            )
        )
    return tuple(placed)


def _priority(asked: DrainPriority, facts: KernelFacts) -> tuple[DrainPriority, Shortfall | None]:
    """What the threads get of what is asked for."""
    if asked.policy == AUTO:
        # Who started the process with a nice value or policy of its own has chosen.
        chosen = facts.nice != 0 or facts.realtime
        free = facts.realtime_max >= AUTO_FIFO and not chosen
        return (DrainPriority(FIFO, AUTO_FIFO) if free else _NORMAL), None
    if asked.policy == NORMAL:
        return asked, None
    if asked.policy == FIFO:
        if asked.level <= facts.realtime_max:
            return asked, None
        given = DrainPriority(FIFO, facts.realtime_max) if facts.realtime_max else _NORMAL
        need = f"CAP_SYS_NICE, or LimitRTPRIO={asked.level} of the unit (ulimit -r)"
        return given, Shortfall(asked, given, f"{need}, and no RestrictRealtime=")
    if asked.level >= min(facts.nice_min, facts.nice):
        return asked, None
    given = DrainPriority(NICE, facts.nice_min) if facts.nice_min < facts.nice else _NORMAL
    need = f"CAP_SYS_NICE, or LimitNICE={asked.level} of the unit (ulimit -e {20 - asked.level})"
    return given, Shortfall(asked, given, need)
