# SPDX-License-Identifier: Apache-2.0
"""Faults of rings: they degrade a session for a time, a quarantine for good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import structlog

from collectord.session.health import Health
from collectord.session.ring_troubles import RingTroubles

SECOND_NS = 1_000_000_000
RING = 3
LABEL = "exec/perf/data/cpu1"


class Rig:
    """The troubles of a session's rings, the health that has them, and a clock."""

    def __init__(self) -> None:
        plan: Any = SimpleNamespace(
            name="exec", degraded=(), sink=SimpleNamespace(directory="/exec")
        )
        reader: Any = None
        self.health = Health(plan, (), reader)
        self.now_ns = SECOND_NS
        self.troubles = RingTroubles("exec", self.health, lambda: self.now_ns)

    def fault(self, *, quarantined: bool = False) -> None:
        """Report a fault of the ring."""
        self.troubles.fault(RING, LABEL, "size 0", 4096, quarantined=quarantined)

    def after(self, seconds: int) -> tuple[str, ...]:
        """Return the reasons for which the session is degraded after so long."""
        self.now_ns += seconds * SECOND_NS
        self.troubles.poll()
        return self.health.reasons


def test_a_fault_passes() -> None:
    """The session is well once the ring has been read for ten seconds without another one."""
    rig = Rig()
    with structlog.testing.capture_logs() as logged:
        rig.fault()
        assert rig.after(9) == (f"ring {LABEL} had invalid contents: size 0",)
        rig.fault()
        assert rig.after(9)
        assert rig.after(1) == ()
        assert rig.health.is_well
        rig.after(100)
    assert [line["event"] for line in logged] == ["ring_faulty", "ring_faulty", "ring_reads_on"]


def test_a_quarantine_stays() -> None:
    """The ring is read no more: the session stays degraded until it is closed."""
    rig = Rig()
    rig.fault()
    rig.fault(quarantined=True)
    assert rig.after(100) == (f"ring {LABEL} quarantined: size 0",)
    rig.troubles.forget(RING)
    assert rig.after(0) == ()


def test_an_end_stays() -> None:
    """A ring whose task is gone stays so, whatever faults it had before."""
    rig = Rig()
    rig.fault()
    rig.troubles.hang_up(RING, LABEL, "its task has ended")
    assert rig.after(100) == (f"ring {LABEL}: its task has ended",)
