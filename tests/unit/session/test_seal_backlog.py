# SPDX-License-Identifier: Apache-2.0
"""Closed segments that wait for their seals: how many may, and from when on it is a trouble."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import structlog

from collectord.session.health import Health
from collectord.session.seal_backlog import WAITING_MAX, SealBacklog

SECOND_NS = 1_000_000_000


class Rig:
    """A backlog, the health that it reports to, and a clock that the test moves."""

    def __init__(self) -> None:
        plan: Any = SimpleNamespace(
            name="busy", degraded=(), sink=SimpleNamespace(directory="/busy")
        )
        reader: Any = None
        self.health = Health(plan, (), reader)
        self.now_ns = SECOND_NS
        self.backlog = SealBacklog("busy", self.health, lambda: self.now_ns)

    def close(self, count: int) -> None:
        """Close so many segments."""
        for _ in range(count):
            self.backlog.add()

    def after(self, seconds: float) -> tuple[str, ...]:
        """Return the reasons for which the session is degraded after so long."""
        self.now_ns += int(seconds * SECOND_NS)
        self.backlog.poll()
        return self.health.reasons


def test_a_few_segments_may_wait() -> None:
    """One more makes too many, however long they wait, and one less makes few again."""
    rig = Rig()
    rig.close(WAITING_MAX)
    assert (rig.backlog.is_full, rig.after(100)) == (False, ())
    rig.close(1)
    assert rig.backlog.is_full
    rig.backlog.remove()
    assert not rig.backlog.is_full


def test_a_burst_is_no_trouble() -> None:
    """Segments that are all sealed within a second degrade nothing."""
    rig = Rig()
    for _ in range(3):
        rig.close(2 * WAITING_MAX)
        assert rig.after(0.9) == ()
        for _ in range(2 * WAITING_MAX):
            rig.backlog.remove()
        assert rig.after(0.9) == ()


def test_a_backlog_that_lasts_is_told_until_it_is_over() -> None:
    """It need not be full all the time; one line of the log tells of it."""
    rig = Rig()
    rig.close(WAITING_MAX + 1)
    rig.backlog.remove()
    with structlog.testing.capture_logs() as logged:
        (reason,) = rig.after(1)
        rig.after(1)
    assert reason == "seals take longer than segments fill: files grow beyond segment_bytes"
    assert [(line["event"], line["waiting"]) for line in logged] == [("seals_behind", WAITING_MAX)]
    for _ in range(WAITING_MAX):
        assert rig.health.reasons
        rig.backlog.remove()
    assert rig.after(100) == ()
