# SPDX-License-Identifier: Apache-2.0
"""The ledger: produced = stored + lost + overwritten + in flight, per ring, from counters.

Nothing here computes `produced` from `stored`. `produced` is what the kernel counted, `stored`
what the writer wrote, `in_flight` what lies between them; each is counted where it happens, and
`unaccounted` is what does not add up.

The counters of a running ring cannot be read at one instant. A balance rests on a bracket:

    before = kernel counters   a full pass, heads loaded after it   after = kernel counters

so whatever `before` counted was taken by the pass or is among the losses of `after`, and whatever
the pass took is counted in `after`. An interrupt may be between counting and writing: that is the
nesting, at most four records a ring. After the events were disabled both ends are equal, and so is
the balance.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from collectord._native._core import QUARANTINE_REASONS, SidebandCounters
from collectord.model import Basis, LossKey, Reason, RingRole, Stage, loss_name, loss_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord._native._core import RingCounters
    from collectord.ledger.aux_ledger import AuxBalance
    from collectord.ledger.losing import Losing
    from collectord.model import Produced, RingLabel

# Task, soft interrupt, interrupt, NMI: perf's contexts, each of which may hold one record that is
# counted and not yet visible in the ring (kernel/events/internal.h, get_recursion_context).
NESTING: Final = 4
# How many steps of fill the core counts passes by.
FILL_BUCKETS: Final = 11


@dataclass(frozen=True, slots=True)
class Bracket:
    """One reading of a ring: kernel counters around a full pass, and our counters after it.

    Attributes:
        before: kernel counters before the pass.
        counters: the core's counters, read after the pass.
        after: kernel counters after the pass.
        closed: the events were disabled before all three were read.
        walked: events that passed the core unseen and were counted elsewhere, in the place of
            what the core has stored: while they are on their way as many as the kernel handed
            out, in the end those found in the segments. None: the core saw them all.
    """

    before: Produced
    counters: RingCounters
    after: Produced
    closed: bool = False
    walked: int | None = None

    @property
    def stored(self) -> int:
        """Events in segments."""
        return self.counters.stored if self.walked is None else self.walked


@dataclass(frozen=True, slots=True)
class RingBalance:
    """One ring's balance.

    Attributes:
        lost: keyed `<stage>/<reason>`, with every pair of its source.
        overwritten: records that a flight recorder's ring gave up for newer ones. Of an
            overwritable perf ring those that were written before its last snapshot began, and all
            once it is closed; None where no counter of the kernel tells records.
        overwritten_bytes: of an overwritable perf ring, up to its last snapshot.
        repeated: records that a snapshot left out since the one before it has them.
        repeated_bytes: the same, with records that are no samples.
        snapshots: windows that were taken of it.
        transport: how an ftrace ring is read; None for others.
        oldest_unread_age_ns: age of the oldest event that is still in an ftrace ring; None where
            there is none.
        window_ns: the same for a flight recorder's ring: how far back a snapshot would reach.
        held: it is a flight recorder's.
        beside_aux: an AUX area hangs on it, which is what its trace goes into.
        in_bytes: nobody knows its records: what counts them counts bytes.
        faults: times that its contents were refused; each lost at least the record that was,
            and the rest of what was passed over is unaccounted.
        faulty_bytes: that were passed over then, and those of records without an end.
        neutralised: records of a type that readers do not know, stored as padding.
        pages: sub-buffers that were taken out of an ftrace ring.
        spliced_bytes: of them, those that went to the file without being copied.
        torn_pages: sub-buffers that were given up as a part of them found no room in the file.
        foreign_reads: events that somebody else took out of an ftrace ring.
        resets: times that somebody else emptied it; what was in it then nobody can count.
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
    high_watermark_bytes: int = 0
    used_bytes: int = 0
    bytes: int = 0
    records: int = 0
    wakeups_watermark: int = 0
    wakeups_timer: int = 0
    throttles: int = 0
    starved: int = 0
    relabelled: int = 0
    quarantined: str | None = None
    suppressed_by: tuple[int, ...] = ()
    last_event_ns: int = 0
    fill_buckets: tuple[int, ...] = (0,) * FILL_BUCKETS
    overwritten_bytes: int = 0
    repeated: int = 0
    repeated_bytes: int = 0
    snapshots: int = 0
    transport: str | None = None
    oldest_unread_age_ns: int | None = None
    window_ns: int | None = None
    held: bool = False
    beside_aux: bool = False
    in_bytes: bool = False
    faults: int = 0
    faulty_bytes: int = 0
    neutralised: int = 0
    pages: int = 0
    spliced_bytes: int = 0
    torn_pages: int = 0
    foreign_reads: int = 0
    resets: int = 0


