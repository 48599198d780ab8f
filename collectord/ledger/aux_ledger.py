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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from collectord._native._core import AUX_HEAD_RULES, QUARANTINE_REASONS
from collectord.model import Basis, LossKey, Reason, Stage, loss_name
from collectord.plan.aux_areas import HeadRule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord._native._core import AuxCounters
    from collectord.model import RingLabel
    from collectord.plan.aux_areas import AuxPlan

TRUNCATED: Final = (Stage.KERNEL_RING, Reason.TRUNCATED)
# The reasons for which AUX bytes can be lost; each exists from the beginning.
AUX_LOSS_PAIRS: Final[tuple[LossKey, ...]] = (
    TRUNCATED,
    (Stage.STAGING, Reason.QUARANTINED),
    (Stage.SINK, Reason.DISK_FULL),
    (Stage.SINK, Reason.DROPPED),
)
FLAGS: Final = ("truncated", "partial", "collision")


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
    """One area's balance; all values are bytes unless the name says otherwise.

    Attributes:
        basis: `exact` if the PMU counts every byte that is traced, independently of this program,
            `lost_only` if losses are known only by their occurrences.
        produced: bytes traced, or handed over if the PMU does not count; None if unknown.
        lost: keyed `<stage>/<reason>`; truncated bytes are None if the PMU does not count.
        overwritten: bytes overwritten before a snapshot took them; None if unknown.
        repeated: bytes in a snapshot's window that an earlier one has stored.
        lost_records: AUX records that did not fit the data ring; no byte is lost by that.
        unrecorded: bytes that no AUX record described.
        orphaned: bytes that were taken without the record that says where they end.
        pieces: number of pieces in which the trace was stored.
        enables: how often its events were enabled again, `restarts` of them after the kernel had
            stopped one for lack of room.
        window: bytes that the area holds for a snapshot, 0 in streaming mode.
        last_window: bytes that the last snapshot found, `last_taken` of them new.
        fill_buckets: passes by fill, as for a ring.
        stopped_ns: time during which a full area had its event stopped.
    """

    label: RingLabel
    pmu: str
    basis: Basis
    capacity: int
    high_watermark: int
    produced: int | None
    stored: int
    lost: dict[str, int | None]
    overwritten: int | None
    repeated: int
    in_flight: int
    unaccounted: int | None
    records: int
    truncated: int
    partial: int
    collisions: int
    lost_records: int | None
    unrecorded: int
    orphaned: int
    pieces: int
    enables: int
    restarts: int
    stopped_ns: int
    wakeups_watermark: int
    wakeups_timer: int
    snapshots: int
    window: int
    last_window: int
    last_taken: int
    quarantined: str | None
    faults: int
    starved: int
    fill_buckets: tuple[int, ...]

    @property
    def flagged(self) -> dict[str, int]:
        """The number of AUX records by flag, in the order of `FLAGS`."""
        return dict(zip(FLAGS, (self.truncated, self.partial, self.collisions), strict=True))


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
        capacity=plan.data_bytes,
        high_watermark=counters.high_watermark_bytes,
        produced=produced,
        stored=counters.stored_bytes,
        lost={
            loss_name(TRUNCATED): truncated,
            loss_name((Stage.STAGING, Reason.QUARANTINED)): counters.quarantined_bytes,
            loss_name((Stage.SINK, Reason.DISK_FULL)): counters.lost_disk_full_bytes,
            loss_name((Stage.SINK, Reason.DROPPED)): counters.lost_dropped_bytes,
        },
        overwritten=overwritten,
        repeated=counters.repeated_bytes,
        in_flight=counters.in_flight_bytes,
        unaccounted=None if plan.snapshot else _unaccounted(bracket, truncated),
        records=counters.records,
        truncated=counters.truncated,
        partial=counters.partial,
        collisions=counters.collisions,
        lost_records=after.lost_records,
        unrecorded=counters.unrecorded_bytes,
        orphaned=counters.orphan_bytes,
        pieces=counters.pieces,
        enables=counters.enables,
        restarts=counters.restarts,
        stopped_ns=counters.disabled_ns,
        wakeups_watermark=counters.wakeups_watermark,
        wakeups_timer=counters.wakeups_timer,
        snapshots=counters.windows,
        window=counters.used_bytes if plan.snapshot else 0,
        last_window=counters.window_bytes,
        last_taken=counters.window_taken_bytes,
        quarantined=(
            QUARANTINE_REASONS[counters.quarantine_reason] if counters.quarantined else None
        ),
        faults=counters.faults,
        starved=counters.starved,
        fill_buckets=counters.fill_buckets,
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
    return {
        "cpu": area.label.cpu,
        "tid": area.label.tid,
        "pmu": area.pmu,
        "ledger_basis": str(area.basis),
        "capacity_bytes": area.capacity,
        "high_watermark_bytes": area.high_watermark,
        "produced_bytes": area.produced,
        "stored_bytes": area.stored,
        "lost_bytes": area.lost,
        "overwritten_bytes": area.overwritten,
        "repeated_bytes": area.repeated,
        "in_flight_bytes": area.in_flight,
        "unaccounted_bytes": area.unaccounted,
        "records": area.records,
        "truncated": area.truncated,
        "partial": area.partial,
        "collisions": area.collisions,
        "lost_records": area.lost_records,
        "unrecorded_bytes": area.unrecorded,
        "orphan_bytes": area.orphaned,
        "pieces": area.pieces,
        "enables": area.enables,
        "restarts": area.restarts,
        "disabled_ns": area.stopped_ns,
        "wakeups": {"watermark": area.wakeups_watermark, "timer": area.wakeups_timer},
        "snapshots": area.snapshots,
        "window_bytes": area.window,
        "last_window_bytes": area.last_window,
        "last_taken_bytes": area.last_taken,
        "quarantined": area.quarantined,
        "faults": area.faults,
        "starved": area.starved,
        "fill_buckets": list(area.fill_buckets),
    }


def aux_cut(areas: Iterable[AuxBalance]) -> list[dict[str, Any]]:
    """Return the balance as in a manifest, for each area."""
    kept = (
        *("cpu", "tid", "pmu", "ledger_basis", "produced_bytes", "stored_bytes", "lost_bytes"),
        *("overwritten_bytes", "repeated_bytes", "in_flight_bytes", "unaccounted_bytes"),
        *("truncated", "partial", "collisions", "lost_records", "disabled_ns"),
    )
    return [{key: whole[key] for key in kept} for whole in map(aux_json, areas)]
