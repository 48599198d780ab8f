# SPDX-License-Identifier: Apache-2.0
"""The ledger of AUX areas, in bytes: produced = stored + lost + overwritten + in flight.

`aux_head` is the kernel's count of the bytes handed over; the event's counter is the count of all
bytes traced, if the PMU counts bytes; the writer counts the stored bytes. So

- truncated = counter - head: no room in the area, in the kernel
- unaccounted = head - stored - lost behind the ring - in flight

and neither is computed from the other side's figures. If the PMU does not count, lost bytes are
known only by their occurrences: AUX records with the flag TRUNCATED.

While the event runs the counter is ahead of the head by the bytes that are traced and not handed
over yet, at most as many as the area holds. So only the difference beyond that is certainly
truncated, and it never goes down; the last reading has all. If the head is then ahead of the
counter, or less is truncated than was certain before, the two contradict each other, and the
difference is unaccounted.

A free-running area has no such balance: data that no snapshot took are overwritten. If its head
counts bytes, the overwritten bytes are known; if its head is an offset, nothing is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from collectord._native._core import AUX_HEAD_RULES
from collectord.ledger.drained_balance import drained_json, quarantine
from collectord.model import RING_DROPPED, Basis, LossKey, Reason, Stage, less, loss_name
from collectord.plan.aux_areas import HeadRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord._native._core import AuxCounters
    from collectord.model import RingLabel
    from collectord.plan.aux_areas import AuxPlan

TRUNCATED: Final = (Stage.KERNEL_RING, Reason.TRUNCATED)
# The reasons for which AUX bytes can be lost; each exists from the beginning.
AUX_LOSS_PAIRS: Final[tuple[LossKey, ...]] = (
    TRUNCATED,
    # The next two are of areas that outlive a process, of which its successor tells.
    RING_DROPPED,
    (Stage.STAGING, Reason.DROPPED),
    (Stage.STAGING, Reason.QUARANTINED),
    (Stage.SINK, Reason.DISK_FULL),
    (Stage.SINK, Reason.DROPPED),
)
_NOTHING_LOST: Final = {loss_name(pair): 0 for pair in AUX_LOSS_PAIRS}
FLAGS: Final = ("truncated", "partial", "collision")
# The keys of an area in `--json` and in `/v1/status`, and those that a manifest has.
_KEYS: Final = (
    *("cpu", "tid", "pmu", "ledger_basis", "capacity_bytes", "high_watermark_bytes"),
    *("produced_bytes", "stored_bytes", "lost_bytes", "overwritten_bytes", "repeated_bytes"),
    *("in_flight_bytes", "unaccounted_bytes", "records", "truncated", "partial", "collisions"),
    *("lost_records", "unrecorded_bytes", "orphan_bytes", "pieces", "enables", "restarts"),
    *("disabled_ns", "wakeups", "snapshots", "window_bytes", "last_window_bytes"),
    *("last_taken_bytes", "quarantined", "faults", "starved", "fill_buckets"),
)
_CUT_KEYS: Final = (
    *("cpu", "tid", "pmu", "ledger_basis", "produced_bytes", "stored_bytes", "lost_bytes"),
    *("overwritten_bytes", "repeated_bytes", "in_flight_bytes", "unaccounted_bytes"),
    *("truncated", "partial", "collisions", "lost_records", "disabled_ns"),
)


@dataclass(frozen=True, slots=True)
class AuxReading:
    """One reading of the kernel's counters of an area.

    Attributes:
        head: bytes that the kernel handed over; for a free-running area see `HeadRule`.
        traced: bytes that the PMU counted, including lost ones; None if it does not count bytes.
        lost_records: records of its events that did not fit the data ring, None before Linux 6.0.
    """

    head: int
    traced: int | None
    lost_records: int | None

    def since(self, before: AuxReading) -> AuxReading:
        """Return what came after an earlier reading."""
        return AuxReading(
            head=self.head - before.head,
            traced=less(self.traced, before.traced),
            lost_records=less(self.lost_records, before.lost_records),
        )


@dataclass(frozen=True, slots=True)
class AuxBracket:
    """The kernel's counters around a pass, and the core's counters after it.

    Attributes:
        truncated: bytes that earlier readings have proved to be truncated.
    """

    before: AuxReading
    counters: AuxCounters
    after: AuxReading
    closed: bool = False
    truncated: int = 0


@dataclass(frozen=True, slots=True)
class AuxBalance:
    """One area's balance.

    Attributes:
        basis: `exact` if the PMU counts every byte that is traced, independently of this program,
            `lost_only` if losses are known only by their occurrences.
        produced_bytes: bytes traced, or handed over if the PMU does not count; None if unknown.
        lost_bytes: keyed `<stage>/<reason>`; truncated bytes are None if the PMU does not count.
        overwritten_bytes: bytes overwritten before a snapshot took them; None if unknown.
        lost_records: AUX records that did not fit the data ring; no byte is lost by that.
        window_bytes: bytes that the area holds for a snapshot, 0 in streaming mode.
        counters: the core's counters at the reading.
    """

    label: RingLabel
    pmu: str
    basis: Basis
    capacity_bytes: int
    produced_bytes: int | None
    lost_bytes: dict[str, int | None]
    overwritten_bytes: int | None
    unaccounted_bytes: int | None
    lost_records: int | None
    window_bytes: int
    counters: AuxCounters

    @property
    def flagged(self) -> dict[str, int]:
        """The number of AUX records by flag, in the order of `FLAGS`."""
        counters = self.counters
        counts = (counters.truncated, counters.partial, counters.collisions)
        return dict(zip(FLAGS, counts, strict=True))

    @property
    def quarantined(self) -> str | None:
        """The reason why it is not read any more; None while it is."""
        return quarantine(self.counters)


def balance_aux(label: RingLabel, plan: AuxPlan, bracket: AuxBracket) -> AuxBalance:
    """Return the balance of one area."""
    counters, after = bracket.counters, bracket.after
    counted = after.traced is not None
    truncated = truncated_bytes(bracket, plan.data_bytes)
    produced = after.traced if counted else after.head
    basis = Basis.EXACT if counted else Basis.LOST_ONLY
    overwritten: int | None = 0
    if plan.snapshot:
        truncated, basis = 0, Basis.LOST_ONLY
        if AUX_HEAD_RULES[counters.head_rule] == HeadRule.OFFSET:
            produced = overwritten = None
        else:
            produced, overwritten = after.head, counters.overwritten_bytes
    return AuxBalance(
        label=label,
        pmu=plan.pmu,
        basis=basis,
        capacity_bytes=plan.data_bytes,
        produced_bytes=produced,
        lost_bytes={
            **_NOTHING_LOST,
            loss_name(TRUNCATED): truncated,
            loss_name((Stage.STAGING, Reason.QUARANTINED)): counters.quarantined_bytes,
            loss_name((Stage.SINK, Reason.DISK_FULL)): counters.lost_disk_full_bytes,
            loss_name((Stage.SINK, Reason.DROPPED)): counters.lost_dropped_bytes,
        },
        overwritten_bytes=overwritten,
        unaccounted_bytes=None if plan.snapshot else _unaccounted(bracket, truncated),
        lost_records=after.lost_records,
        window_bytes=counters.used_bytes if plan.snapshot else 0,
        counters=counters,
    )


def left_balance(like: AuxBalance, lost: Mapping[LossKey, int]) -> AuxBalance:
    """Return the balance of what earlier processes lost of a session's areas, with CPU -1.

    Args:
        like: that of one of the areas.
        lost: the bytes; they belong to no single area.
    """
    zeros: dict[str, Any] = dict.fromkeys(like.counters._fields, 0)
    zeros["fill_buckets"] = tuple(0 for _ in like.counters.fill_buckets)
    total = sum(lost.values())
    return replace(
        like,
        label=replace(like.label, cpu=-1),
        capacity_bytes=0,
        produced_bytes=total,
        lost_bytes={**_NOTHING_LOST, **{loss_name(pair): n for pair, n in lost.items()}},
        unaccounted_bytes=0,
        lost_records=0,
        counters=like.counters._replace(**zeros),
    )


def truncated_bytes(bracket: AuxBracket, capacity: int) -> int | None:
    """Return the bytes that found no room in an area of `capacity` bytes, as far as certain.

    None if the PMU does not count bytes.
    """
    after = bracket.after
    if after.traced is None:
        return None
    pending = 0 if bracket.closed else capacity
    return max(bracket.truncated, after.traced - after.head - pending, 0)


def _unaccounted(bracket: AuxBracket, truncated: int | None) -> int:
    """Return bytes that were handed over and are missing, or that are surplus.

    Once closed, also those by which the PMU's count and the head contradict each other.
    """
    counters = bracket.counters
    if not bracket.closed:
        # Compared with two readings of the head; bytes move between our counters meanwhile, so the
        # single count of taken bytes is used.
        taken = counters.taken_bytes + counters.quarantined_bytes
        return max(0, bracket.before.head - taken, taken - bracket.after.head)
    placed = (
        counters.stored_bytes
        + counters.in_flight_bytes
        + counters.lost_disk_full_bytes
        + counters.lost_dropped_bytes
        + counters.quarantined_bytes
    )
    head, traced = bracket.after.head, bracket.after.traced
    missing = abs(head - placed)
    if traced is None or truncated is None:
        return missing
    return max(missing, abs(traced - truncated - placed))


def aux_json(area: AuxBalance) -> dict[str, Any]:
    """Return an area's entry in `--json` and in `/v1/status`."""
    whole = {
        **drained_json(area),
        "last_window_bytes": area.counters.window_bytes,
        "last_taken_bytes": area.counters.window_taken_bytes,
    }
    return {key: whole[key] for key in _KEYS}


def aux_cut(areas: Iterable[AuxBalance]) -> list[dict[str, Any]]:
    """Return the balance as in a manifest, for each area."""
    return [{key: whole[key] for key in _CUT_KEYS} for whole in map(aux_json, areas)]
