# SPDX-License-Identifier: Apache-2.0
"""The account of rings that outlive their daemon: each loss is counted once, by one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collectord.kernel.values.kept_rings import STATE_BYTES, Prior
from collectord.model import loss_key, loss_name
from collectord.session.lasting_account import LastingAccount
from collectord.sink.manifest import RingEntry
from tests.support import relay_segments
from tests.support.segments import LEDGER, OPENING, closing, fill, make_sink, write_segment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from collectord.model import LossKey

LOST = {
    "kernel_ring/ring_full": 0,
    "kernel_ring/dropped": 0,
    "staging/quarantined": 0,
    "staging/dropped": 0,
    "sink/disk_full": 0,
}


@dataclass
class Rings:
    """Rings as a process finds them."""

    prior: Prior = field(default_factory=Prior)
    resumed: bool = True
    state: str = ""
    lost: dict[str, int] = field(default_factory=dict)
    in_bytes: bool = False
    names: bool = True

    def count_lost(self, losses: Mapping[LossKey, int]) -> None:
        """Keep what is counted."""
        self.lost = {loss_name(key): count for key, count in losses.items() if count}

    def shared_losses(self) -> Mapping[LossKey, int]:
        """Return what is counted."""
        return {loss_key(name): count for name, count in self.lost.items()}

    def note(self, state: str) -> None:
        """Keep the text."""
        self.state = state


@dataclass
class Sealed:
    """The part of a manifest that an account needs."""

    ledger: dict[str, Any]
    stored_before: int
    samples: int
    rings: tuple[RingEntry, ...] = ()


def after(
    before: Rings,
    *,
    taken: int,
    lost: int = 0,
    left: int = 0,
    skipped: int = 0,
    overwritten: int = 0,
) -> Rings:
    """Return the rings as the next process finds them."""
    return Rings(
        Prior(
            before.state,
            taken,
            {"kernel_ring/ring_full": lost, "program/recursion": skipped},
            left,
            overwritten,
        )
    )


def settled(rings: Rings, directory: Path, run: str) -> LastingAccount:
    """Return the account of a process that has sealed what was left."""
    account = LastingAccount(rings, directory, run)
    account.settle()
    return account


def test_new_rings_have_lost_nothing(tmp_path: Path) -> None:
    """The first process counts what it loses by itself."""
    rings = Rings(resumed=False)
    settled(rings, tmp_path, "first")
    assert rings.lost == {}
    assert rings.state


def test_what_a_killed_process_took_and_did_not_store_is_lost(tmp_path: Path) -> None:
    """It is what the notes count and the manifests do not have, less what was told as lost."""
    sink = make_sink(tmp_path)
    first = Rings(resumed=False)
    account = settled(first, tmp_path, sink.so_far.run)
    info = write_segment(sink, samples=250)
    told = {**LOST, "sink/disk_full": 7, "kernel_ring/ring_full": 5}
    account.told(Sealed({"lost": told}, 0, 250))  # type: ignore[arg-type]
    assert info.manifest.samples == 250
    second = after(first, taken=300, lost=9)
    settled(second, tmp_path, "second")
    assert second.lost == {"staging/dropped": 300 - 250 - 7, "kernel_ring/ring_full": 9 - 5}


def test_the_trace_of_areas_has_an_account_of_its_own(tmp_path: Path) -> None:
    """It is in bytes: of all areas of a manifest, and of what was lost behind them."""
    rings = Rings(resumed=False, in_bytes=True)
    account = settled(rings, tmp_path, "first")
    areas = tuple(
        RingEntry(ring=n, role="aux", cpu=n, data_bytes=1, watermark_bytes=0, stored_total=400 + n)
        for n in range(2)
    )
    data = RingEntry(ring=9, role="data", cpu=0, data_bytes=1, watermark_bytes=0, stored_total=77)
    lost = {"kernel_ring/truncated": 20, "sink/disk_full": 5}
    ledger = {"aux": [{"lost_bytes": lost}, {"lost_bytes": {"kernel_ring/truncated": None}}]}
    account.told(Sealed(ledger, 0, 77, (data, *areas)))  # type: ignore[arg-type]
    prior = Prior(rings.state, 1_000, {"kernel_ring/truncated": 26}, 3)
    second = Rings(prior, in_bytes=True)
    settled(second, tmp_path, "second")
    assert second.lost == {
        "kernel_ring/truncated": 26 - 20,
        "kernel_ring/dropped": 3,
        "staging/dropped": 1_000 - 801 - 5,
    }


def test_losses_that_no_manifest_has_are_passed_on(tmp_path: Path) -> None:
    """A process that is killed before its first manifest leaves them to the next, once."""
    first = Rings(resumed=False)
    settled(first, tmp_path, "first")
    second = after(first, taken=10, lost=3)
    settled(second, tmp_path, "second")
    assert second.lost == {"staging/dropped": 10, "kernel_ring/ring_full": 3}
    third = after(second, taken=14, lost=4)
    account = settled(third, tmp_path, "third")
    assert third.lost == {"staging/dropped": 14, "kernel_ring/ring_full": 4}
    told = {**LOST, "staging/dropped": 14, "kernel_ring/ring_full": 4}
    account.told(Sealed({"lost": told}, 0, 0))  # type: ignore[arg-type]
    account.end()
    fourth = after(third, taken=14, lost=4)
    settled(fourth, tmp_path, "fourth")
    assert fourth.lost == {}


def test_each_loss_of_programs_is_passed_on_under_its_name(tmp_path: Path) -> None:
    """Runs that the kernel skipped while no process drained are told by the next one, once."""
    first = Rings(resumed=False)
    account = settled(first, tmp_path, "first")
    account.told(Sealed({"lost": {**LOST, "program/recursion": 4}}, 0, 0))  # type: ignore[arg-type]
    account.end()
    second = after(first, taken=0, skipped=7)
    account = settled(second, tmp_path, "second")
    assert second.lost == {"program/recursion": 7 - 4}
    account.told(Sealed({"lost": {**LOST, "program/recursion": 3 + 2}}, 0, 0))  # type: ignore[arg-type]
    account.end()
    third = after(second, taken=0, skipped=7 + 2)
    settled(third, tmp_path, "third")
    assert third.lost == {}


def test_a_clean_end_has_told_all_but_full_rings(tmp_path: Path) -> None:
    """The next process tells what the rings refused after the last manifest."""
    first = Rings(resumed=False)
    account = settled(first, tmp_path, "first")
    account.told(Sealed({"lost": {**LOST, "sink/disk_full": 9}}, 0, 1))  # type: ignore[arg-type]
    account.end()
    second = after(first, taken=50, lost=2)
    settled(second, tmp_path, "second")
    assert second.lost == {"kernel_ring/ring_full": 2}


def test_replaced_rings_hand_on_what_was_unread(tmp_path: Path) -> None:
    """The new ones count from 0, and their process has the losses of the old ones."""
    first = Rings(resumed=False)
    settled(first, tmp_path, "first").end()
    second = after(first, taken=5, lost=2, left=8)
    second.resumed = False
    account = settled(second, tmp_path, "second")
    assert second.lost == {"kernel_ring/ring_full": 2, "kernel_ring/dropped": 8}
    told = {**LOST, "kernel_ring/ring_full": 2 + 1, "kernel_ring/dropped": 8}
    account.told(Sealed({"lost": told}, 0, 0))  # type: ignore[arg-type]
    account.end()
    third = after(second, taken=0, lost=1)
    settled(third, tmp_path, "third")
    assert third.lost == {}


def test_what_was_overwritten_is_told_once(tmp_path: Path) -> None:
    """By the process that counted it, unless that was killed before its manifest."""
    first = Rings(resumed=False)
    account = settled(first, tmp_path, "first")
    assert account.overwritten == 0
    account.told(Sealed({"lost": LOST, "overwritten": 30}, 0, 5))  # type: ignore[arg-type]
    second = after(first, taken=5, overwritten=50)
    account = settled(second, tmp_path, "second")
    assert account.overwritten == 50 - 30
    third = after(second, taken=5, overwritten=60)  # it has told nothing
    account = settled(third, tmp_path, "third")
    assert account.overwritten == 60 - 30
    account.told(Sealed({"lost": LOST, "overwritten": 30 + 7}, 0, 5))  # type: ignore[arg-type]
    account.told(Sealed({"lost": LOST, "overwritten": None}, 0, 5))  # type: ignore[arg-type]
    fourth = after(third, taken=5, overwritten=67)
    fourth.resumed = False  # the opener has replaced the rings
    account = settled(fourth, tmp_path, "fourth")
    assert account.overwritten == 0
    fifth = after(fourth, taken=0, overwritten=3)
    assert settled(fifth, tmp_path, "fifth").overwritten == 3


def test_a_manifest_that_was_sealed_just_before_a_kill_has_told(tmp_path: Path) -> None:
    """The folder is looked at, and not only what the process has noted."""
    sink = make_sink(tmp_path)
    first = Rings(resumed=False)
    settled(first, tmp_path, sink.so_far.run)
    segment = sink.next_segment(1, OPENING)
    lost = {**LOST, "kernel_ring/ring_full": 5, "sink/disk_full": 7}
    ledger = {**LEDGER, "overwritten": 40, "lost": lost}
    sink.seal(segment, fill(segment, 2), closing(ledger=ledger))
    sink.close()
    second = after(first, taken=2 + 7 + 3, lost=6, overwritten=50)
    assert settled(second, tmp_path, "second").overwritten == 50 - 40
    assert second.lost == {"staging/dropped": 3, "kernel_ring/ring_full": 6 - 5}


def test_what_a_recovered_segment_holds_is_stored(tmp_path: Path) -> None:
    """Its manifest has no losses: those that the killed process knew of are still to be told."""
    sink = make_sink(tmp_path)
    first = after(Rings(resumed=False), taken=0, lost=4)
    settled(first, tmp_path, sink.so_far.run)
    segment = sink.next_segment(1, OPENING)
    sink.seal(segment, fill(segment, 20), closing(ledger={"basis": "none"}))
    sink.close()
    second = after(first, taken=20 + 3, lost=4)
    settled(second, tmp_path, "second")
    assert second.lost == {"staging/dropped": 3, "kernel_ring/ring_full": 4}


def test_a_pause_that_a_kill_leaves_is_known_by_what_was_refused(tmp_path: Path) -> None:
    """Without a refusal nothing was missed; a pause that is over is none."""
    first = Rings(resumed=False)
    account = settled(first, tmp_path, "first")
    account.pausing(1000, 2)
    for refused, found in ((2, 0), (3, 1000)):
        lost = {"kernel_ring/paused": refused}
        second = Rings(Prior(first.state, 0, lost))
        assert settled(second, tmp_path, "second").paused_ns == found
        assert second.lost == lost
    account.going_on()
    third = Rings(Prior(first.state, 0, {"kernel_ring/paused": 3}))
    assert settled(third, tmp_path, "third").paused_ns == 0


def test_a_text_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    """Then nothing is known of the process before, and its losses of full rings are counted."""
    rings = Rings(Prior("{", 5, {"kernel_ring/ring_full": 1}, 0))
    settled(rings, tmp_path, "next")
    assert rings.lost == {"kernel_ring/ring_full": 1}


def killed_run(directory: Path, samples: int) -> str:
    """Seal a segment with so many samples; return its run."""
    sink = make_sink(directory)
    write_segment(sink, samples=samples)
    return sink.so_far.run


def test_a_process_that_drains_before_it_settles_continues_the_account(tmp_path: Path) -> None:
    """If it is killed by then, the next one looks for all that was taken in the runs of both."""
    first = Rings(resumed=False)
    runs = [killed_run(tmp_path, samples) for samples in (250, 30, 4)]
    settled(first, tmp_path, runs[0])
    second = after(first, taken=300, lost=5)
    account = LastingAccount(second, tmp_path, runs[1])
    assert account.drains_first
    third = after(second, taken=360, lost=7)
    LastingAccount(third, tmp_path, runs[2])
    fourth = after(third, taken=370, lost=7)
    account = LastingAccount(fourth, tmp_path, "fourth")
    assert fourth.lost == {}
    account.settle()
    assert fourth.lost == {"staging/dropped": 370 - 250 - 30 - 4, "kernel_ring/ring_full": 7}
    account.told(Sealed({"lost": LOST | fourth.lost}, 0, 0))  # type: ignore[arg-type]
    account.end()
    fifth = after(fourth, taken=370, lost=7)
    settled(fifth, tmp_path, "fifth")
    assert fifth.lost == {}


def test_a_process_after_a_clean_end_has_an_account_before_it_drains(tmp_path: Path) -> None:
    """If it is killed before it settles, what it took is looked for in its run."""
    first = Rings(resumed=False)
    settled(first, tmp_path, "first").end()
    second = after(first, taken=50)
    assert LastingAccount(second, tmp_path, "second").drains_first
    third = after(second, taken=57)
    settled(third, tmp_path, "third")
    assert third.lost == {"staging/dropped": 7}


def test_a_set_of_files_is_counted_as_a_whole(tmp_path: Path) -> None:
    """Each file of a block trace has a run of its own; the run is that of the first."""
    sink = relay_segments.make_sink(tmp_path)
    info = relay_segments.seal(sink, 1, relay_segments.DATA)
    sink.close()
    assert info is not None
    assert info.manifest.samples == 3
    first = Rings(resumed=False)
    account = settled(first, tmp_path, sink.so_far.run)
    second = after(first, taken=10)
    settled(second, tmp_path, "second")
    assert second.lost == {"staging/dropped": 10 - 3}
    account.told(info.manifest)
    for path in tmp_path.iterdir():  # retention may do that
        path.unlink()
    third = after(first, taken=10)
    settled(third, tmp_path, "third")
    assert third.lost == {"staging/dropped": 10 - 3}


def test_losses_of_the_same_name_are_added_up(tmp_path: Path) -> None:
    """A block trace tells of dropped records as replaced rings do."""
    first = Rings(resumed=False)
    settled(first, tmp_path, "first").end()
    rings = Rings(Prior(first.state, 0, {"kernel_ring/dropped": 5}, 2))
    settled(rings, tmp_path, "next")
    assert rings.lost == {"kernel_ring/dropped": 7}


def test_a_process_that_does_not_settle_leaves_the_account_to_the_next(tmp_path: Path) -> None:
    """Neither its end nor its manifests change what the killed one has lost."""
    killed = killed_run(tmp_path, 6)
    first = Rings()
    settled(first, tmp_path, killed)
    second = after(first, taken=10)
    LastingAccount(second, tmp_path, "second").end()
    third = after(second, taken=10)
    settled(third, tmp_path, "third")
    assert third.lost["staging/dropped"] == 10 - 6


def test_new_rings_are_not_drained_first(tmp_path: Path) -> None:
    """Nobody has left anything in them."""
    assert not LastingAccount(Rings(resumed=False), tmp_path, "first").drains_first


def test_the_text_of_many_kills_fits_into_its_page(tmp_path: Path) -> None:
    """After some of them the next process settles before it drains."""
    rings = Rings(resumed=False)
    settled(rings, tmp_path, "0" * 32)
    for number in range(20):
        rings = after(rings, taken=number)
        account = LastingAccount(rings, tmp_path, f"{number:032}")
        assert account.drains_first == (number < 16)
        rings.state = rings.state or rings.prior.state
        assert len(rings.state) < STATE_BYTES / 2
    account.settle()
    assert rings.lost == {"staging/dropped": 19}
