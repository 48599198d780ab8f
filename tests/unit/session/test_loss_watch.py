# SPDX-License-Identifier: Apache-2.0
"""Losses that are told while they happen: when they begin, what is said, when they are over."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from collectord.ledger.ledger_json import to_json
from collectord.ledger.present_loss import LossReading
from collectord.model import Reason, Stage
from collectord.session.loss_watch import LossWatch
from tests.support import balances

if TYPE_CHECKING:
    from collectord.model import LossKey

FULL = (Stage.KERNEL_RING, Reason.RING_FULL)
SECOND = 1_000_000_000


class Rig:
    """A session whose losses the test sets, looked at once a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost: dict[LossKey, int] = {FULL: 0, (Stage.KERNEL_RING, Reason.PAUSED): 0}
        self.starved = 0
        self.unit = "records"
        self.reads = 0
        self.reasons: dict[str, str] = {}
        self._now = 0
        monkeypatch.setattr("collectord.session.loss_watch.time.monotonic_ns", lambda: self._now)
        health: Any = SimpleNamespace(note=self.reasons.__setitem__)
        with structlog.testing.capture_logs() as self.events:
            self.watch = LossWatch("busy", self._read, health)

    def _read(self) -> LossReading:
        self.reads += 1
        return LossReading(dict(self.lost), self.starved, 1000, 100_000, self.unit)

    def poll(self, *, new: bool = True, **lost: int) -> None:
        """Lose records at the ring, and look a second after the last look."""
        self.lost[FULL] += lost.get("full", 0)
        self._now += SECOND
        with structlog.testing.capture_logs() as events:
            self.watch.poll(new=new)
        self.events += events

    def told(self) -> list[str]:
        """Return the names of all events so far."""
        return [one["event"] for one in self.events]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Return a session that has lost nothing."""
    return Rig(monkeypatch)


def test_a_loss_is_told_with_place_cause_and_rate(rig: Rig) -> None:
    """From the first look that has more of it than the one before."""
    rig.poll()
    assert not rig.watch.losing
    rig.poll(full=2_500_000)
    (losing,) = rig.watch.losing
    assert (losing.key, losing.per_second, losing.lost) == (FULL, 2_500_000, 2_500_000)
    assert rig.reasons["losing/kernel_ring/ring_full"] == (
        "losing 2,500,000 records/s at kernel_ring/ring_full: "
        "the rings fill before they are drained: they are too small, or drained too late"
    )


def test_the_rate_is_that_of_the_last_interval(rig: Rig) -> None:
    """And what was lost is what was lost since it began."""
    rig.poll(full=500)
    rig.poll(full=300)
    (losing,) = rig.watch.losing
    assert (losing.per_second, losing.lost) == (300, 800)


def test_rings_that_wait_for_chunks_are_the_disks_doing(rig: Rig) -> None:
    """The missing bytes per second are the lost records times the size of the read ones."""
    rig.starved = 1
    rig.poll(full=2_000_000)
    (losing,) = rig.watch.losing
    assert losing.cause == "the disk takes 200.0 MB/s less than is recorded"


def test_a_cause_may_change_while_it_lasts(rig: Rig) -> None:
    """It is that of the last interval with a loss."""
    rig.poll(full=1)
    rig.starved = 7
    rig.poll(full=1)
    rig.poll()
    (losing,) = rig.watch.losing
    assert losing.cause.startswith("the disk takes")
    assert rig.told() == ["losing_began"]


@pytest.mark.parametrize(
    ("key", "cause"),
    [
        ((Stage.KERNEL_RING, Reason.DROPPED), "the kernel refuses the records"),
        ((Stage.PROGRAM, Reason.RECURSION), "its BPF programs cannot submit the records"),
        ((Stage.STAGING, Reason.QUARANTINED), "the contents of its rings are invalid"),
        ((Stage.SINK, Reason.DISK_FULL), "the disk is full"),
        ((Stage.SINK, Reason.DROPPED), "the records cannot be written"),
    ],
)
def test_other_places(rig: Rig, key: LossKey, cause: str) -> None:
    """Each loss of the ledger has a cause in words."""
    rig.lost[key] = 3
    rig.poll()
    (losing,) = rig.watch.losing
    assert (losing.key, losing.cause) == (key, cause)


def test_bytes_of_a_channel_are_no_records(rig: Rig) -> None:
    """The words have the unit of the session's figures."""
    rig.unit = "bytes"
    rig.poll(full=9)
    assert rig.reasons["losing/kernel_ring/ring_full"].startswith("losing 9 bytes/s")


def test_it_is_told_once_and_is_over_after_five_looks_without(rig: Rig) -> None:
    """A ring that fills up every other second is one trouble."""
    rig.poll(full=5)
    for _ in range(3):
        for _ in range(4):
            rig.poll()
            assert rig.reasons["losing/kernel_ring/ring_full"]
        rig.poll(full=2)
    assert rig.told() == ["losing_began"]
    for _ in range(5):
        assert rig.watch.losing
        rig.poll()
    assert not rig.watch.losing
    assert rig.reasons["losing/kernel_ring/ring_full"] == ""
    assert rig.told() == ["losing_began", "losing_ended"]
    began, ended = rig.events
    assert (began["stage"], began["reason"], began["per_second"]) == (*map(str, FULL), 5)
    assert (ended["stage"], ended["reason"], ended["lost"]) == (*map(str, FULL), 11)
    assert ended["seconds"] == 21


def test_it_ends_though_nothing_is_new(rig: Rig) -> None:
    """A session whose load has ended is well again."""
    rig.poll(full=5)
    for _ in range(5):
        rig.poll(new=False)
    assert not rig.watch.losing


def test_a_quiet_session_is_not_read(rig: Rig) -> None:
    """Without new and lost records there is nothing to compare."""
    reads = rig.reads
    rig.poll(new=False)
    assert rig.reads == reads


def test_a_snapshots_pause_is_no_such_loss(rig: Rig) -> None:
    """A pause is over when it is noticed."""
    rig.lost[Stage.KERNEL_RING, Reason.PAUSED] = 14
    rig.poll()
    assert not rig.watch.losing


def test_the_end_of_a_session_ends_it(rig: Rig) -> None:
    """A closed session loses nothing more."""
    rig.poll(full=5)
    with structlog.testing.capture_logs() as events:
        rig.watch.end()
    assert [one["event"] for one in events] == ["losing_ended"]
    assert (rig.watch.losing, rig.reasons["losing/kernel_ring/ring_full"]) == ((), "")


def test_what_the_status_says(rig: Rig) -> None:
    """It names each place with its figures."""
    rig.poll(full=5)
    (losing,) = rig.watch.losing
    session = replace(balances.session("busy"), losing=(losing,))
    assert to_json(session)["losing"] == [
        {
            "stage": "kernel_ring",
            "reason": "ring_full",
            "unit": "records",
            "cause": losing.cause,
            "per_second": 5,
            "lost": 5,
        }
    ]
