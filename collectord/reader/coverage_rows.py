# SPDX-License-Identifier: Apache-2.0
"""Read stage: the table of the times in which sessions recorded, on which CPUs, and did not."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.reader.fixed_tables import as_utc
from collectord.reader.manifests import note_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.reader.manifests import Segment

# {type, what it is} by name.
COVERAGE_COLUMNS: Final = {
    "session": ("VARCHAR", "text"),
    "source": ("VARCHAR", "kind of source"),
    "what": ("VARCHAR", "recorded, gap or paused"),
    "cause": ("VARCHAR", "of a gap or a pause"),
    "since": ("TIMESTAMP_NS", "UTC"),
    "until": ("TIMESTAMP_NS", "UTC, null while it lasts"),
    "length_ns": ("BIGINT", "ns, null while it lasts"),
    "cpus": ("INTEGER[]", "numbers, null if rings are of threads"),
    "cpus_covered": ("INTEGER", "number of CPUs"),
}
RECORDED: Final = "recorded"
GAP: Final = "gap"
PAUSED: Final = "paused"


class _Time(NamedTuple):
    """A row; without an end it lasts, and without a beginning nothing tells when it was."""

    what: str
    cause: str | None
    since_ns: int | None
    until_ns: int | None
    cpus: tuple[int, ...] = ()


def coverage_rows(segments: Sequence[Segment]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table.

    Args:
        segments: the oldest of a stream first.
    """
    for (_, session, source), of_stream in groupby(segments, lambda segment: segment.stream):
        times = [*_times([*of_stream])]
        for what, cause, since, until, cpus in sorted(times, key=lambda one: one.since_ns or 0):
            since_ns, until_ns = as_utc(since), as_utc(until)
            yield (
                *(session, source, what, cause, since_ns, until_ns),
                None if since_ns is None or until_ns is None else until_ns - since_ns,
                list(cpus) or None,
                len(cpus) or None,
            )


def _times(segments: Sequence[Segment]) -> Iterator[_Time]:
    """Yield the times of one stream, whose segments follow each other."""
    runs = [[*of_run] for _, of_run in groupby(segments, lambda one: one.manifest.run)]
    gaps = [segment.manifest.gap for (segment, *_) in runs]
    for run, gap, after in zip(runs, gaps, [*gaps[1:], None], strict=True):
        if gap is not None:
            yield _Time(GAP, gap.cause, gap.from_ns, gap.until_ns)
        until_ns = after.from_ns if after is not None else None
        recorded = [*_recorded(run, until_ns, is_last=run is runs[-1])]
        yield from recorded
        yield from _paused(run, recorded[-1].until_ns)


def _recorded(run: Sequence[Segment], until_ns: int | None, *, is_last: bool) -> Iterator[_Time]:
    """Yield the times of one run, another for each change of its CPUs.

    Args:
        run: its segments.
        until_ns: the end, as the next run has found it.
        is_last: it is the newest of the stream.
    """
    ends = [_end(segment) for segment in run]
    if ends[-1] is not None and run[-1].manifest.clocks.close is None:
        # It was killed: the last record is older than the end.
        if until_ns is None and is_last:
            until_ns = _noted_end(run[-1])
        ends[-1] = max(ends[-1], until_ns or 0)
    before_ns: int | None = None
    for cpus, pairs in groupby(zip(run, ends, strict=True), lambda pair: _cpus(pair[0])):
        of_cpus = [*pairs]
        # A segment is prepared beside the one before it.
        since_ns = before_ns or of_cpus[0][0].began_ns
        before_ns = of_cpus[-1][1]
        yield _Time(RECORDED, None, since_ns, before_ns, cpus)


def _paused(run: Sequence[Segment], end_ns: int | None) -> Iterator[_Time]:
    """Yield the pauses of one run; the end of the run is the end of one that lasted."""
    pauses: dict[tuple[str, int], _Time] = {}
    for segment in run:
        for one in segment.balance.pauses:
            until_ns = end_ns if one.until_ns is None else segment.utc(one.until_ns)
            # A later manifest knows the end of one that lasted at the seal before.
            pauses[one.cause, one.since_ns] = _Time(
                PAUSED, one.cause, segment.utc(one.since_ns), until_ns
            )
    yield from pauses.values()


def _end(segment: Segment) -> int | None:
    """Return when a segment ended; None while it is written.

    Of one whose writer died the time of the last record is returned.
    """
    if segment.is_running:
        return None
    closed = segment.manifest.clocks.close
    if closed is not None:
        return closed.realtime_ns
    last = max((file.row.ends_ns or 0 for file in segment.files), default=0)
    return last or segment.began_ns


def _noted_end(segment: Segment) -> int | None:
    """Return until when the rings of a killed session were open, by the note in its folder."""
    note = note_of(segment.folder, segment.manifest.source)
    if note is None or note.boot_id != segment.manifest.boot_id:
        return None
    return note.until.realtime_ns if note.until.realtime_ns >= segment.began_ns else None


def _cpus(segment: Segment) -> tuple[int, ...]:
    """Return the CPUs of the rings; nothing if any is of no single CPU."""
    cpus = sorted({ring.cpu for ring in segment.rings})
    return tuple(cpus) if cpus and cpus[0] >= 0 else ()
