# SPDX-License-Identifier: Apache-2.0
"""Sink stage: times in which an event was not recorded, and times in which it was twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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


def overwritten_until(before_ns: int, first_ns: int) -> int:
    """Return a time near the end of what a flight recorder has overwritten between two snapshots.

    It is within, as UTC is read off at other moments than those of records.

    Args:
        before_ns: UTC, the end of the first one.
        first_ns: UTC, the first record of the second one.
    """
    return max(before_ns, (before_ns + first_ns) // 2, first_ns - _NEAR_NS)


def _runs(files: Iterable[EventFile]) -> Iterator[tuple[str, Interval]]:
    """Yield from when to when each stream recorded, with its folder.

    The segments of a stream follow each other without a pause, but for what a flight recorder
    has overwritten before its next snapshot.
    """
    streams: dict[tuple[str, str], list[tuple[Interval, EventFile]]] = {}
    for file in files:
        if file.manifest is None or not file.clock:
            continue
        key = shown(str(file.path.parent)), file.manifest.run or file.path_text
        running = isinstance(file.manifest, OpenManifest)
        interval = file.clock[0][1], EVER_NS if running else file.clock[-1][1]
        streams.setdefault(key, []).append((interval, file))
    for (folder, _), timed in streams.items():
        run: Interval | None = None
        for (begins_ns, ends_ns), file in sorted(timed, key=lambda one: one[0]):
            if run is not None and file.overwrites and file.first_utc_ns:
                yield folder, run
                run = overwritten_until(run[1], file.first_utc_ns), ends_ns
            elif run is not None:
                run = run[0], max(run[1], ends_ns)
            else:
                run = begins_ns, ends_ns
        if run is not None:
            yield folder, run
