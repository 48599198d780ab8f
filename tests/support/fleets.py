# SPDX-License-Identifier: Apache-2.0
"""Stores of hosts that there are not: their records are made by SQL, their ledgers by hand.

What is put is by the keys, the commits and the store of the program itself, and each commit names
the one before it, as the shipper has it.
"""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import duckdb
import msgspec

from collectord.fleet import commit as commits_of
from collectord.fleet.commit import Balance, ClockState, Commit, Covered, Previous, StoredObject
from collectord.fleet.multi_day_notes import multi_day_key, note_content
from collectord.fleet.store_keys import CommitKey, EventKey, day_of
from collectord.model import ClockReading
from collectord.sink import manifest as manifests
from collectord.sink.manifest import Clocks, Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.fleet.store import Store

SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
DAY: Final = 86_400 * SECOND
# 2026-11-20T00:00:00Z
BEGIN_NS: Final = 1_795_132_800 * SECOND
BOOT_NS: Final = 1_000 * SECOND
SCHED: Final = "sched_switch"
ISSUE: Final = "block_rq_issue"
COMPLETE: Final = "block_rq_complete"
WAKING: Final = "sched_waking"
_ROW_GROUP: Final = 122_880


def switched_after(number: int) -> str:
    """Return the time of a switch behind the beginning, as an expression of its number `i`."""
    return f"i * 1000000 + (i * i * (7919 + {number})) % 99991"


def switches(number: int, count: int) -> str:
    """Return a SELECT of switches of two tasks in turn on one CPU, a millisecond each."""
    return f"""
SELECT
    i AS n, 0::INTEGER AS cpu, NULL::INTEGER AS pid,
    (CASE WHEN i % 2 = 0 THEN 100 ELSE 200 END + {number})::INTEGER AS prev_pid,
    CASE WHEN i % 2 = 0 THEN 'even' ELSE 'odd' END AS prev_comm,
    (CASE WHEN i % 3 = 0 THEN 0 ELSE 1 END)::BIGINT AS prev_state,
    (CASE WHEN i % 2 = 0 THEN 200 ELSE 100 END + {number})::INTEGER AS next_pid,
    CASE WHEN i % 2 = 0 THEN 'odd' ELSE 'even' END AS next_comm,
    {switched_after(number)} AS after
FROM range({count}) r(i)"""  # noqa: S608


def requests(number: int, count: int, *, step: int) -> str:
    """Return a SELECT of block requests as they are issued (step 1) or complete (step 2)."""
    took = f"(100000 + (i * 7919 + {number} * 104729) % 5000000)"
    after = "i * 10000000" if step == 1 else f"i * 10000000 + {took}"
    of_issue = (
        f", (4096 * (1 + i % 8))::UINTEGER AS bytes, 'dd' AS event_comm, {number}::INTEGER AS tid"
    )
    return f"""
SELECT
    i AS n, (i % 2)::INTEGER AS cpu, NULL::INTEGER AS pid, (8388608 + i % 2)::UINTEGER AS dev,
    (i * 64)::UBIGINT AS sector, CASE WHEN i % 4 = 0 THEN 'W' ELSE 'R' END AS rwbs
    {of_issue if step == 1 else ""}, {after} AS after
FROM range({count}) r(i)"""  # noqa: S608


def wakings(counts: Mapping[tuple[str, str], int]) -> str:
    """Return a SELECT of wakings, so many of each {waker, woken}."""
    pairs = [pair for pair, count in counts.items() for _ in range(count)]
    rows = ", ".join(f"({n}, '{waker}', '{woken}')" for n, (waker, woken) in enumerate(pairs))
    return f"""
SELECT
    i AS n, 0::INTEGER AS cpu, (100 + i)::INTEGER AS tid, waker AS comm,
    (200 + i)::INTEGER AS event_pid, woken AS event_comm, i * 1000 AS after
FROM (VALUES {rows}) r(i, waker, woken)"""  # noqa: S608


