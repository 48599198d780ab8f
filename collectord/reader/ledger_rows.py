# SPDX-License-Identifier: Apache-2.0
"""Read stage: the table of balances: of each segment, from the ledgers of its run.

A manifest has the ledger from the run's beginning to its seal, so a segment's own is the
difference from the last one before it. What was counted at a seal may be stored in the next
segment: it is in flight for the one and is taken off for the other, so that sums over a run are
its ledger.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import SinkError
from collectord.model import less
from collectord.reader.fixed_tables import as_utc
from collectord.reader.manifest_links import earlier_manifests, sealed_manifest
from collectord.sink.manifest import Manifest
from collectord.sink.manifest_ledger import UNTOLD, ZERO, balance_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from collectord.reader.manifests import Segment
    from collectord.sink.manifest_ledger import BalanceTold

    Read = Callable[[Path], Manifest | None]

_COUNT: Final = ("BIGINT", "records or bytes, see unit")
# {type, what it is} by name.
LEDGER_COLUMNS: Final = {
    "session": ("VARCHAR", "text"),
    "source": ("VARCHAR", "kind of source"),
    "file": ("VARCHAR", "path of the segment, as in segments"),
    "since": ("TIMESTAMP_NS", "UTC"),
    "until": ("TIMESTAMP_NS", "UTC"),
    "basis": ("VARCHAR", "exact, lost_only or none"),
    "unit": ("VARCHAR", "records or bytes, of the counts"),
    "produced": _COUNT,
    "stored": _COUNT,
    "lost": _COUNT,
    "overwritten": _COUNT,
    "in_flight": _COUNT,
    "unaccounted": _COUNT,
    "repeated": _COUNT,
    "lost_by": ("MAP(VARCHAR, BIGINT)", "of lost, by STAGE/REASON"),
    "stored_by_cpu": ("MAP(INTEGER, BIGINT)", "of stored, by CPU"),
}


class _Before(NamedTuple):
    """The ledger of a run before a segment.

    Attributes:
        balance: the last one; without `lost` if it is gone.
        stored: what the files of the run had then; None if nothing tells it.
    """

    balance: BalanceTold
    stored: int | None


class _Own(NamedTuple):
    """The part of a segment in the ledger of its run; None is what nothing tells."""

    produced: int | None = None
    lost: Mapping[str, int] | None = None
    overwritten: int | None = None
    in_flight: int | None = None
    unaccounted: int | None = None
    repeated: int | None = None


def ledger_rows(segments: Sequence[Segment]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table."""
    known: dict[Path, Manifest | None] = {
        file.paths.manifest: file.manifest
        for segment in segments
        for file in segment.files
        if isinstance(file.manifest, Manifest)
    }
    read = partial(_read_once, known)
    for segment in segments:
        balance, manifest = segment.balance, segment.manifest
        is_sealed = isinstance(manifest, Manifest)
        own = _own(segment, manifest, read) if isinstance(manifest, Manifest) else _Own()
        yield (
            *segment.labels,
            as_utc(segment.utc(balance.since_ns)),
            as_utc(segment.utc(balance.until_ns)),
            balance.basis if is_sealed else None,
            "bytes" if segment.in_bytes else "records",
            own.produced,
            segment.stored,
            None if own.lost is None else sum(own.lost.values()),
            own.overwritten,
            own.in_flight,
            own.unaccounted,
            own.repeated,
            own.lost,
            _by_cpu(segment),
        )


def _read_once(known: dict[Path, Manifest | None], path: Path) -> Manifest | None:
    """Return a sealed manifest, one that is known or read now; None if it is gone or damaged."""
    if path not in known:
        try:
            known[path] = sealed_manifest(path)
        except SinkError:
            known[path] = None
    return known[path]


def _own(segment: Segment, manifest: Manifest, read: Read) -> _Own:
    """Return the difference from the last balance of the run before a segment."""
    balance = segment.balance
    if balance.lost is None:
        return _Own()
    before = _before(segment, manifest, read)
    earlier = before.balance
    if earlier.lost is None:  # it is gone: what is 0 by now was 0 then
        return _Own(
            lost=None if any(balance.lost.values()) else {},
            overwritten=None if balance.overwritten else balance.overwritten,
            repeated=None if balance.repeated else 0,
        )
    lost = {name: count - earlier.lost.get(name, 0) for name, count in balance.lost.items()}
    return _Own(
        produced=less(balance.produced, earlier.produced),
        lost={name: count for name, count in lost.items() if count},
        overwritten=less(balance.overwritten, earlier.overwritten),
        in_flight=_in_flight(segment, before),
        unaccounted=less(balance.unaccounted, earlier.unaccounted),
        repeated=balance.repeated - earlier.repeated,
    )


def _in_flight(segment: Segment, before: _Before) -> int | None:
    """Return what is counted at the end of a segment and in none, less what was before it."""
    if segment.in_bytes or before.stored is None:
        return None
    manifests = [file.manifest for file in segment.files]
    stored = segment.stored + sum(one.stored_before for one in manifests)
    now, then = segment.balance, before.balance
    return (now.stored + now.in_flight - stored) - (then.stored + then.in_flight - before.stored)


def _before(segment: Segment, manifest: Manifest, read: Read) -> _Before:
    """Find the last balance of a segment's run before it, by the links of the manifests."""
    stored: int | None = sum(file.manifest.stored_before for file in segment.files)
    is_first = not stored
    for earlier in earlier_manifests(manifest, segment.folder, read):
        if earlier.run != manifest.run:
            if is_first:
                break
            continue
        told = balance_in(earlier)
        if not isinstance(told, str) and told.lost is not None:
            return _Before(told, stored)
        # Its records are a part of the difference. The other files of a set are not known here.
        stored = earlier.stored_before if len(segment.files) == 1 else None
        is_first = not earlier.stored_before
    return _Before(ZERO, stored) if is_first else _Before(UNTOLD, None)


def _by_cpu(segment: Segment) -> dict[str, int] | None:
    """Return what is stored of the rings of each CPU; None unless they have all that is stored."""
    rings = segment.rings
    stored: Counter[int] = Counter()
    for ring in rings:
        stored[ring.cpu] += ring.bytes if segment.in_bytes else ring.samples
    if min(stored, default=-1) < 0 or sum(stored.values()) != segment.stored:
        return None
    return {str(cpu): count for cpu, count in sorted(stored.items())}
