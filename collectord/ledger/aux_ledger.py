# SPDX-License-Identifier: Apache-2.0
"""The ledger of AUX areas, in bytes: produced = stored + lost + overwritten + in flight.

What the kernel handed over is its own `aux_head`, what was traced at all is the event's counter
where the PMU counts bytes; what is stored was counted by the writer. So

    truncated = counter - head        no room in the area, in the kernel
    unaccounted = head - stored - lost behind the ring - in flight

and neither is computed from the other side's figures. Where the PMU does not count, lost bytes
are known by their occurrences only: AUX records with the flag TRUNCATED.

While the event runs the counter is ahead of the head by what is traced and not handed over yet,
which is at most what the area holds. So what is certainly truncated is the difference without
that, and it never goes down; the last reading has all. Where by then the head is ahead of the
counter, or less is truncated than was certain before, the two contradict each other, and that is
unaccounted.

An area that runs free has no such balance: what nobody asked for is overwritten. Of one whose
head counts, the overwritten bytes are known; of one whose head is a place, nothing is.
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
# What bytes of AUX can be lost by; each exists from the beginning.
AUX_LOSS_PAIRS: Final[tuple[LossKey, ...]] = (
    TRUNCATED,
    (Stage.STAGING, Reason.QUARANTINED),
    (Stage.SINK, Reason.DISK_FULL),
    (Stage.SINK, Reason.DROPPED),
)
FLAGS: Final = ("truncated", "partial", "collision")


@dataclass(frozen=True, slots=True)
class AuxReading:
    """One reading of the kernel's figures of an area.

    Attributes:
        head: bytes that the kernel handed over; of a free-running area see `HeadRule`.
        traced: bytes that the PMU counted, lost ones too; None where it does not count bytes.
        lost_records: records of its events that did not fit the data ring, None before 6.0.
    """

    head: int
    traced: int | None
    lost_records: int | None


@dataclass(frozen=True, slots=True)
class AuxBracket:
    """Kernel figures around a pass, and the core's counters after it.

    Attributes:
        truncated: bytes that earlier readings have shown to be truncated.
    """

    before: AuxReading
    counters: AuxCounters
    after: AuxReading
    closed: bool = False
    truncated: int = 0


@dataclass(frozen=True, slots=True)
class AuxBalance:
    """One area's balance; all in bytes but where a name says otherwise.

    Attributes:
        basis: `exact` where every byte that was traced is counted by somebody else than us,
            `lost_only` where what was lost is known by its occurrences.
        produced: bytes traced, or, where the PMU does not count, handed over; None if unknown.
        lost: keyed `<stage>/<reason>`; truncated bytes are None where the PMU does not count.
        overwritten: gone before a snapshot took them; None where nobody knows.
        repeated: in a snapshot's window, and stored with an earlier one.
        lost_records: AUX records that did not fit the data ring; no byte is lost by that.
        unrecorded: bytes that no AUX record told of.
        orphaned: bytes that were taken without the record that says where they end.
        pieces: that the trace was stored in.
        enables: times that its events were enabled again, `restarts` of them as the kernel had
            stopped one for want of room.
        window: bytes that the area holds for a snapshot, 0 of a stream.
        last_window: bytes that the last snapshot found, `last_taken` of them new.
        fill_buckets: passes by fill, as of a ring.
        stopped_ns: time that a full area had its event stopped.
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
        """AUX records by flag, in the order of `FLAGS`."""
        return dict(zip(FLAGS, (self.truncated, self.partial, self.collisions), strict=True))


def balance_aux(label: RingLabel, plan: AuxPlan, bracket: AuxBracket) -> AuxBalance:
    """The balance of one area."""
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
    """Bytes that found no room in an area of `capacity` bytes, as far as that is certain.

    None where the PMU does not count bytes.
    """
    after = bracket.after
    if after.traced is None:
        return None
    pending = 0 if bracket.closed else capacity
    return max(bracket.truncated, after.traced - after.head - pending, 0)


def _unaccounted(bracket: AuxBracket, truncated: int | None) -> int:
    """Bytes that were handed over and are nowhere, or are somewhere and were not handed over.

    In the end also those by which the PMU's count and the head contradict each other.
    """
    counters = bracket.counters
    if not bracket.closed:
        # Between two readings of the head; bytes move from one of our places to the next
        # meanwhile, so the one count of what was taken has to do.
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
    """An area's entry in `--json` and in `/v1/status`."""
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
    """The balance as a manifest records it, for each area."""
    kept = (
        *("cpu", "tid", "pmu", "ledger_basis", "produced_bytes", "stored_bytes", "lost_bytes"),
        *("overwritten_bytes", "repeated_bytes", "in_flight_bytes", "unaccounted_bytes"),
        *("truncated", "partial", "collisions", "lost_records", "disabled_ns"),
    )
    return [{key: whole[key] for key in kept} for whole in map(aux_json, areas)]
