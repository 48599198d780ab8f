# SPDX-License-Identifier: Apache-2.0
"""The ledger: produced = stored + lost + overwritten + in flight, per ring, from counters.

Nothing here computes `produced` from `stored`. `produced` is the kernel's count, `stored` the
writer's, `in_flight` is what lies between them; each is counted where it happens, and
`unaccounted` is the difference that remains.

The counters of a running ring cannot be read at one instant. A balance rests on a bracket:

- before = kernel counters; a full pass, heads loaded after it; after = kernel counters

so whatever `before` counted was taken by the pass or is among the losses of `after`, and whatever
the pass took is counted in `after`. An interrupt may come between counting and writing: that is
the nesting, at most four records a ring. After the events were disabled both ends are equal, and
so are both sides of the balance.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from collectord._native._core import RingCounters, SidebandCounters
from collectord.ledger.drained_balance import quarantine
from collectord.model import (
    RING_DROPPED,
    RING_FULL,
    RING_PAUSED,
    Basis,
    LossKey,
    Reason,
    SinkStats,
    Stage,
    loss_name,
    loss_pairs,
    sum_known,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord.ledger.aux_ledger import AuxBalance
    from collectord.ledger.followed_processes import FollowedProcesses
    from collectord.ledger.present_loss import PresentLoss
    from collectord.model import GapCause, Produced, RingLabel

# Task, soft interrupt, interrupt, NMI: perf's contexts, each of which may hold one record that is
# counted and not yet visible in the ring (kernel/events/internal.h, get_recursion_context).
NESTING: Final = 4
# The number of fill steps by which the core counts passes.
FILL_BUCKETS: Final = 11
# Counters of a ring that the core does not drain.
NO_COUNTERS: Final = RingCounters._make(0 for _ in RingCounters._fields)._replace(
    fill_buckets=(0,) * FILL_BUCKETS
)


@dataclass(frozen=True, slots=True)
class Bracket:
    """One reading of a ring: kernel counters around a full pass, and the core's counters after it.

    Attributes:
        before: kernel counters before the pass.
        counters: the core's counters, read after the pass.
        after: kernel counters after the pass.
        closed: the events were disabled before all three were read.
        walked: events that passed the core unseen and were counted elsewhere. They replace the
            core's stored count: until the end as many as the kernel handed out, then those found
            in the segments. None: the core saw them all.
    """

    before: Produced
    counters: RingCounters
    after: Produced
    closed: bool = False
    walked: int | None = None

    @property
    def stored(self) -> int:
        """The number of events in segments."""
        return self.counters.stored if self.walked is None else self.walked

    @property
    def happened(self) -> int:
        """The number of events that cost the traced work a record, as far as anybody counts."""
        if self.after.value is not None:
            return self.after.value
        lost = self.after.lost
        return self.counters.samples + (self.counters.lost_records if lost is None else lost)


@dataclass(frozen=True, slots=True)
class RingBalance:
    """One ring's balance.

    Attributes:
        lost: keyed `<stage>/<reason>`, with every pair of its source.
        overwritten: records that a flight recorder's ring overwrote with newer ones. For an
            overwritable perf ring those that were written before its last snapshot began, and all
            once it is closed; None if no kernel counter counts records.
        counters: the core's counters at the reading.
        used_bytes: unread bytes at the start of the last pass.
        transport: how an ftrace ring is read; None for others.
        oldest_unread_age_ns: age of the oldest event that is still in an ftrace ring; None if
            there is none.
        window_ns: for a flight recorder's ring, how far back a snapshot would reach.
        held: it is a flight recorder's, and read for snapshots only.
        beside_aux: it has an AUX area, which receives its trace.
        in_bytes: its records cannot be counted: its counters count bytes.
        foreign_reads: events that another reader took out of an ftrace ring.
        resets: times that somebody else emptied it; its contents then cannot be counted.
    """

    label: RingLabel
    basis: Basis
    capacity_bytes: int
    produced: int | None
    stored: int
    lost: dict[str, int]
    overwritten: int | None
    in_flight: int
    unaccounted: int | None
    counters: RingCounters = NO_COUNTERS
    used_bytes: int = 0
    suppressed_by: tuple[int, ...] = ()
    transport: str | None = None
    oldest_unread_age_ns: int | None = None
    window_ns: int | None = None
    held: bool = False
    beside_aux: bool = False
    in_bytes: bool = False
    foreign_reads: int = 0
    resets: int = 0

    @property
    def quarantined(self) -> str | None:
        """The reason why it is not read any more; None while it is."""
        return quarantine(self.counters)

    @property
    def peak_fill(self) -> float:
        """The highest fill that the ring ever had; 1 is full."""
        return self.counters.high_watermark_bytes / self.capacity_bytes

    @property
    def faulty_bytes(self) -> int:
        """Bytes that were passed over: of refused contents, and of records without an end."""
        return self.counters.quarantined_bytes + self.counters.torn_bytes


@dataclass(frozen=True, slots=True)
class SessionBalance:
    """The sum over a session's data rings; `rings` holds its sideband rings too.

    Attributes:
        shared: losses that the kernel does not count by ring, included in `lost` and `produced`.
        overwritten: None if that of a ring is unknown.
        losing: the losses that are going on.
        suppressed: times in which a foreign BPF program may have hidden events, within the time of
            its basis.
        pauses: times in which its events were disabled, likewise.
        paused: why they are disabled now; empty while they are not.
        repeated: records that snapshots left out because the one before had them.
        snapshots: how often a flight recorder's windows were stored.
        snapshots_failed: how often they were not, or not at once.
        paused_ns: time during which the rings were stopped for that.
        sideband: known tasks and mappings, for the next segment's beginning.
        heard_ns: Unix time of the last heartbeat that arrived in all rings, at first of the start;
            0 if none is made.
        keep_ns: time that a flight recorder's rings are to reach back; 0 without such a promise.
        loss_class: the weight of its losses, as the configuration says.
        ends_ns: Unix time at which the session ends by itself, 0 for one that the daemon ends.
        gaps_ns: `GapCause` to the total time in which nothing was recorded, those of earlier
            processes included; empty where nobody keeps it.
        followed: of a session that follows processes, these.
    """

    name: str
    source: str
    scope: str
    basis: Basis
    state: str
    produced: int | None
    stored: int
    lost: dict[str, int]
    overwritten: int | None
    in_flight: int
    unaccounted: int | None
    rings: tuple[RingBalance, ...]
    segments: tuple[str, ...] = ()
    directory: str = ""
    degraded_reasons: tuple[str, ...] = ()
    losing: tuple[PresentLoss, ...] = ()
    sink: SinkStats = field(default_factory=SinkStats)
    shared: dict[str, int] = field(default_factory=dict)
    suppressed: tuple[Mapping[str, Any], ...] = ()
    pauses: tuple[Mapping[str, Any], ...] = ()
    aux: tuple[AuxBalance, ...] = ()
    snapshots: int = 0
    snapshots_failed: int = 0
    paused_ns: int = 0
    sideband: SidebandCounters = field(default_factory=SidebandCounters)
    heard_ns: int = 0
    keep_ns: int = 0
    paused: tuple[GapCause, ...] = ()
    loss_class: str = "normal"
    ends_ns: int = 0
    gaps_ns: Mapping[str, int] = field(default_factory=dict)
    followed: tuple[FollowedProcesses, ...] = ()

    @property
    def in_bytes(self) -> bool:
        """Whether its figures are bytes, because records in its rings cannot be counted."""
        return any(ring.in_bytes for ring in self.rings)

    @property
    def repeated(self) -> int:
        """The number of records that a snapshot left out because the one before it has them."""
        return sum(ring.counters.window_repeated for ring in self.rings)


def losses_of(counters: RingCounters, kernel: Produced) -> dict[LossKey, int]:
    """Return every record that is known to be lost, counted once.

    The kernel reports a full ring twice: exactly per event in PERF_FORMAT_LOST, and in
    PERF_RECORD_LOST, which comes late or never. The records count only before Linux 6.0, where the
    exact figure does not exist.
    """
    before_us = dict(kernel.losses) or {
        RING_FULL: kernel.lost or 0,
        RING_PAUSED: 0,
        RING_DROPPED: counters.lost_samples,
    }
    if kernel.lost is None:
        before_us[RING_FULL] = counters.lost_records
    return {
        **before_us,
        (Stage.STAGING, Reason.QUARANTINED): counters.faults,
        (Stage.SINK, Reason.DISK_FULL): counters.lost_disk_full,
        (Stage.SINK, Reason.DROPPED): counters.lost_dropped,
    }


def _taken(bracket: Bracket) -> int:
    """Return the number of samples that left the ring.

    While the core runs they move from `in_flight` to `stored` between two reads, so a single
    counter of the walk is used; at the end they no longer move, and the places are added up.
    """
    counters = bracket.counters
    if not bracket.closed and bracket.walked is None:
        return counters.samples
    return bracket.stored + counters.in_flight + counters.lost_disk_full + counters.lost_dropped


def _gone(reading: Produced, counters: RingCounters) -> int:
    """Return the events that will never leave the ring, by a reading of the kernel's counters."""
    lost = reading.lost if reading.lost is not None else counters.lost_records
    return lost + (reading.overwritten or 0)


