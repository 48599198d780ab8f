# SPDX-License-Identifier: Apache-2.0
"""The tables of the fleet that come from commits: hosts, ledger, coverage, clocks, and gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.fleet.lift import HOST, HOSTS
from collectord.reader.event_tables import CLOCKS, COVERAGE, LEDGER
from collectord.reader.fixed_tables import FixedTable, as_utc, as_word, types_of
from collectord.reader.gaps import at_once, between
from collectord.reader.ledger_rows import LEDGER_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from collectord.fleet.commit import Commit
    from collectord.fleet.selection import Selection
    from collectord.reader.event_file import Window
    from collectord.reader.gaps import Interval
    from collectord.sink.manifest import Manifest

_WHOSE: Final = {
    HOST: ("VARCHAR", "text"),
    "session": ("VARCHAR", "text"),
    "source": ("VARCHAR", "kind of source"),
    "segment": ("VARCHAR", "name of the segment's file"),
}
_OF_HOST: Final = {"file", "stored_by_cpu"}
# {type, what it is} by name.
_LEDGER: Final = (
    _WHOSE
    | {name: told for name, told in LEDGER_COLUMNS.items() if name not in {*_WHOSE, *_OF_HOST}}
    | {
        "config": ("VARCHAR", "SHA-256 of the session's plan"),
        "rule": ("VARCHAR", "ledger, columns or raw, what is shipped of the session"),
        "shipped": ("TIMESTAMP_NS", "UTC"),
        "shipped_bytes": ("BIGINT", "bytes of its objects"),
    }
)
_COVERAGE: Final = _WHOSE | {
    "what": ("VARCHAR", "recorded, gap or paused"),
    "cause": ("VARCHAR", "text"),
    "since": ("TIMESTAMP_NS", "UTC"),
    "until": ("TIMESTAMP_NS", "UTC, null while it lasts"),
    "cpus_covered": ("INTEGER", "number of CPUs that had a ring"),
}
_CLOCKS: Final = _WHOSE | {
    "moment": ("VARCHAR", "open, flush, close, or shipped"),
    "time": ("TIMESTAMP_NS", "UTC"),
    "mono_ns": ("UBIGINT", "ns of CLOCK_MONOTONIC"),
    "perf_ns": ("UBIGINT", "ns of perf's clock"),
    "bracket_ns": ("UBIGINT", "ns, the most by which the readings are apart"),
    "synchronized": ("BOOLEAN", "whether a time service keeps the clock, as it was shipped"),
    "max_error_ns": ("BIGINT", "ns, the most by which the clock is wrong, as it was shipped"),
}
_GAPS: Final = {HOST: "VARCHAR", "since": "TIMESTAMP_NS", "until": "TIMESTAMP_NS"}
_NS_PER_US: Final = 1000
# Of all, the tables of `names_of` excepted.
NAMES: Final = (HOSTS, LEDGER, COVERAGE, CLOCKS)


def made(name: str, selection: Selection) -> FixedTable:
    """Return one of the tables. Raises StoreError."""
    if name == HOSTS:
        return hosts(selection.labels, selection.hosts)
    columns, rows = {
        LEDGER: (_LEDGER, _ledger_row),
        COVERAGE: (_COVERAGE, _coverage_rows),
        CLOCKS: (_CLOCKS, _clock_rows),
    }[name]
    commits = [told.commit for told in selection.commits]
    return FixedTable(types_of(columns), [row for one in commits for row in rows(one)])


def hosts(labels: Mapping[str, Mapping[str, str]], names: Sequence[str]) -> FixedTable:
    """Return the table of hosts: a row each, with a column for each label that any has.

    A label that is called as the column of the names is left out: a commit may have any.
    """
    keys = sorted({key for name in names for key in labels.get(name, ())} - {HOST})
    rows = [(name, *(labels.get(name, {}).get(key) for key in keys)) for name in names]
    return FixedTable({HOST: "VARCHAR", **dict.fromkeys(keys, "VARCHAR")}, rows)


def described() -> Iterator[tuple[str, str, str]]:
    """Yield {table, column, what it is} of the tables whose columns are always the same."""
    for table, columns in ((LEDGER, _LEDGER), (COVERAGE, _COVERAGE), (CLOCKS, _CLOCKS)):
        for name, (kind, meaning) in columns.items():
            yield (
                table,
                name,
                meaning if kind in {"VARCHAR", "TIMESTAMP_NS"} else f"{kind}, {meaning}",
            )


def gaps(commits: Iterable[Commit], events: Collection[str]) -> FixedTable:
    """Return the times between the recordings of any of some events, of each host."""
    found: set[tuple[str, int, int]] = set()
    for event in events:
        for host, runs in _runs(commits, event).items():
            found |= {(host, *gap) for gap in between(runs.values())}
    return FixedTable(_GAPS, sorted(found))


def twice(commits: Iterable[Commit], event: str) -> dict[str, list[str]]:
    """Return the sessions that recorded an event at the same time as another one, by host."""
    told = {
        host: at_once((interval, session) for (session, _), interval in runs.items())
        for host, runs in _runs(commits, event).items()
    }
    return {host: sessions for host, sessions in told.items() if sessions}


def recorded(commits: Iterable[Commit], events: Collection[str]) -> set[str]:
    """Return those of some events that were recorded, whether there was one or not."""
    names = {name for one in commits for manifest in one.decoded() for name in manifest.events}
    return {event for event in events if {event, event.partition(":")[2]} & names}


def recorded_ns(commits: Iterable[Commit], event: str, window: Window) -> dict[str, int]:
    """Return how long each host has recorded an event within a time."""
    found: dict[str, int] = {}
    for host, runs in _runs(commits, event).items():
        for begins, ends in runs.values():
            since = begins if window.since_ns is None else max(begins, window.since_ns)
            until = ends if window.until_ns is None else min(ends, window.until_ns)
            found[host] = found.get(host, 0) + max(until - since, 0)
    return found


def _runs(commits: Iterable[Commit], event: str) -> dict[str, dict[tuple[str, str], Interval]]:
    """Return from when to when each stream recorded an event, by host, then {session, stream}."""
    found: dict[str, dict[tuple[str, str], Interval]] = {}
    plain = event.partition(":")[2]
    for one in commits:
        for manifest in one.decoded():
            if not {event, plain}.intersection(manifest.events):
                continue
            interval = _interval(manifest)
            if interval is None:
                continue
            runs = found.setdefault(one.host, {})
            key = one.session, manifest.run or one.source
            before = runs.get(key, interval)
            runs[key] = min(interval[0], before[0]), max(interval[1], before[1])
    return found


def _interval(manifest: Manifest) -> Interval | None:
    """Return from when to when a segment's file recorded; None if nothing tells it."""
    opened, closed = manifest.clocks.open, manifest.clocks.close
    readings = [*manifest.clocks.flushes, *([closed] if closed is not None else [])]
    last = readings[-1] if readings else opened
    if not opened.realtime_ns or not last.realtime_ns:
        return None
    return opened.realtime_ns, last.realtime_ns