@dataclass(frozen=True, slots=True)
class SinkStats:
    """A session's segments: kept ones, and those that retention deleted, by reason.

    `unsealed` are those that were closed without a seal, `early` those that were closed before all
    was read that names their samples.
    """

    segments: int = 0
    segment_bytes: int = 0
    deleted: dict[str, int] = field(default_factory=dict)
    write_errors: int = 0
    unsealed: int = 0
    early: int = 0


@dataclass(frozen=True, slots=True)
class SessionBalance:
    """The sum over a session's data rings; `rings` holds its sideband rings too.

    Attributes:
        shared: losses that the kernel does not tell by ring, among `lost` and `produced`.
        overwritten: None where that of a ring is not known.
        losing: where records are being lost at present.
        suppressed: times in which a foreign BPF program may have hidden events, of those that its
            basis holds for.
        repeated: records that snapshots left out since the one before had them.
        snapshots: how often a flight recorder's windows were stored.
        snapshots_failed: how often not, or not at once.
        paused_ns: time that the rings stood still for that.
        sideband: what is known of tasks and mappings, for the next segment's beginning.
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
    segments: tuple[str, ...]
    directory: str = ""
    degraded_reasons: tuple[str, ...] = ()
    losing: tuple[Losing, ...] = ()
    sink: SinkStats = field(default_factory=SinkStats)
    shared: dict[str, int] = field(default_factory=dict)
    suppressed: tuple[Mapping[str, Any], ...] = ()
    aux: tuple[AuxBalance, ...] = ()
    snapshots: int = 0
    snapshots_failed: int = 0
    paused_ns: int = 0
    sideband: SidebandCounters = field(default_factory=SidebandCounters)

    @property
    def in_bytes(self) -> bool:
        """What its rings hold are not records that anybody knows: its figures are bytes."""
        return any(ring.in_bytes for ring in self.rings)

    @property
    def repeated(self) -> int:
        """Records that a snapshot left out since the one before it has them."""
        return sum(ring.repeated for ring in self.rings)


def losses_of(counters: RingCounters, kernel: Produced) -> dict[LossKey, int]:
    """Every record that is known to be lost, once.

    The kernel tells of a full ring twice: exactly per event in PERF_FORMAT_LOST, and in
    PERF_RECORD_LOST, which comes late or never. The records count only before 6.0, where the
    exact figure does not exist.
    """
    before_us = dict(kernel.losses) or {
        (Stage.KERNEL_RING, Reason.RING_FULL): kernel.lost or 0,
        (Stage.KERNEL_RING, Reason.PAUSED): 0,
        (Stage.KERNEL_RING, Reason.DROPPED): counters.lost_samples,
    }
    if kernel.lost is None:
        before_us[Stage.KERNEL_RING, Reason.RING_FULL] = counters.lost_records
    return {
        **before_us,
        (Stage.STAGING, Reason.QUARANTINED): counters.faults,
        (Stage.SINK, Reason.DISK_FULL): counters.lost_disk_full,
        (Stage.SINK, Reason.DROPPED): counters.lost_dropped,
    }


def _taken(bracket: Bracket) -> int:
    """Samples that left the ring.

    While the core runs they move from `in_flight` to `stored` between two reads, so one counter
    of the walk has to do; at the end each is where it stays, and those places are added up.
    """
    counters = bracket.counters
    if not bracket.closed and bracket.walked is None:
        return counters.samples
    return bracket.stored + counters.in_flight + counters.lost_disk_full + counters.lost_dropped


def _gone(reading: Produced, counters: RingCounters) -> int:
    """Events that will never leave the ring, as a reading of the kernel's counters has it."""
    lost = reading.lost if reading.lost is not None else counters.lost_records
    return lost + (reading.overwritten or 0)