def _unaccounted(bracket: Bracket) -> int | None:
    """Return the missing or surplus records; None if the kernel did not count."""
    before, after = bracket.before, bracket.after
    if before.value is None or after.value is None:
        return None
    taken = _taken(bracket)
    if before.read_events is not None and after.read_events is not None and not bracket.closed:
        # Events that ftrace handed out are counted where they are taken: rings that nobody drains
        # do not matter, nor what is lost in them.
        return max(0, before.read_events - taken, taken - after.read_events)
    missing = before.value - taken - _gone(after, bracket.counters)
    surplus = taken + _gone(before, bracket.counters) - after.value
    if bracket.closed:
        return max(missing, surplus)
    return max(0, missing - NESTING, surplus)


def balance_ring(
    label: RingLabel,
    basis: Basis,
    capacity_bytes: int,
    bracket: Bracket,
    suppressed_by: tuple[int, ...] = (),
    *,
    held: bool = False,
    beside_aux: bool = False,
    in_bytes: bool = False,
) -> RingBalance:
    """Return the common part of a ring's balance; see `RingHandle.balance` of each kind.

    Args:
        label: of the ring.
        basis: of its plan; `lost_only` from the moment a foreign BPF program was seen.
        capacity_bytes: size of its data area.
        bracket: the last reading.
        suppressed_by: ids of foreign BPF programs on its tracepoints.
        held: see `RingBalance`.
        beside_aux: see `RingBalance`.
        in_bytes: see `RingBalance`.
    """
    counters, after = bracket.counters, bracket.after
    exact = basis is Basis.EXACT
    return RingBalance(
        label=label,
        basis=basis,
        capacity_bytes=capacity_bytes,
        produced=after.value if exact else None,
        stored=bracket.stored,
        lost={loss_name(key): n for key, n in losses_of(counters, after).items()},
        overwritten=after.overwritten,
        in_flight=counters.in_flight,
        unaccounted=_unaccounted(bracket) if exact else None,
        counters=counters,
        used_bytes=counters.used_bytes,
        suppressed_by=suppressed_by,
        held=held,
        beside_aux=beside_aux,
        in_bytes=in_bytes,
    )


