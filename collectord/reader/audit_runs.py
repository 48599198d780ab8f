# SPDX-License-Identifier: Apache-2.0
"""Read stage: the balances of each run of a session, at flush intervals where manifests have them.

The counters of a run go on from segment to segment, so the account of any window is a difference
of two balances of its run: of the last one before it, and of the first one behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from collectord.errors import CodecError
from collectord.model import Basis, less
from collectord.sink.chain_log import span_of
from collectord.sink.manifest import Manifest
from collectord.sink.series import Balance, decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from collectord.reader.manifests import Segment

# Losses that are counted some time after the records came.
_LATE: tuple[str, ...] = ("staging/", "sink/")


class Point(NamedTuple):
    """A balance of a run, and its time in UTC."""

    time_ns: int
    balance: Balance


@dataclass(frozen=True, slots=True)
class Span:
    """The time of a segment that has a balance, in UTC."""

    segment: Segment
    since_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The account of a run over a window, from the balance before it to the one behind it.

    `in_flight_before` and `produced` together are the sum of `stored`, `lost`, `overwritten`,
    `in_flight` and `unaccounted`.

    Attributes:
        since_ns, until_ns: UTC of both balances: the window lies between them.
        produced: None if the kernel did not count, as the next two.
        lost: by `<stage>/<reason>`, without those that are 0. Records that waited for the disk at
            the window's end are counted until they are stored.
        in_flight_before: records that waited to be stored at its beginning.
        in_flight: the same at its end.
        settled: the run is over, so what is unaccounted is final.
        inexact: the times in which not every event was counted.
    """

    since_ns: int
    until_ns: int
    produced: int | None
    stored: int
    lost: dict[str, int]
    overwritten: int | None
    unaccounted: int | None
    in_flight_before: int
    in_flight: int
    settled: bool
    inexact: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """The segments of one run that have a balance, and all its balances, the oldest first.

    Attributes:
        broken: why balances of a segment cannot be read, by its path.
    """

    spans: tuple[Span, ...]
    points: tuple[Point, ...]
    broken: tuple[tuple[str, str], ...] = ()

    def figures(self, since_ns: int, until_ns: int) -> Figures | None:
        """Return the account of a window; None if it lies outside of the run."""
        points = self.points
        if len(points) < 2 or until_ns <= points[0].time_ns or since_ns >= points[-1].time_ns:  # noqa: PLR2004
            return None
        first = max((n for n, p in enumerate(points) if p.time_ns <= since_ns), default=0)
        end = len(points) - 1
        last = next((n for n, p in enumerate(points) if p.time_ns >= until_ns), end)
        before, behind = points[first].balance, points[last].balance
        told = (points[n].balance for n in range(end, last - 1, -1))
        missing = next((one.unaccounted for one in told if one.unaccounted is not None), None)
        settled_at = next((n for n in range(last, end) if not points[n].balance.in_flight), end)
        late = points[settled_at].balance
        lost = {
            name: (late if name.startswith(_LATE) else behind).lost.get(name, 0)
            - before.lost.get(name, 0)
            for name in {*before.lost, *late.lost}
        }
        closed = self.spans[-1].segment.balance.closed
        return Figures(
            since_ns=points[first].time_ns,
            until_ns=points[last].time_ns,
            produced=less(behind.produced, before.produced),
            stored=behind.stored - before.stored,
            lost={name: count for name, count in sorted(lost.items()) if count},
            overwritten=less(behind.overwritten, before.overwritten),
            unaccounted=less(missing, before.unaccounted),
            in_flight_before=before.in_flight,
            in_flight=behind.in_flight,
            settled=closed,
            inexact=tuple(
                (one.time_ns, other.time_ns)
                for one, other in pairwise(points[first : last + 1])
                if not other.balance.exact
            ),
        )


def run_of(segments: Sequence[Segment]) -> Run:
    """Return the balances of the segments of one run, the oldest first."""
    spans: list[Span] = []
    points: list[Point] = []
    broken: list[tuple[str, str]] = []
    for segment in segments:
        manifest = segment.manifest
        if not isinstance(manifest, Manifest) or segment.balance.lost is None:
            continue
        span = _span(segment, manifest, spans[-1] if spans else None)
        try:
            rows = [*_rows(segment, manifest, is_first=not points)]
        except CodecError as error:
            broken.append((segment.labels[-1], str(error)))
            rows = []
        known_ns = points[-1].balance.at_ns if points else -1
        points += [Point(_utc(segment, row), row) for row in rows if row.at_ns > known_ns]
        if segment.balance.until_ns is None:
            rows = [_of_ledger(segment, points[-1].balance.at_ns + 1 if points else 0)]
            points += [Point(span.until_ns, row) for row in rows]
        spans.append(span)
    return Run(tuple(spans), tuple(_rising(points)), tuple(broken))


def _rising(points: Iterable[Point]) -> Iterator[Point]:
    """Yield points whose times do not go back, however the clocks were set."""
    at_ns = 0
    for point in points:
        at_ns = max(at_ns, point.time_ns)
        yield point._replace(time_ns=at_ns)


def _span(segment: Segment, manifest: Manifest, before: Span | None) -> Span:
    since_ns, until_ns = span_of(manifest)
    balance = segment.balance
    if not until_ns:
        until_ns = max((file.row.ends_ns or 0 for file in segment.files), default=0) or since_ns
    if before is not None:
        follows = balance.since_ns in (None, before.segment.balance.until_ns)
        if follows or since_ns < before.until_ns:
            since_ns = before.until_ns
    return Span(segment, since_ns, max(since_ns, until_ns))


def _utc(segment: Segment, row: Balance) -> int:
    return segment.utc(row.at_ns) or 0


def _rows(segment: Segment, manifest: Manifest, *, is_first: bool) -> Iterator[Balance]:
    told = segment.balance
    if told.until_ns is None:
        return
    rows = decode(manifest.balances) if manifest.balances is not None else []
    if not rows and is_first and told.since_ns is not None and not manifest.stored_before:
        yield Balance(told.since_ns, True, 0, 0, 0, 0, 0, {})  # noqa: FBT003  # a run begins
    # The last row is of the seal, as is the ledger, which may have been made anew since.
    yield from rows[:-1]
    last = _of_ledger(segment, told.until_ns)
    if rows:
        # The ledger speaks for the whole segment, the row for the time since the one before it.
        last = last._replace(exact=rows[-1].exact)
        if last.produced is None:
            row = rows[-1]
            last = last._replace(produced=row.produced, unaccounted=row.unaccounted)
    yield last


def _of_ledger(segment: Segment, at_ns: int) -> Balance:
    told = segment.balance
    return Balance(
        at_ns=at_ns,
        exact=told.basis == Basis.EXACT,
        produced=told.produced,
        stored=told.stored,
        in_flight=told.in_flight,
        overwritten=told.overwritten,
        unaccounted=told.unaccounted,
        lost=told.lost or {},
    )
