# SPDX-License-Identifier: Apache-2.0
"""The tables of the fleet that come from commits: hosts, ledger, coverage and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.fleet.per_host_statement import HOST, HOSTS
from collectord.reader.event_tables import CLOCKS, COVERAGE, LEDGER
from collectord.reader.fixed_tables import FixedTable, as_utc, as_word, types_of
from collectord.reader.ledger_rows import LEDGER_COLUMNS
from collectord.text.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from collectord.fleet.commit import Commit
    from collectord.fleet.selection import Selection

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
# Tables that every store has, beside those of its events.
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
        error = None if state.max_error_us is None else state.max_error_us * NS_PER_US
        nothing = (None, None, None)
        yield (*_labels(one), "shipped", as_utc(state.at_ns), *nothing, state.synchronized, error)
