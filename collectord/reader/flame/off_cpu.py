# SPDX-License-Identifier: Apache-2.0
"""Times that threads were off the CPU, by the stacks with which they left it.

A switch names the thread that leaves and the one that comes, and its call chain is that of the one
that leaves. So a wait is the time from a thread's leaving to the next switch that it comes with.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.errors import UsageError
from collectord.reader.embedded_db import connect
from collectord.reader.event_file import Window
from collectord.reader.event_tables import tables_of
from collectord.reader.flame.profile import EPOCH, OpenedFile, Profile, Waits, without_cgroups
from collectord.reader.sql import Database
from collectord.sink.manifest import Manifest
from collectord.sink.segment import PARTIAL, SegmentPaths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.reader.event_file import EventFile
    from collectord.reader.flame.profile import Asked
    from collectord.reader.symbols.frame import Frame

_SYSTEM, _NAME = "sched", "sched_switch"
_SWITCH: Final = f"{_SYSTEM}:{_NAME}"
_UNIT: Final = "ns"
_END_NS: Final = (1 << 63) - 1
_HINT: Final = "`collectord record -a -g -e sched:sched_switch` records them"
# A thread does this at a switch: it comes, or leaves with a state, which is 0 if it could run on.
# One that leaves dead (16, 32) does not wait.
_STEPS: Final = f"""
switches AS MATERIALIZED (
    SELECT mono_ns::BIGINT AS ns, cpu, prev_pid, prev_state, next_pid
    FROM {_NAME} WHERE mono_ns <= {_END_NS}
),
moves AS (
    SELECT next_pid AS thread, ns, cpu, -1 AS state FROM switches WHERE next_pid <> 0
    UNION ALL
    SELECT prev_pid, ns, cpu, (prev_state & 255)::INTEGER FROM switches WHERE prev_pid <> 0
),
steps AS (
    SELECT *, lead(state) OVER by_thread AS state_then, lead(ns) OVER by_thread AS ns_then,
        lag(state) OVER by_thread AS state_before
    FROM moves WINDOW by_thread AS (PARTITION BY thread ORDER BY ns, state DESC)
),
leaving AS (SELECT * FROM steps WHERE state >= 0 AND state & 48 = 0)
"""  # noqa: S608  # of this module
_FIRST: Final = f"""
WITH {_STEPS}
SELECT thread, ns, thread IN (
    SELECT tid FROM tasks
    WHERE what = 'fork' AND tid IS NOT NULL AND mono_ns >= (SELECT min(ns) FROM switches)
) FROM steps WHERE state = -1 AND state_before IS NULL
"""  # noqa: S608  # likewise
_COUNTS: Final = f"""
WITH {_STEPS}
SELECT (SELECT count(*) FROM leaving WHERE state_then >= 0),
    (SELECT count(*) FROM leaving WHERE state_then = -1), (SELECT max(ns) FROM switches)
