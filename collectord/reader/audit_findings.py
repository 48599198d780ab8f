# SPDX-License-Identifier: Apache-2.0
"""Read stage: what makes a window incomplete, and arithmetic with times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class What(StrEnum):
    """The subject of a finding.

    DOWN: nothing recorded, between two runs; UNTOLD: nothing tells of the time; RUNNING: the
    balance of the segment that is written comes with its seal; KILLED: what a killed run recorded
    last, which nobody has counted; PAUSED: the session was paused; SUPPRESSED: a foreign BPF
    program may have hidden events; UNCOVERED: a CPU was without what it should have had; EVICTED:
    deleted by retention; MISSING: removed by somebody; CHANGED: a manifest is not the one that was
    sealed; DAMAGED: a segment is not as it was sealed; LOST, OVERWRITTEN, UNACCOUNTED: events that
    are in no segment; UNCOUNTED: not every event was counted; UNCHAINED: nothing says which
    segments there were.
    """

    DOWN = "down"
    UNTOLD = "untold"
    RUNNING = "running"
    KILLED = "killed"
    PAUSED = "paused"
    SUPPRESSED = "suppressed"
    UNCOVERED = "uncovered"
    EVICTED = "evicted"
    MISSING = "missing"
    CHANGED = "changed"
    DAMAGED = "damaged"
    LOST = "lost"
    OVERWRITTEN = "overwritten"
    UNACCOUNTED = "unaccounted"
    UNCOUNTED = "uncounted"
    UNCHAINED = "unchained"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Why a window is not complete; the time is UTC, and None where nothing tells it.

    Attributes:
        detail: in words.
        file: the segment concerned; "" for none.
        events: their number; None if it is unknown, or there are none.
    """

    since_ns: int | None
    until_ns: int | None
    what: What
    detail: str
    file: str = ""
    events: int | None = None


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings, the oldest first, without those that say the same of a segment again."""
    by_file = {(f.what, f.detail, f.file or f): f for f in reversed([*findings])}
    return tuple(sorted(by_file.values(), key=_age))


def _age(finding: Finding) -> tuple[int, str, str, str]:
    return finding.since_ns or 0, finding.what, finding.detail, finding.file


def within(times: Iterable[tuple[int, int]], since: int, until: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of some times in a window, joined where they meet."""
    last: tuple[int, int] | None = None
    for begins, ends in sorted(times):
        one = max(begins, since), min(ends, until)
        if one[0] >= one[1]:
            continue
        if last is not None and one[0] <= last[1]:
            last = last[0], max(last[1], one[1])
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def without(
    times: Iterable[tuple[int, int]], others: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the parts of some times in which none of the others are."""
    for begins, ends in times:
        at = begins
        for one, other in sorted(others):
            if other <= at or one >= ends:
                continue
            if one > at:
                yield at, one
            at = max(at, other)
        if at < ends:
            yield at, ends