@dataclass
class Host:
    """A host.

    Attributes:
        kernel: its release.
        clock_off_ns: its wall clock is so far ahead.
        max_error_us: what its kernel says of its clock; None: no time service keeps it.
        run_number: of the runs of its sessions.
        previous: the newest commit of each session.
        runs: {segments, records, lost records} of each session so far.
    """

    name: str
    kernel: str = "6.12.0"
    labels: Mapping[str, str] = field(default_factory=lambda: {"role": "web"})
    clock_off_ns: int = 0
    max_error_us: int | None = 500
    run_number: int = 1
    previous: dict[str, Previous] = field(default_factory=dict)
    runs: dict[str, tuple[int, int, int]] = field(default_factory=dict)


class Shipped:
    """A store into which segments of hosts are put.

    Attributes:
        produced: records of all segments, by {host, session}.
        connection: the database that makes the rows.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.produced: dict[tuple[str, str], int] = {}
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self.connection = duckdb.connect(":memory:")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self._stack.close()

    def segment(
        self,
        host: Host,
        events: Mapping[str, str],
        begins_ns: int,
        length_ns: int,
        *,
        session: str = "exec",
        lost: int = 0,
        covered: tuple[Covered, ...] = (),
        sampled: Sequence[str] = (),
        is_committed: bool = True,
        **changes: Any,  # noqa: ANN401  # of the commit
    ) -> Commit:
        """Put the objects of a segment, and its commit.

        Args:
            host: whose it is.
            events: SELECTs of rows by SYSTEM:NAME; `after` is the time behind the beginning.
            begins_ns: UTC.
            length_ns: the time that it is of.
            session: its name.
            lost: records that were produced and lost.
            covered: of the commit.
            sampled: events of the manifest whose records are rows of other tables.
            is_committed: the commit is put.
            changes: other values of the commit.
        """
        begins_ns += host.clock_off_ns
        mono_ns = begins_ns - BEGIN_NS + BOOT_NS - host.clock_off_ns
        rows = {event: self._count(sql) for event, sql in events.items()}
        counts = sum(rows.values()), lost
        manifest = _manifest(
            host, session, (*events, *sampled), (begins_ns, mono_ns, length_ns), counts
        )
        text = manifests.encode(manifest)
        source = hashlib.sha256(text).hexdigest()
        day = day_of(begins_ns)
        objects = []
        for event, sql in events.items():
            name = event.rpartition(":")[2]
            if not rows[event]:
                continue
            key = EventKey(name, day, host.name, source).key
            data = self._parquet(sql, (begins_ns, mono_ns), session)
            self.store.put_new(key, data)
            objects.append(
                StoredObject(
                    key=key,
                    bytes=len(data),
                    sha256=hashlib.sha256(data).hexdigest(),
                    event=name,
                    rows=rows[event],
                )
            )
        stored = sum(rows.values())
        values: dict[str, Any] = {
            "source": source,
            "host": host.name,
            "session": session,
            "kind": "perf",
            "format": "perf.data",
            "boot_id": "boot",
            "kernel": host.kernel,
            "labels": dict(host.labels),
            "date": day,
            "segment": manifest.segment,
            "started_ns": begins_ns,
            "first_ns": begins_ns,
            "last_ns": begins_ns + length_ns,
            "clock": ClockState(
                at_ns=begins_ns + length_ns,
                synchronized=host.max_error_us is not None,
                max_error_us=host.max_error_us,
            ),
            "rule": "columns",
            "config_sha256": "c" * 64,
            "balance": Balance(
                since_ns=begins_ns,
                until_ns=begins_ns + length_ns,
                basis="exact",
                produced=stored + lost,
                stored=stored,
                lost=lost,
                lost_by={"kernel_ring/ring_full": lost} if lost else {},
                overwritten=0,
                in_flight=0,
                unaccounted=0,
                repeated=0,
            ),
            "covered": (
                Covered(what="recorded", since_ns=begins_ns, until_ns=begins_ns + length_ns),
                *covered,
            ),
            "previous": host.previous.get(session),
            "manifests": (text.decode(),),
            "objects": tuple(objects),
            "shipped_ns": begins_ns + length_ns + SECOND,
        }
        made = Commit(**{**values, **changes})
        key = CommitKey(made.date, host.name, source).key
        lasting = multi_day_key(made)
        if lasting is not None:
            note = note_content(lasting)
            self.store.put_new(lasting.key, note)
            sha256 = hashlib.sha256(note).hexdigest()
            of_note = StoredObject(key=lasting.key, bytes=len(note), sha256=sha256)
            made = replaced(made, objects=(*made.objects, of_note))
        data = commits_of.encode(made)
        if is_committed:
            self.store.put_new(key, data)
            host.previous[session] = Previous(
                key=key, source=source, sha256=commits_of.digest(data)
            )
            whose = host.name, session
            self.produced[whose] = self.produced.get(whose, 0) + stored + lost
        return made

    def _count(self, sql: str) -> int:
        return int(self.connection.execute(f"SELECT count(*) FROM ({sql})").fetchall()[0][0])  # noqa: S608

    def _parquet(self, sql: str, begins: tuple[int, int], session: str) -> bytes:
        path = self._folder / "rows.parquet"
        begins_ns, mono_ns = begins
        self.connection.execute(
            f"COPY (SELECT make_timestamp_ns({begins_ns} + after) AS time, "  # noqa: S608
            f"({mono_ns} + after)::UBIGINT AS mono_ns, * EXCLUDE (n, after), "
            f"'{session}' AS session, 'boot' AS boot_id FROM ({sql}) ORDER BY after) TO '{path}' "
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROW_GROUP})"
        )
        return path.read_bytes()


def _manifest(
    host: Host,
    session: str,
    events: Sequence[str],
    times: tuple[int, int, int],
    counts: tuple[int, int],
) -> Manifest:
    """Return a manifest by {UTC, CLOCK_MONOTONIC, length} and {stored, lost} of a segment."""
    stored, lost = counts
    number, before, lost_before = host.runs.get(session, (0, 0, 0))
    host.runs[session] = number + 1, before + stored, lost_before + lost
    begins_ns, mono_ns, length_ns = times

    def reading(after_ns: int) -> ClockReading:
        return ClockReading(
            monotonic_ns=mono_ns + after_ns,
            realtime_ns=begins_ns + after_ns,
            perf_ns=mono_ns + after_ns,
            bracket_ns=200,
        )

    return Manifest(
        format="perf.data",
        segment=f"{number:06}.perf.data",
        host=host.name,
        boot_id="boot",
        kernel=host.kernel,
        session=session,
        source="perf",
        scope="system",
        started_ns=begins_ns,
        direct=False,
        data_offset=0,
        events=tuple(events),
        rings=(),
        clocks=Clocks(open=reading(0), close=reading(length_ns)),
        run=f"{host.name}-{session}-{host.run_number}",
        stored_before=before,
        complete=True,
        recovered=False,
        first_ns=mono_ns,
        last_ns=mono_ns + length_ns,
        records=stored,
        samples=stored,
        replayed=0,
        produced=before + stored + lost_before + lost,
        ledger={
            "basis": "exact",
            "produced": before + stored + lost_before + lost,
            "stored": before + stored,
            "lost": {"kernel_ring/ring_full": lost_before + lost},
            "overwritten": 0,
            "repeated": 0,
            "in_flight": 0,
            "unaccounted": 0,
        },
        lost_samples={},
        bytes=0,
        allocated_bytes=0,
        data_bytes=0,
        spans=(),
        build_ids={},
        previous=None,
    )


def replaced(one: Commit, **changes: Any) -> Commit:  # noqa: ANN401  # of the commit
    """Return a commit with other values."""
    return msgspec.structs.replace(one, **changes)