def _labels(one: Commit) -> tuple[str, str, str, str]:
    return one.host, one.session, one.kind, one.segment


def _ledger_row(one: Commit) -> Iterator[Sequence[object]]:
    balance = one.balance
    yield (
        *_labels(one),
        as_utc(balance.since_ns),
        as_utc(balance.until_ns),
        balance.basis,
        balance.unit,
        balance.produced,
        balance.stored,
        balance.lost,
        balance.overwritten,
        balance.in_flight,
        balance.unaccounted,
        balance.repeated,
        balance.lost_by,
        one.config_sha256 or None,
        one.rule,
        as_utc(one.shipped_ns),
        sum(stored.bytes for stored in one.objects),
    )


def _coverage_rows(one: Commit) -> Iterator[Sequence[object]]:
    for time in one.covered:
        yield (
            *_labels(one),
            time.what,
            time.cause or None,
            as_utc(time.since_ns),
            as_utc(time.until_ns),
            len(time.cpus) or None,
        )


def _clock_rows(one: Commit) -> Iterator[Sequence[object]]:
    for manifest in one.decoded():
        clocks = manifest.clocks
        told = [("open", clocks.open), *(("flush", reading) for reading in clocks.flushes)]
        if clocks.close is not None:
            told.append(("close", clocks.close))
        for moment, reading in told:
            yield (
                *_labels(one),
                moment,
                as_utc(reading.realtime_ns),
                as_word(reading.monotonic_ns),
                as_word(reading.perf_ns),
                as_word(reading.bracket_ns),
                None,
                None,
            )
    state = one.clock
    if state is not None:
        error = None if state.max_error_us is None else state.max_error_us * _NS_PER_US
        nothing = (None, None, None)
        yield (*_labels(one), "shipped", as_utc(state.at_ns), *nothing, state.synchronized, error)
