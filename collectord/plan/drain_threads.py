# SPDX-License-Identifier: Apache-2.0
"""Drain threads: the scheduling of each, its CPUs, and the CPUs whose rings it drains."""

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
# of SCHED_FIFO is above all of them. A nice value is not: it counts only among the threads of the
# same cgroup and session, and takes CPU time from these, the recorded command included.
AUTO_FIFO: Final = 1
# A drain thread empties a million events a second per CPU for a few CPUs, and hundreds of CPUs
# at usual rates; more threads mean more open chunks.
_CPUS_PER_THREAD: Final = 16
_NORMAL: Final = DrainPriority(NORMAL)


@dataclass(frozen=True, slots=True)
class DrainThread:
    """One drain thread.

    Attributes:
        drains: CPUs whose rings it drains; any thread drains those of a CPU that comes later.
        cpus: CPUs that it may run on; none for those of the process.
    """

    drains: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A priority that was asked for by name and is not available.

    Attributes:
        asked: the requested priority.
        given: the priority that the threads have instead.
        need: the least privilege that would permit it.
    """

    asked: DrainPriority
    given: DrainPriority
    need: str

    def words(self) -> str:
        """Return the shortfall in one line."""
        return f"drain_priority {self.asked} is not permitted, {self.given} instead: {self.need}"


@dataclass(frozen=True, slots=True)
class DrainThreads:
    """The drain threads of a daemon.

    Attributes:
        threads: one for each shard of rings.
        priority: priority of all threads, never AUTO.
        shortfall: the priority that they do not get.
    """

    threads: tuple[DrainThread, ...] = (DrainThread(),)
    priority: DrainPriority = field(default_factory=lambda: _NORMAL)
    shortfall: Shortfall | None = None

    def shard_of(self, cpu: int) -> int | None:
        """Return the thread that drains the rings of a CPU, None for any."""
        for index, thread in enumerate(self.threads):
            if cpu in thread.drains:
                return index
        return None

    def describe(self) -> str:
        """Return the threads as `check` prints them, after the sizes."""
        words = [f"drain threads: {len(self.threads)}"]
        if self.priority.policy != NORMAL:
            words.append(f"at {self.priority}")
        cpus = {cpu for thread in self.threads for cpu in thread.cpus}
        if cpus:
            words.append(f"on CPUs {cpu_list.render(tuple(cpus))}")
        return " ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """Return the threads for `check --json`."""
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
        PlanError: they are to run on an absent CPU.
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
    """Deal out the CPUs, a node's to threads on that node; `wanted` restricts where they run."""
    placed = []
    for number in range(count):
        # Nodes are dealt to threads in turn, or threads to nodes: then several share a node.
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
    """Return the priority that the threads get, and the shortfall from the requested one."""
    if asked.policy == AUTO:
        # A nice value or policy that the process was started with was chosen by its user.
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