"""  # noqa: S608  # likewise


class _Pending(NamedTuple):
    """A wait whose end is not in the files that were read so far."""

    since_ns: int
    frames: tuple[Frame, ...]


def read_waits(files: Sequence[EventFile], asked: Asked) -> Profile:
    """Read the waits in files, those that follow each other in a session as one.

    Raises:
        UsageError: no file has switches with call chains, or none their cgroups.
        CollectordError: DuckDB is not installed, or fails.
    """
    chosen = sorted(filter(_has_chains, files), key=_place)
    if not chosen:
        raise UsageError("no file has task switches with call chains", hint=_HINT)
    placeless = without_cgroups(dict.fromkeys(chosen, (_SWITCH,)), asked)
    profile = Profile(unit=_UNIT, placeless=placeless, waits=Waits())
    with ExitStack() as whole:
        base = connect(whole)
        reading = _Reading(asked, profile)
        for file in chosen:
            span = file.window(asked.window)
            if span is None:
                # The scan says that the file is left out.
                profile.scans.append(tables_of([file])[_NAME].scan(("cpu",), asked.window))
            elif not file.is_outside(span):
                with ExitStack() as stack:
                    reading.read(file, span, base, stack)
        reading.end()
    return profile


def _has_chains(file: EventFile) -> bool:
    return any(event.full_name == _SWITCH and event.has_chain for event in file.events)


def _place(file: EventFile) -> tuple[str, int, str]:
    return str(file.path.parent), _sequence(file), file.path.name


def _sequence(file: EventFile) -> int:
    return SegmentPaths(file.path.parent, file.path.name.removesuffix(PARTIAL)).sequence


def _follows(file: EventFile, before: EventFile) -> bool:
    """Whether a file begins where another ends, so that a wait may be in both."""
    one, other = file.manifest, before.manifest
    return (
        one is not None
        and other is not None
        and (file.path.parent, one.run, one.boot_id)
        == (before.path.parent, other.run, other.boot_id)
        and bool(one.run)
        and _sequence(file) == _sequence(before) + 1
        and not (isinstance(other, Manifest) and other.snapshot is not None)
    )


class _Reading:
    """Reads files in their order.

    Args:
        asked: the wishes.
        profile: gets what is found.
    """

    def __init__(self, asked: Asked, profile: Profile) -> None:
        self._asked = asked
        self._profile = profile
        self._waits = profile.waits or Waits()
        self._pending: dict[int, _Pending] = {}
        self._before: tuple[EventFile, Window, int] | None = None

    def read(self, file: EventFile, span: Window, base: Any, stack: ExitStack) -> None:  # noqa: ANN401
        """Read one more file, and only in it the times in a span of its clock."""
        if self._before is not None and not _follows(file, self._before[0]):
            self.end()
        whole = Database(tables_of([file]), {}, Window(), self._asked.nearest, stack, base=base)
        opened = OpenedFile(file, [_SWITCH], whole, whole, self._asked)
        ((unfinished, pairs, last_ns),) = opened.ask(_COUNTS)
        self._waits.unfinished += unfinished
        self._waits.pairs += pairs
        for thread, ns, is_new in opened.ask(_FIRST):
            pending = self._pending.pop(thread, None)
            if pending is not None:
                self._add(pending, ns, span)
            elif not is_new:
                self._waits.begun_before += 1
        since_ns, until_ns = _ends(span)
        took = f"least(ns_then, {until_ns}) - greatest(ns, {since_ns})"
        complete = f"SELECT *, {took} AS took FROM leaving WHERE state_then = -1 AND {took} > 0"  # noqa: S608
        for (took_ns,), frames in _stacks(opened, complete, ("sum(took)",), "GROUP BY ALL"):
            self._profile.add(frames, int(took_ns))
        still_off = "SELECT * FROM leaving WHERE state_then IS NULL"
        for (thread, ns), frames in _stacks(opened, still_off, ("thread", "ns")):
            self._pending[thread] = _Pending(ns, frames)
        opened.add_gaps_to(self._profile)
        self._before = file, span, last_ns or 0

    def _add(self, pending: _Pending, end_ns: int, span: Window) -> None:
        since_ns, until_ns = _ends(span)
        took_ns = min(end_ns, until_ns) - max(pending.since_ns, since_ns)
        if took_ns > 0:
            self._profile.add(pending.frames, took_ns)

    def end(self) -> None:
        """Count what has not ended up to the last switch, or to the end of the time."""
        if self._before is not None:
            _, span, last_ns = self._before
            until_ns = last_ns if span.until_ns is None else span.until_ns
            for pending in self._pending.values():
                if pending.since_ns < until_ns:
                    self._waits.open += 1
                self._add(pending, until_ns, span)
        self._pending.clear()
        self._before = None


def _stacks(
    opened: OpenedFile, waits: str, values: Sequence[str], behind: str = ""
) -> Iterator[tuple[list[Any], tuple[Frame, ...]]]:
    """Yield values of waits with the stacks that they began with.

    Args:
        opened: the file.
        waits: SELECT of some steps.
        values: SQL of each value, of their columns.
        behind: SQL behind WHERE.
    """
    named = opened.named
    head = f"{named.head}, " if named.head else "WITH "
    # Epochs are found before the chains are read: the join for that sorts whole rows.
    columns = {**opened.columns, EPOCH: f"since AS {EPOCH}"}.values()
    statement = (
        f"{head}{_STEPS}, waits AS ({waits}), placed AS ("  # noqa: S608
        f"SELECT waits.*, {named.since} AS since FROM {named.samples} JOIN waits "
        f"ON s.mono_ns = ns AND s.cpu = waits.cpu WHERE {opened.wanted}) "
        f"SELECT {', '.join((*values, *columns))} FROM samples s JOIN placed "
        f"ON s.mono_ns = ns AND s.cpu = placed.cpu WHERE {opened.wanted} {behind}"
    )
    for row in opened.ask(statement):
        frames = opened.frames(row[len(values) :])
        if frames is not None:
            yield [*row[: len(values)]], frames


def _ends(span: Window) -> tuple[int, int]:
    until_ns = _END_NS if span.until_ns is None else min(span.until_ns, _END_NS)
    return min(span.since_ns or 0, _END_NS), until_ns
