# SPDX-License-Identifier: Apache-2.0
"""Times in which a stream recorded nothing, or what it recorded was overwritten."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from collectord.reader.gaps import gaps_of


def segment(number: int, since: int, until: int, *, first: int = 0, run: str = "one") -> Any:  # noqa: ANN401 - a file
    """Return a segment of a run; with a first record it overwrote what came before it."""
    return SimpleNamespace(
        path=Path(f"/s/a/{number}"),
        path_text=f"/s/a/{number}",
        manifest=SimpleNamespace(run=run),
        clock=((since, since), (until, until)),
        overwrites=bool(first),
        first_utc_ns=first,
    )


def gaps(*files: Any) -> list[tuple[int, int]]:  # noqa: ANN401 - files
    """Return the gaps of one table of them."""
    table: Any = SimpleNamespace(files=files)
    return gaps_of([table])


def test_segments_of_a_run_follow_each_other() -> None:
    """Between two runs is a gap, in whichever order the files are."""
    first, second = segment(1, 0, 100), segment(2, 100, 200)
    assert gaps(second, first) == []
    assert gaps(second, first, segment(3, 300, 400, run="two")) == [(200, 300)]


def test_what_a_flight_recorder_has_overwritten_is_a_gap() -> None:
    """It is between the end of the snapshot before and the first record, within both."""
    first, second = segment(1, 0, 100), segment(2, 100, 200, first=180)
    ((since, until),) = gaps(first, second)
    assert (since, 100 < until < 180) == (100, True)
    # A later snapshot that overwrote nothing goes on, and fills no hole.
    assert gaps(first, second, segment(3, 200, 300)) == [(since, until)]
