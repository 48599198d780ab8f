# SPDX-License-Identifier: Apache-2.0
"""A session's notes of the time that its rings are open, over several starts."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from collectord.model import ClockReading
from collectord.session.coverage_file import CoverageFile
from collectord.sink import covered_note

if TYPE_CHECKING:
    from pathlib import Path

SECOND: Final = 1_000_000_000


class Clock:
    """Clocks that the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000

    def __call__(self) -> ClockReading:
        """Read them."""
        now_ns = self.seconds * SECOND
        return ClockReading(monotonic_ns=now_ns, realtime_ns=now_ns, perf_ns=0, bracket_ns=1)


def started(folder: Path, clock: Clock, boot_id: str = "this", process: str = "") -> CoverageFile:
    """Return the file of a session whose events have been enabled, by default of a new process."""
    made = CoverageFile(folder, "perf", boot_id, clock, process or uuid.uuid4().hex)
    made.find_gap()
    made.begin()
    return made


def test_gaps_add_up_over_starts(tmp_path: Path) -> None:
    """The first start knows of none; then a kill, a stop and a boot each have their total."""
    clock = Clock()
    first = started(tmp_path, clock)
    assert first.gap is None
    assert first.gaps_ns == {"stop": 0, "kill": 0, "boot": 0, "reload": 0, "shed": 0, "request": 0}
    first.go_on()

    clock.seconds += 5  # killed
    second = started(tmp_path, clock)
    assert second.gap is not None
    assert second.gap.cause == "kill"
    assert second.gaps_ns == {
        "stop": 0,
        "kill": 5 * SECOND,
        "boot": 0,
        "reload": 0,
        "shed": 0,
        "request": 0,
    }
    clock.seconds += 60
    second.stop()
    clock.seconds += 1  # it flushes
    second.end()

    clock.seconds += 2
    third = started(tmp_path, clock)
    assert third.gaps_ns == {
        "stop": 3 * SECOND,
        "kill": 5 * SECOND,
        "boot": 0,
        "reload": 0,
        "shed": 0,
        "request": 0,
    }
    third.go_on()
    clock.seconds += 7
    fourth = started(tmp_path, clock, "later")
    assert fourth.gaps_ns == {
        "stop": 3 * SECOND,
        "kill": 5 * SECOND,
        "boot": 7 * SECOND,
        "reload": 0,
        "shed": 0,
        "request": 0,
    }


def test_a_session_that_never_began_notes_nothing(tmp_path: Path) -> None:
    """Its gap is part of that of the next start."""
    clock = Clock()
    started(tmp_path, clock).go_on()
    before = covered_note.read(tmp_path, "perf")
    clock.seconds += 5
    failed = CoverageFile(tmp_path, "perf", "this", clock)
    failed.find_gap()
    assert not failed.take_turn()
    failed.stop()
    failed.end()
    assert covered_note.read(tmp_path, "perf") == before
    clock.seconds += 5
    assert started(tmp_path, clock).gaps_ns["kill"] == 10 * SECOND


def test_one_note_at_a_time(tmp_path: Path) -> None:
    """A note that a disk holds up is not asked for again, and none is made after the stop."""
    running = started(tmp_path, Clock())
    assert running.take_turn()
    assert not running.take_turn()
    running.go_on()
    assert not running.take_turn()  # the next is due later
    other = started(tmp_path, Clock())
    other.stop()
    assert not other.take_turn()


def test_sessions_of_one_process_have_no_gap_between_them(tmp_path: Path) -> None:
    """One that takes the place of another keeps its totals; the next process counts from it."""
    clock = Clock()
    started(tmp_path, clock).go_on()
    clock.seconds += 5
    old = started(tmp_path, clock, process="same")
    old.go_on()
    clock.seconds += 5
    new = started(tmp_path, clock, process="same")
    assert (new.gap, new.gaps_ns) == (None, old.gaps_ns)
    old.stop()
    old.end()
    clock.seconds += 5
    new.go_on()
    clock.seconds += 1
    assert started(tmp_path, clock).gaps_ns["kill"] == 6 * SECOND


def test_a_reload_leaves_a_gap_only_if_it_had_to_stop_first(tmp_path: Path) -> None:
    """One that runs until the next has begun hands the note over, and does not note its end."""
    clock = Clock()
    first = started(tmp_path, clock, process="one")
    first.go_on()
    clock.seconds += 3
    second = started(tmp_path, clock, process="one")
    first.hand_over()
    first.stop()
    first.end()
    second.go_on()
    assert second.gap is None
    second.stop()
    second.end()
    clock.seconds += 2
    third = started(tmp_path, clock, process="one")
    assert third.gap is not None
    assert third.gap.cause == "reload"
    assert third.gaps_ns["reload"] == 2 * SECOND
