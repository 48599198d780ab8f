# SPDX-License-Identifier: Apache-2.0
"""The times in which hosts recorded events, as commits tell, whether there was one or not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.fleet.per_host_statement import HOST
from collectord.reader.audit_findings import within, without
from collectord.reader.event_tables import FRAMES, STACKS, software_event
from collectord.reader.fixed_tables import FixedTable
from collectord.reader.gaps import EVER_NS, Part, at_once, between, joined

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from collectord.fleet.commit import Commit
    from collectord.reader.event_file import Window
    from collectord.reader.gaps import Interval
    from collectord.sink.manifest import Manifest

# The rule of segments of which no rows are shipped.
_LEDGER: Final = "ledger"
_GAPS: Final = {HOST: "VARCHAR", "since": "TIMESTAMP_NS", "until": "TIMESTAMP_NS"}
# Tables of which manifests do not tell whether there are rows.
_OF_SAMPLES: Final = frozenset({"samples", FRAMES, STACKS})


class _Segment(NamedTuple):
    """The recording of a segment.

    Attributes:
        commit: of it.
        has_rows: they were shipped.
        run: whose segments follow each other.
        events: their names, as the manifests have them; those of software events also as
            SOFTWARE:NAME, whatever aliases and modifiers they have.
        interval: from when to when; None if nothing tells it.
    """

    commit: Commit
    has_rows: bool
    run: str
    events: frozenset[str]
    interval: Interval | None

    @property
    def names(self) -> frozenset[str]:
        """The names of its events, and of the tables of its objects."""
        return self.events | {one.event for one in self.commit.objects}

    @property
    def pauses(self) -> Iterator[Interval]:
        """The times near it in which its session recorded nothing."""
        for time in self.commit.covered:
            if time.what != "recorded" and time.since_ns is not None:
                yield time.since_ns, EVER_NS if time.until_ns is None else time.until_ns


class Recordings:
    """The recordings of some commits, in the order of their time within each host.

    Args:
        commits: the commits.
        gone: keys of objects that they name and the store has not, of which more may be found.
    """

    def __init__(self, commits: Iterable[Commit], gone: AbstractSet[str] = frozenset()) -> None:
        self._gone = gone
        self._all = [*map(_segment, commits)]
        self._shipped = [(one, one.names) for one in self._all if one.has_rows]

    def within(self, window: Window) -> Iterator[Commit]:
        """Yield the commits of a time."""
        return (one.commit for one in self._all if window.overlaps(*one.commit.span))

    def commits_of(self, tables: Collection[str]) -> list[Commit]:
        """Return the commits that have rows of some tables, or may have had."""
        plain = _plain(tables)
        return [one.commit for one, names in self._shipped if not plain.isdisjoint(_plain(names))]

    def without_rows(self, tables: Collection[str], window: Window) -> Counter[str]:
        """Count the segments of a time whose rows of some tables are not there, by host.

        They could not be made; or the segment was passed over, which the next one of its stream
        tells. Which tables it had is told by its stream.
        """
        had: dict[tuple[str, ...], set[str]] = {}
        for one in self._all:
            if one.commit.rule != _LEDGER:
                had.setdefault(one.commit.stream, set()).update(_plain(one.names))
        for stream in had.keys() - {one.commit.stream for one, _ in self._shipped}:
            had[stream] |= _OF_SAMPLES
        ends_ns = {one.commit.source: one.commit.span[1] for one in self._all}
        found: Counter[str] = Counter()
        for commit in (one.commit for one in self._all):
            if had.get(commit.stream, set()).isdisjoint(_plain(tables)):
                continue
            before_ns = ends_ns.get(commit.previous.source) if commit.previous else None
            if commit.passed_over and window.overlaps(before_ns, commit.span[0]):
                found[commit.host] += commit.passed_over
            if commit.problem and window.overlaps(*commit.span):
                found[commit.host] += 1
        return found

    def withheld(self, tables: Collection[str], window: Window) -> Counter[str]:
        """Count the segments of a time that have the ledger alone, by host.

        Those are of streams that have rows of some tables at another time: their rule was changed,
        or rows are shipped around incidents only.
        """
        streams = {one.stream for one in self.commits_of(tables)}
        return Counter(
            one.host
            for one in self.within(window)
            if one.rule == _LEDGER and one.stream in streams
        )

    def among(self, events: Collection[str]) -> set[str]:
        """Return those of some events of which rows were shipped, or may have been."""
        known = {name for _, names in self._shipped for name in names}
        return {event for event in events if _is_in(event, known)}

    def hosts(self, window: Window) -> set[str]:
        """Return the hosts with segments of a time, whatever was shipped of them."""
        return {one.host for one in self.within(window)}

    def without_records(self, window: Window) -> set[str]:
        """Return the hosts of a time of which no record was shipped."""
        shipped = (one.commit for one, _ in self._shipped)
        return self.hosts(window) - {one.host for one in shipped if window.overlaps(*one.span)}

    def recorders(self, events: Collection[str], window: Window) -> set[str]:
        """Return the hosts that recorded each of some events in a time."""
        return _hosts_of(((one, one.names) for one in self._all), events, window)

    def hosts_of(self, events: Collection[str], window: Window) -> set[str]:
        """Return the hosts that shipped rows of each of some events of a time, if there were."""
        return _hosts_of(self._shipped, events, window)

    def samples_of(self, event: str) -> list[str]:
        """Return the names by which a software event SOFTWARE:NAME was recorded."""
        names = {name for one, _ in self._shipped for name in one.events}
        return sorted(name for name in names if software_event(name) == event)

    def gaps(self, events: Collection[str]) -> FixedTable:
        """Return the times between the recordings of any of some events, of each host."""
        found = {
            (host, *gap)
            for event in events
            for host, runs in self._runs(event).items()
            for gap in between(interval for _, interval in runs)
        }
        return FixedTable(_GAPS, sorted(found))

    def twice(self, event: str, window: Window) -> dict[str, list[str]]:
        """Return the sessions that recorded an event at once with another in a time, by host."""
        told = {
            host: at_once(
                (part, session)
                for session, interval in runs
                for part in within([interval], *_ends(window))
            )
            for host, runs in self._runs(event).items()
        }
        return {host: sessions for host, sessions in told.items() if sessions}

    def times_ns(self, events: Collection[str], window: Window) -> dict[str, int]:
        """Return for how long hosts have recorded each of some events within a time.

        One that has not, for some time, is not there; pauses do not count, nor do times whose
        rows are not there.
        """
        each = [self._of_event_ns(event, window) for event in events]
        hosts = set.intersection(*map(set, each))
        return {host: min(times[host] for times in each) for host in sorted(hosts)}

    def _of_event_ns(self, event: str, window: Window) -> dict[str, int]:
        recorded: dict[str, list[Interval]] = {}
        for (host, *_), segments in self._streams(event).items():
            pauses = [pause for one in segments for pause in one.pauses]
            recorded.setdefault(host, []).extend(without(self._joined(segments), pauses))
        found = {
            host: sum(until - since for since, until in within(times, *_ends(window)))
            for host, times in recorded.items()
        }
        return {host: time_ns for host, time_ns in found.items() if time_ns}

    def _runs(self, event: str) -> dict[str, list[tuple[str, Interval]]]:
        """Return from when to when each session has rows of an event, by host."""
        found: dict[str, list[tuple[str, Interval]]] = {}
        for (host, session, *_), segments in self._streams(event).items():
            found.setdefault(host, []).extend((session, run) for run in self._joined(segments))
        return found

    def _streams(self, event: str) -> dict[tuple[str, ...], list[_Segment]]:
        """Return the segments with an event whose time is known, by {host, session, ..., run}."""
        streams: dict[tuple[str, ...], list[_Segment]] = {}
        for one in self._all:
            if one.interval is not None and _is_in(event, one.events):
                streams.setdefault((*one.commit.stream, one.run), []).append(one)
        return streams

    def _joined(self, segments: Iterable[_Segment]) -> Iterator[Interval]:
        """Yield the times of a run of which there are rows."""
        return joined(
            Part(
                one.interval,
                (one.commit.first_ns or 0) if one.commit.balance.overwritten else 0,
                one.has_rows
                and self._gone.isdisjoint(stored.key for stored in one.commit.objects),
                not one.commit.passed_over,
            )
            for one in segments
            if one.interval is not None
        )


def _segment(one: Commit) -> _Segment:
    manifests = one.decoded()
    events = frozenset(name for manifest in manifests for name in _names(manifest.events))
    times = [*filter(None, map(_interval, manifests))]
    interval = (min(time[0] for time in times), max(time[1] for time in times)) if times else None
    run = next((manifest.run for manifest in manifests if manifest.run), one.source)
    return _Segment(one, one.rule != _LEDGER and not one.problem, run, events, interval)


def _hosts_of(
    segments: Iterable[tuple[_Segment, frozenset[str]]], events: Collection[str], window: Window
) -> set[str]:
    """Return the hosts whose segments of a time have each of some events, by their names."""
    told: dict[str, set[str]] = {}
    for one, names in segments:
        if window.overlaps(*one.commit.span):
            found = told.setdefault(one.commit.host, set())
            found.update(event for event in events if _is_in(event, names))
    return {host for host, found in told.items() if found >= {*events}}


def _plain(names: Iterable[str]) -> set[str]:
    return {name.rpartition(":")[2] for name in names}


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


def _ends(window: Window) -> Interval:
    """Return the ends of a time, of which either may be open."""
    since_ns, until_ns = window
    return since_ns or 0, EVER_NS if until_ns is None else until_ns