def _unaccounted(bracket: Bracket) -> int | None:
    """What does not add up: missing records, or surplus ones; None where nobody counted."""
    before, after = bracket.before, bracket.after
    if before.value is None or after.value is None:
        return None
    taken = _taken(bracket)
    if before.read_events is not None and after.read_events is not None and not bracket.closed:
        # What ftrace handed out is counted where it is taken: rings that nobody drains do not
        # matter, nor what is lost in them.
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
    """What the balances of all rings have; see `RingHandle.balance` of each kind.

    Args:
        label: whose ring it is.
        basis: of its plan; `lost_only` from the moment a foreign BPF program was seen.
        capacity_bytes: size of its data area.
        bracket: the last reading.
        suppressed_by: ids of foreign BPF programs on its tracepoints.
        held: it is a flight recorder's, and read for snapshots only.
        beside_aux: an AUX area hangs on it.
        in_bytes: its records nobody knows.
    """
    counters, after = bracket.counters, bracket.after
    exact = basis is Basis.EXACT
    return RingBalance(
        label=label,
        basis=basis,
        capacity_bytes=capacity_bytes,
        high_watermark_bytes=counters.high_watermark_bytes,
        used_bytes=counters.used_bytes,
        produced=after.value if exact else None,
        stored=bracket.stored,
        lost={loss_name(key): n for key, n in losses_of(counters, after).items()},
        overwritten=after.overwritten,
        in_flight=counters.in_flight,
        unaccounted=_unaccounted(bracket) if exact else None,
        bytes=counters.bytes,
        records=counters.records,
        wakeups_watermark=counters.wakeups_watermark,
        wakeups_timer=counters.wakeups_timer,
        throttles=counters.throttles,
        starved=counters.starved,
        relabelled=counters.relabelled,
        quarantined=(
            QUARANTINE_REASONS[counters.quarantine_reason] if counters.quarantined else None
        ),
        suppressed_by=suppressed_by,
        last_event_ns=counters.last_sample_ns,
        fill_buckets=counters.fill_buckets,
        overwritten_bytes=counters.window_overwritten_bytes,
        repeated=counters.window_repeated,
        repeated_bytes=counters.window_repeated_bytes,
        snapshots=counters.windows,
        held=held,
        beside_aux=beside_aux,
        in_bytes=in_bytes,
        faults=counters.faults,
        faulty_bytes=counters.quarantined_bytes + counters.torn_bytes,
        neutralised=counters.neutralised,
        pages=counters.pages,
        spliced_bytes=counters.spliced_bytes,
        torn_pages=counters.torn_pages,
    )


def sum_known(values: Iterable[int | None]) -> int | None:
    """The sum, or None as soon as one part is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def add_losses(rings: Iterable[RingBalance]) -> dict[str, int]:
    """Losses of several rings, by `<stage>/<reason>`."""
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
    state: str,
    directory: str = "",
    segments: tuple[str, ...] = (),
    degraded_reasons: tuple[str, ...] = (),
    sink: SinkStats | None = None,
    shared: Mapping[LossKey, int] | None = None,
    suppressed: Iterable[Mapping[str, Any]] = (),
    aux: tuple[AuxBalance, ...] = (),
) -> SessionBalance:
    """Add a session's data rings up. Its basis is the weakest of theirs.

    `shared` is what was lost of all rings together.
    """
    data = tuple(ring for ring in rings if ring.label.role is RingRole.DATA)
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
        state=state,
        produced=produced + sum(by_name.values()) if produced is not None else None,
        stored=sum(ring.stored for ring in data),
        lost=dict(lost),
        overwritten=sum_known(ring.overwritten for ring in data),
        in_flight=sum(ring.in_flight for ring in data),
        unaccounted=sum_known(ring.unaccounted for ring in data) if exact else None,
        rings=rings,
        segments=segments,
        directory=directory,
        degraded_reasons=degraded_reasons,
        sink=sink or SinkStats(),
        shared=by_name,
        suppressed=tuple(suppressed),
        aux=aux,
    )