def add_losses(rings: Iterable[RingBalance]) -> dict[str, int]:
    """Return the losses of several rings, by `<stage>/<reason>`."""
    total: Counter[str] = Counter()
    for ring in rings:
        total.update(ring.lost)
    return dict(total)


def balance_session(
    name: str,
    source: str,
    scope: str,
    rings: tuple[RingBalance, ...],
    *,
    shared: Mapping[LossKey, int] | None = None,
    suppressed: Iterable[Mapping[str, Any]] = (),
    pauses: Iterable[Mapping[str, Any]] = (),
    overwritten: int = 0,
    aux: tuple[AuxBalance, ...] = (),
) -> SessionBalance:
    """Add up a session's data rings. Its basis is the weakest of theirs.

    `shared` are the losses that belong to no single ring, and `overwritten` events that an earlier
    process left to tell of. The files and troubles of the session are for the caller to add.
    """
    data = tuple(ring for ring in rings if ring.label.has_data)
    basis = Basis.weakest([ring.basis for ring in data])
    exact = basis is Basis.EXACT
    produced = sum_known(ring.produced for ring in data) if exact else None
    by_name = {loss_name(key): n for key, n in (shared or {}).items()}
    lost = Counter({loss_name(key): 0 for key in loss_pairs(source)})
    lost.update(add_losses(data))
    lost.update(by_name)
    return SessionBalance(
        name=name,
        source=source,
        scope=scope,
        basis=basis,
        state="running",
        produced=produced + sum(by_name.values()) if produced is not None else None,
        stored=sum(ring.stored for ring in data),
        lost=dict(lost),
        overwritten=sum_known((overwritten, *(ring.overwritten for ring in data))),
        in_flight=sum(ring.in_flight for ring in data),
        unaccounted=sum_known(ring.unaccounted for ring in data) if exact else None,
        rings=rings,
        shared=by_name,
        suppressed=tuple(suppressed),
        pauses=tuple(pauses),
        aux=aux,
    )
