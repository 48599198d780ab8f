# SPDX-License-Identifier: Apache-2.0
"""Sums of counters over those who follow each other: rings of a place, sessions of a name.

A metric goes on when a session or a ring is replaced by another one that counts from 0.
"""

from __future__ import annotations

from dataclasses import replace
from operator import add
from typing import TYPE_CHECKING, Any, Final, TypeVar

from collectord._native._core import AuxCounters, RingCounters
from collectord.model import sum_known

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord.ledger.aux_ledger import AuxBalance
    from collectord.ledger.record_ledger import RingBalance, SessionBalance

Counters = TypeVar("Counters", RingCounters, AuxCounters)
# A balance of an AUX area or of a ring.
Part = TypeVar("Part", "AuxBalance", "RingBalance")

# Figures about the present, of which a ring that is gone has none.
PRESENT: Final = frozenset(("used_bytes", "window_held_ns", "quarantined", "quarantine_reason"))
# Figures that are those of the last ring alone.
_OF_LAST: Final = PRESENT | {"window_bytes", "window_taken_bytes", "head_rule"}
_PEAKS: Final = frozenset(("last_sample_ns", "high_watermark_bytes"))


def add_counters(before: Counters, last: Counters) -> Counters:
    """Return the core's counters of two rings of a place, the later one second."""
    figures: dict[str, Any] = {}
    for name in last._fields:
        one, other = getattr(before, name), getattr(last, name)
        if name == "fill_buckets":
            figures[name] = tuple(map(add, one, other))
        elif name in _PEAKS:
            figures[name] = max(one, other)
        elif name not in _OF_LAST:
            figures[name] = one + other
    return last._replace(**figures)


def sum_balances(before: SessionBalance | None, last: SessionBalance) -> SessionBalance:
    """Return the sums over two sessions of a name and source, the later one second.

    Only what counts up is summed; a ring or an area that one of them lacks is the other's.

    Args:
        before: the earlier one, or such a sum; None for none.
        last: the later one.
    """
    if before is None:
        return last
    return replace(
        last,
        produced=sum_known((before.produced, last.produced)),
        stored=before.stored + last.stored,
        lost=_added(before.lost, last.lost),
        overwritten=sum_known((before.overwritten, last.overwritten)),
        rings=_by_place(before.rings, last.rings, _add_rings),
        aux=_by_place(before.aux, last.aux, _add_areas),
        shared=_added(before.shared, last.shared),
        snapshots=before.snapshots + last.snapshots,
        snapshots_failed=before.snapshots_failed + last.snapshots_failed,
        paused_ns=before.paused_ns + last.paused_ns,
        sideband=last.sideband._replace(dropped=before.sideband.dropped + last.sideband.dropped),
        sink=replace(
            last.sink,
            write_errors=before.sink.write_errors + last.sink.write_errors,
            unsealed=before.sink.unsealed + last.sink.unsealed,
            early=before.sink.early + last.sink.early,
        ),
    )


def _by_place(before: Iterable[Part], last: Iterable[Part], both: Any) -> tuple[Part, ...]:  # noqa: ANN401
    parts = {part.label: part for part in before}
    for part in last:
        known = parts.get(part.label)
        parts[part.label] = part if known is None else both(known, part)
    return tuple(parts.values())


def _add_rings(before: RingBalance, last: RingBalance) -> RingBalance:
    return replace(
        last,
        produced=sum_known((before.produced, last.produced)),
        stored=before.stored + last.stored,
        lost=_added(before.lost, last.lost),
        overwritten=sum_known((before.overwritten, last.overwritten)),
        counters=add_counters(before.counters, last.counters),
        foreign_reads=before.foreign_reads + last.foreign_reads,
    )


def _add_areas(before: AuxBalance, last: AuxBalance) -> AuxBalance:
    return replace(
        last,
        produced_bytes=sum_known((before.produced_bytes, last.produced_bytes)),
        lost_bytes={
            key: sum_known((before.lost_bytes.get(key), value))
            for key, value in last.lost_bytes.items()
        },
        overwritten_bytes=sum_known((before.overwritten_bytes, last.overwritten_bytes)),
        lost_records=sum_known((before.lost_records, last.lost_records)),
        counters=add_counters(before.counters, last.counters),
    )


def _added(before: Mapping[str, int], last: Mapping[str, int]) -> dict[str, int]:
    return {key: before.get(key, 0) + last.get(key, 0) for key in {**before, **last}}
