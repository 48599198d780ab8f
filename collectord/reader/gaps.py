# SPDX-License-Identifier: Apache-2.0
"""Read stage: times in which an event was not recorded, and times in which it was twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.reader.event_file import shown
from collectord.sink.manifest import OpenManifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from collectord.reader.event_file import EventFile
    from collectord.reader.event_tables import EventTable

    # From when to when, UTC in ns.
    Interval = tuple[int, int]

EVER_NS: Final = (1 << 63) - 1
# More than a record's UTC differs by from that of another reading of the clocks.
_NEAR_NS: Final = 10_000_000


def gaps_of(tables: Iterable[EventTable]) -> list[Interval]:
    """Return the times between the recordings of any of some events.

    What lasted from before such a time until after it was not seen: a pair of records around it
    may belong to different things. Files without a manifest tell nothing.
    """
    return sorted(
        {gap for table in tables for gap in between(run for _, run in _runs(table.files))}
    )


def between(runs: Iterable[Interval]) -> Iterator[Interval]:
    """Yield the times between runs."""
    until_ns = EVER_NS
    for begins_ns, ends_ns in sorted(runs):
        if until_ns < begins_ns:
            yield until_ns, begins_ns
        until_ns = ends_ns if until_ns == EVER_NS else max(until_ns, ends_ns)


def folders_at_once(files: Sequence[EventFile]) -> list[str]:
    """Return folders of sessions that recorded an event at the same time, so that it is twice."""
    return at_once((run, folder) for folder, run in _runs(files))


def at_once(runs: Iterable[tuple[Interval, str]]) -> list[str]:
    """Return the names of runs that overlap with a run of another name."""
    spans = sorted(runs)
    twice: set[str] = set()
    for index, ((_, ends_ns), name) in enumerate(spans):
        for (begins_ns, _), other in spans[index + 1 :]:
            if begins_ns >= ends_ns:
                break
            if other != name:
                twice |= {name, other}
    return sorted(twice)


class Part(NamedTuple):
    """A segment of a run, whose segments follow each other.

    Attributes:
        interval: from when to when it was written.
        first_ns: UTC of its first record where a flight recorder has overwritten what was before
            it; 0 where none has, or nothing tells it.
        is_there: its records can be read.
        follows: there is none in front of it whose records are missing.
    """

    interval: Interval
    first_ns: int = 0
    is_there: bool = True
    follows: bool = True


def joined(parts: Iterable[Part]) -> Iterator[Interval]:
    """Yield the times of a run for which its records are in files."""
    run: Interval | None = None
    for part in sorted(parts):
        since, until = part.interval
        if run is not None and part.is_there and part.follows and not part.first_ns:
            run = run[0], max(run[1], until)
            continue
        if run is not None:
            yield run
            if part.first_ns:
                since = _overwritten_until(run[1], part.first_ns)
        run = (since, until) if part.is_there else None
    if run is not None:
        yield run


def _overwritten_until(before_ns: int, first_ns: int) -> int:
    """Return a time near the end of what a flight recorder has overwritten between two snapshots.

    It is within, as UTC is read off at other moments than those of records.

    Args:
        before_ns: UTC, the end of the first one.
        first_ns: UTC, the first record of the second one.
    """
    return max(before_ns, (before_ns + first_ns) // 2, first_ns - _NEAR_NS)


def _runs(files: Iterable[EventFile]) -> Iterator[tuple[str, Interval]]:
    """Yield from when to when each stream recorded, with its folder."""
    streams: dict[tuple[str, str], list[Part]] = {}
    for file in files:
        if file.manifest is None or not file.clock:
            continue
        key = shown(str(file.path.parent)), file.manifest.run or file.path_text
        running = isinstance(file.manifest, OpenManifest)
        interval = file.clock[0][1], EVER_NS if running else file.clock[-1][1]
        first_ns = file.first_utc_ns if file.overwrites else 0
        streams.setdefault(key, []).append(Part(interval, first_ns))
    for (folder, _), parts in streams.items():
        yield from ((folder, run) for run in joined(parts))
