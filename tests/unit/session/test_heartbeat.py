# SPDX-License-Identifier: Apache-2.0
"""The heartbeat: where it is made, and when it has arrived."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.errors import KernelError
from collectord.ledger.record_ledger import NO_COUNTERS
from collectord.model import RingRole, ScopeKind
from collectord.session.heartbeat import Heart, Heartbeat
from tests.support import balances

if TYPE_CHECKING:
    from collections.abc import Iterable

CPUS: Final = tuple(sorted(os.sched_getaffinity(0)))
# No machine has it.
ABSENT: Final = 1 << 20
HOUR_NS: Final = 3600 * 1_000_000_000


class Rings:
    """A session's rings, one on each CPU, and what has arrived there.

    Args:
        cpus: of the rings.
        role: of the rings.
    """

    def __init__(self, cpus: Iterable[int] = CPUS, role: RingRole = RingRole.SIDEBAND) -> None:
        self.role = role
        self.records = dict.fromkeys(cpus, 0)

    def balance(self) -> Any:  # noqa: ANN401 - as much of one as is read
        """Return the balance of the rings."""
        rings = [
            replace(
                balances.ring("s", cpu, role=self.role),
                counters=NO_COUNTERS._replace(records=count),
                produced=count if self.role is RingRole.DATA else None,
            )
            for cpu, count in self.records.items()
        ]
        return SimpleNamespace(rings=rings)

    def heart(self, *instances: Any, kind: ScopeKind = ScopeKind.SYSTEM) -> Heart:  # noqa: ANN401
        """Return the heart of a session with these rings."""
        plan: Any = SimpleNamespace(
            rings=[SimpleNamespace(role=self.role, cpu=cpu) for cpu in self.records],
            scope=SimpleNamespace(kind=kind),
        )
        return Heart(plan, instances, self.balance)

    def take(self, cpus: Iterable[int]) -> None:
        """Let a record arrive in the rings of these CPUs."""
        for cpu in cpus:
            self.records[cpu] += 1


class Instance:
    """An ftrace instance that notes where the writer of each marker ran."""

    def __init__(self) -> None:
        self.marks: list[set[int]] = []

    def mark(self, _text: str) -> int:
        """Note it."""
        self.marks.append(os.sched_getaffinity(0))
        return 1


def made(heartbeat: Heartbeat) -> int:
    """Wait for the heartbeat that has begun; return when it was made."""
    assert heartbeat._beating is not None
    return heartbeat._beating.result().at_ns


def test_it_has_arrived_when_every_ring_has_more() -> None:
    """A ring without a new record keeps it from that, until one comes."""
    rings = Rings()
    heart = rings.heart()
    with Heartbeat(HOUR_NS) as heartbeat:
        heartbeat.poll([heart])
        assert heartbeat._beating is None  # none is due
        began_ns = heart.heard_ns
        assert began_ns > 0
        heartbeat._due_ns = 0
        heartbeat.poll([heart])
        at_ns = made(heartbeat)
        rings.take(CPUS[:-1])
        heartbeat.poll([heart])
        assert heart.heard_ns == began_ns
        rings.take(CPUS[-1:])
        heartbeat.poll([heart])
        assert heart.heard_ns == at_ns > began_ns


def test_what_arrived_before_does_not_count() -> None:
    """Each heartbeat is compared with the counts at its own beginning."""
    rings = Rings()
    rings.take(CPUS)
    heart = rings.heart()
    with Heartbeat(HOUR_NS) as heartbeat:
        heartbeat._due_ns = 0
        heartbeat.poll([heart])
        began_ns = heart.heard_ns
        made(heartbeat)
        heartbeat.poll([heart])
        assert heart.heard_ns == began_ns


def test_a_marker_is_written_on_each_cpu() -> None:
    """An instance's marker goes into the ring of the CPU where it is written."""
    instance, rings = Instance(), Rings(role=RingRole.DATA)
    heart = rings.heart(instance)
    with Heartbeat(HOUR_NS) as heartbeat:
        heartbeat._due_ns = 0
        heartbeat.poll([heart])
        at_ns = made(heartbeat)
        assert instance.marks == [{cpu} for cpu in CPUS]
        rings.take(CPUS)
        heartbeat.poll([heart])
        assert heart.heard_ns == at_ns


@pytest.mark.parametrize("error", [KernelError("recording is off"), KeyError(7)])
def test_an_instance_that_takes_no_marker_keeps_nobody_from_hearing(error: Exception) -> None:
    """It is frozen, or was removed while the thread was on its way."""

    class Refusing(Instance):
        """An instance that refuses each marker."""

        def mark(self, _text: str) -> int:
            """Fail."""
            raise error

    refused, rings = Rings(role=RingRole.DATA), Rings()
    hearts = [refused.heart(Refusing()), rings.heart()]
    with Heartbeat(HOUR_NS) as heartbeat:
        heartbeat._due_ns = 0
        heartbeat.poll(hearts)
        began_ns = hearts[0].heard_ns
        at_ns = made(heartbeat)
        rings.take(CPUS)
        heartbeat.poll(hearts)
        assert [heart.heard_ns for heart in hearts] == [began_ns, at_ns]


def test_a_cpu_that_cannot_be_visited_is_left_out() -> None:
    """It is offline, or not the process's: its ring is not waited for."""
    rings = Rings([*CPUS, ABSENT])
    heart = rings.heart()
    with Heartbeat(HOUR_NS) as heartbeat:
        heartbeat._due_ns = 0
        heartbeat.poll([heart])
        at_ns = made(heartbeat)
        rings.take(CPUS)
        heartbeat.poll([heart])
        assert heart.heard_ns == at_ns


def test_if_no_cpu_can_be_visited_nothing_arrives() -> None:
    """An empty comparison proves nothing."""
    heart = Rings([ABSENT]).heart()
    with Heartbeat(HOUR_NS) as heartbeat:
        heartbeat._due_ns = 0
        heartbeat.poll([heart])
        began_ns = heart.heard_ns
        made(heartbeat)
        heartbeat.poll([heart])
        assert heart.heard_ns == began_ns


def test_after_its_end_none_is_made() -> None:
    """Sessions may be closed once it rests."""
    instance = Instance()
    heart = Rings(role=RingRole.DATA).heart(instance)

    async def scenario() -> None:
        with Heartbeat(HOUR_NS) as heartbeat:
            await heartbeat.stop()
            heartbeat._due_ns = 0
            heartbeat.poll([heart])
            assert heartbeat._beating is None

    asyncio.run(scenario())
    assert instance.marks == []


def test_without_an_interval_none_is_made() -> None:
    """Nor does the session claim to have heard of one."""
    heart = Rings().heart()
    with Heartbeat(0) as heartbeat:
        heartbeat.poll([heart])
        assert (heartbeat._beating, heart.heard_ns) == (None, 0)


@pytest.mark.parametrize(
    ("kind", "cpus", "reached"),
    [
        (ScopeKind.SYSTEM, CPUS, True),
        (ScopeKind.CPUS, CPUS, True),
        (ScopeKind.PROCESS, CPUS, False),
        (ScopeKind.CGROUP, CPUS, False),
        (ScopeKind.SYSTEM, (), False),
        (ScopeKind.SYSTEM, (-1,), False),
    ],
)
def test_rings_that_a_heartbeat_reaches(
    kind: ScopeKind, cpus: tuple[int, ...], *, reached: bool
) -> None:
    """Those of whole CPUs: one of a single task, or of a cgroup, gets no record of this thread."""
    assert Rings(cpus).heart(kind=kind).is_reached == reached
