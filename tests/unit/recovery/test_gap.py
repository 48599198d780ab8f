# SPDX-License-Identifier: Apache-2.0
"""The gap between two runs of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from collectord.model import ClockReading
from collectord.recovery.gap import extend_covered, gap_since
from collectord.sink import covered_note
from collectord.sink.covered_note import Covered

if TYPE_CHECKING:
    from pathlib import Path

SECOND: Final = 1_000_000_000
DAY: Final = 86_400 * SECOND


def at(monotonic_s: int, realtime_s: int) -> ClockReading:
    """Return a reading of the clocks."""
    return ClockReading(
        monotonic_ns=monotonic_s * SECOND,
        realtime_ns=DAY + realtime_s * SECOND,
        perf_ns=0,
        bracket_ns=1,
    )


def note(boot_id: str = "this", *, stopped: bool = False) -> Covered:
    """Return a note of the second 100 of a boot."""
    until = at(100, 1000)
    return Covered(
        boot_id=boot_id, process="earlier", until=until, stopped=stopped, gaps_ns={"kill": 7}
    )


@pytest.mark.parametrize(
    ("before", "now", "seconds", "cause"),
    [
        (note(stopped=True), at(103, 1003), 3, "stop"),
        (note(), at(103, 1003), 3, "kill"),
        (note(), at(103, 5000), 3, "kill"),  # the wall clock was set
        (note(), at(100, 1000), 0, "kill"),
        (note("earlier"), at(5, 1060), 60, "boot"),
        (note("earlier", stopped=True), at(5, 1060), 60, "boot"),
        (note("earlier"), at(5, 400), 0, "boot"),  # the wall clock was set back
    ],
)
def test_length_and_cause(before: Covered, now: ClockReading, seconds: int, cause: str) -> None:
    """Within a boot the monotonic clock decides, over a boot the wall clock; it ends now."""
    gap = gap_since(before, "this", now)
    assert gap.until_ns - gap.from_ns == seconds * SECOND
    assert (gap.until_ns, gap.cause) == (now.realtime_ns, cause)


def test_rings_that_outlive_their_process(tmp_path: Path) -> None:
    """Their gap begins when they are salvaged; totals stay, and a note of another boot too."""
    extend_covered(tmp_path, "tracefs", "this", at(150, 1050))
    assert covered_note.read(tmp_path, "tracefs") is None
    covered_note.write(tmp_path, "tracefs", note())
    extend_covered(tmp_path, "tracefs", "this", at(150, 1050))
    found = covered_note.read(tmp_path, "tracefs")
    assert found is not None
    assert (found.until, found.stopped, found.gaps_ns) == (at(150, 1050), False, {"kill": 7})
    extend_covered(tmp_path, "tracefs", "later", at(5, 2000))
    assert covered_note.read(tmp_path, "tracefs") == found
