# SPDX-License-Identifier: Apache-2.0
"""The times in which hosts recorded events, as commits tell, whether there was one or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.fleet.lift import HOST
from collectord.reader.event_tables import software_event
from collectord.reader.fixed_tables import FixedTable
from collectord.reader.gaps import at_once, between

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from collectord.fleet.commit import Commit
    from collectord.reader.event_file import Window
    from collectord.reader.gaps import Interval
    from collectord.sink.manifest import Manifest

# The rule of sessions of which no rows are shipped.
_LEDGER: Final = "ledger"
_GAPS: Final = {HOST: "VARCHAR", "since": "TIMESTAMP_NS", "until": "TIMESTAMP_NS"}


class _Recording(NamedTuple):
    """The recording of a segment's file.

    Attributes:
        stream: {session, run}, whose segments follow each other.
        events: their names, as the manifest has them; those of software events also as
            SOFTWARE:NAME, whatever aliases and modifiers they have.
        interval: from when to when; None if nothing tells it.
    """

    host: str
    stream: tuple[str, str]
    events: frozenset[str]
    interval: Interval | None


class Recordings:
    """The recordings of some commits whose rows are in the store."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        shipped = [one for one in commits if one.rule != _LEDGER and not one.problem]
        self._names = [(one, {stored.event for stored in one.objects}) for one in shipped]
        self._all: list[_Recording] = []
        for one, of_commit in self._names:
            for manifest in one.decoded():
                events = frozenset(_names(manifest.events))
                stream = one.session, manifest.run or one.source
                self._all.append(_Recording(one.host, stream, events, _interval(manifest)))
                of_commit.update(events)

    def commits_of(self, tables: Collection[str]) -> list[Commit]:
        """Return the commits that have rows of some tables, or may have had."""
        plain = {name.rpartition(":")[2] for name in tables}
        return [
            one
            for one, names in self._names
            if not plain.isdisjoint(name.rpartition(":")[2] for name in names)
        ]

    def among(self, events: Collection[str]) -> set[str]:
        """Return those of some events that were recorded."""
        names = {name for _, of_commit in self._names for name in of_commit}
        return {event for event in events if _is_in(event, names)}

    def hosts(self, window: Window) -> set[str]:
        """Return the hosts with segments of a time."""
        return {one.host for one, _ in self._names if window.overlaps(*one.span)}

    def hosts_of(self, events: Collection[str], window: Window) -> set[str]:
        """Return the hosts whose segments of a time have, or may have, each of some events."""
        told: dict[str, set[str]] = {}
        for one, names in self._names:
            if window.overlaps(*one.span):
                found = told.setdefault(one.host, set())
                found.update(event for event in events if _is_in(event, names))
        return {host for host, found in told.items() if found >= {*events}}

    def samples_of(self, event: str) -> list[str]:
        """Return the names by which a software event SOFTWARE:NAME was recorded."""
        names = {name for one in self._all for name in one.events}
        return sorted(name for name in names if software_event(name) == event)

    def gaps(self, events: Collection[str]) -> FixedTable:
        """Return the times between the recordings of any of some events, of each host."""
        found = {
            (host, *gap)
            for event in events
            for host, runs in self._runs(event).items()
            for gap in between(runs.values())
        }
        return FixedTable(_GAPS, sorted(found))

    def twice(self, event: str, window: Window) -> dict[str, list[str]]:
        """Return the sessions that recorded an event at once with another in a time, by host."""
        told = {
            host: at_once(
                (_within(interval, window), session)
                for (session, _), interval in runs.items()
                if _within_ns(interval, window)
            )
            for host, runs in self._runs(event).items()
        }
        return {host: sessions for host, sessions in told.items() if sessions}

    def times_ns(self, events: Collection[str], window: Window) -> dict[str, int]:
        """Return for how long hosts have recorded each of some events within a time.

        One that has not, for some time, is not there.
        """
        each = [self._of_event_ns(event, window) for event in events]
        hosts = set.intersection(*map(set, each))
        return {host: min(times[host] for times in each) for host in sorted(hosts)}

    def _of_event_ns(self, event: str, window: Window) -> dict[str, int]:
        found: dict[str, int] = {}
        for host, runs in self._runs(event).items():
            within_ns = sum(_within_ns(interval, window) for interval in runs.values())
            if within_ns:
                found[host] = within_ns
        return found

    def _runs(self, event: str) -> dict[str, dict[tuple[str, str], Interval]]:
        """Return from when to when each stream recorded an event, by host, then stream."""
        found: dict[str, dict[tuple[str, str], Interval]] = {}
        for one in self._all:
            if one.interval is not None and _is_in(event, one.events):
                runs = found.setdefault(one.host, {})
                before = runs.get(one.stream, one.interval)
                runs[one.stream] = (
                    min(one.interval[0], before[0]),
                    max(one.interval[1], before[1]),
                )
        return found


def _names(events: Iterable[str]) -> Iterator[str]:
    for name in events:
        yield name
        yield from filter(None, [software_event(name)])


def _is_in(event: str, names: Collection[str]) -> bool:
    return event in names or event.partition(":")[2] in names


def _interval(manifest: Manifest) -> Interval | None:
    opened, closed = manifest.clocks.open, manifest.clocks.close
    readings = [*manifest.clocks.flushes, *([closed] if closed is not None else [])]
    last = readings[-1] if readings else opened
    if not opened.realtime_ns or not last.realtime_ns:
        return None
    return opened.realtime_ns, last.realtime_ns


def _within(interval: Interval, window: Window) -> Interval:
    """Return the part of an interval within a time; it ends before it begins if there is none."""
    since, until = interval
    if window.since_ns is not None:
        since = max(since, window.since_ns)
    if window.until_ns is not None:
        until = min(until, window.until_ns)
    return since, until


def _within_ns(interval: Interval, window: Window) -> int:
    """Return how much of an interval is within a time."""
    since, until = _within(interval, window)
    return max(until - since, 0)
