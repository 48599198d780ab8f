# SPDX-License-Identifier: Apache-2.0
"""AUX areas: the events of a source that write into one, its size, and how it is read.

An AUX area belongs to a data ring, and the event that has it must own that ring: it is opened and
mapped first, and all other records of the ring are sent there (rb_alloc_aux() and perf_mmap() in
kernel/events). So events with and without AUX share the rings of their source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from collectord.codec.aux_pmu import CS_ETM, INTEL_PT, decoder_of
from collectord.codec.perf_attr import AuxAction
from collectord.config.rules import CHUNKS_MIN
from collectord.errors import PlanError, UsageError
from collectord.plan import ring_sizes
from collectord.text.foreign import plain
from collectord.text.units import show_bytes, show_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.config.schema_session import PerfSourceConfig
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.event_attrs import EventPlan
    from collectord.text.units import Share

# perf's sizes: for a privileged user, and within what everybody may pin.
AUX_BYTES: Final = 4 << 20
AUX_UNPRIVILEGED_BYTES: Final = 128 << 10
# CoreSight's sinks hand their trace over only when the event stops; simpleperf's interval.
CS_ETM_FLUSH_NS: Final = 100_000_000
_U32_MAX: Final = (1 << 32) - 1


class Framing(StrEnum):
    """The form of AUX pieces in a perf.data file."""

    AUXTRACE = "auxtrace"  # perf has a decoder for the PMU
    HIDDEN = "hidden"  # perf has none, and would refuse a file with a record that it cannot decode


class HeadRule(StrEnum):
    """The meaning of a free-running AUX area's head."""

    MONOTONIC = "monotonic"  # a count of all bytes
    OFFSET = "offset"  # a place in the area
    LEARNED = "learned"  # one of the two, which shows once the area has wrapped


@dataclass(frozen=True, slots=True)
class AuxPlan:
    """The AUX area of a ring.

    Attributes:
        pmu: PMU that writes into it.
        requested_bytes: requested size, rounded up to a power of two of pages.
        data_bytes: size that fits the mlock budget.
        watermark_bytes: fill at which the kernel wakes the drain; 0 for a free-running area.
        framing: form of its pieces in the file.
        whole_records: a piece ends where an AUX record ends.
        head_rule: meaning of its head while it runs free.
        snapshot: it runs free, and is read for snapshots only.
        flush_ns: interval at which its event is stopped and started, to hand over its trace; 0 for
            never.
        counts_bytes: read(2) of its event returns the bytes that were traced, lost ones included.
    """

    pmu: str
    requested_bytes: int
    data_bytes: int
    watermark_bytes: int
    framing: Framing
    whole_records: bool
    head_rule: HeadRule
    snapshot: bool
    flush_ns: int
    counts_bytes: bool

    @property
    def stamped_by_tsc(self) -> bool:
        """Whether its decoder places a piece in time by the time-stamp counter."""
        return self.pmu == INTEL_PT

    def to_dict(self) -> dict[str, Any]:
        """Return the area for `check --json`."""
        return plain(self, "whole_records", "head_rule")

    def words(self) -> str:
        """Return the area as `check` prints it."""
        size = show_bytes(self.data_bytes)
        if self.data_bytes < self.requested_bytes:
            size += f" (of {show_bytes(self.requested_bytes)})"
        how = "overwrites, for snapshots" if self.snapshot else ""
        how = how or f"wake at {show_bytes(self.watermark_bytes)}"
        flush = f", flushed every {show_ns(self.flush_ns)}" if self.flush_ns else ""
        lost = "lost bytes are counted" if self.counts_bytes else "lost bytes are not counted"
        return f"{size} AUX of {self.pmu}, {how}{flush}, {lost}"


@dataclass(frozen=True, slots=True)
class AuxSet:
    """The AUX areas of equal rings, before the budget; fields as in `AuxPlan`."""

    pmu: str
    requested_bytes: int
    watermark: Share
    snapshot: bool
    flush_ns: int
    counts_bytes: bool

    def plan(self, data_bytes: int) -> AuxPlan:
        """Return the area at the size that the budget allows."""
        watermark = 0 if self.snapshot else ring_sizes.watermark_bytes(self.watermark, data_bytes)
        kind = decoder_of(self.pmu)
        # perf_aux_output_end() takes the head of a free-running area from the driver. CoreSight's
        # head is a count, Intel PT's and Arm SPE's are a place; another PMU's may be either.
        known = HeadRule.MONOTONIC if kind == CS_ETM else HeadRule.OFFSET
        return AuxPlan(
            pmu=self.pmu,
            requested_bytes=self.requested_bytes,
            data_bytes=data_bytes,
            watermark_bytes=min(watermark, _U32_MAX),
            framing=Framing.AUXTRACE if kind else Framing.HIDDEN,
            # Perf's decoders do not join what two pieces share: neither CoreSight's buffers nor a
            # packet of Intel PT. Where an AUX record ends, the hardware had stopped.
            whole_records=kind is not None,
            head_rule=known if kind else HeadRule.LEARNED,
            snapshot=self.snapshot,
            flush_ns=0 if self.snapshot else self.flush_ns,
            counts_bytes=self.counts_bytes,
        )


def arrange(events: Sequence[EventPlan]) -> tuple[EventPlan, ...]:
    """Order events so that they can be opened: those with an AUX area first.

    Such an event leads its group. Events that pause and resume it become members of that group, as
    the kernel requires (perf_get_aux_event() in kernel/events/core.c).

    Raises:
        PlanError: events of two PMUs that have AUX: a ring has one area.
        UsageError: an event pauses or resumes, and none can be paused; or one is given twice.
    """
    owners = [event for event in events if event.aux]
    others = [event for event in events if not event.aux]
    pmus = sorted({event.pmu for event in owners})
    if len(pmus) > 1:
        # Two PMUs that perf decodes cannot share a session either (`ring_set`).
        decoded = sum(decoder_of(pmu) is not None for pmu in pmus)
        raise PlanError(
            f"{' and '.join(pmus)} are in one source, but a ring has one AUX area",
            what=pmus[1],
            hint=f"give each a {'session' if decoded > 1 else '[[session.source]]'} of its own",
        )
    _check_exclusive(owners)
    acting = AuxAction.PAUSE | AuxAction.RESUME
    for event in events:
        if event.attr.aux_action & acting and not owners:
            raise UsageError(
                f"{event.name!r}: no event of its source has an AUX area to pause or resume",
                hint="add the AUX event, with aux-action=start-paused if it is to begin later",
            )
    if not owners:
        return tuple(events)
    led = next(e for e in events if e.group == owners[0].group and e.leader)
    attr = replace(
        owners[0].attr,
        disabled=True,
        pinned=led.attr.pinned,
        enable_on_exec=led.attr.enable_on_exec,
    )
    leader = replace(owners[0], leader=True, attr=attr)
    members, rest = [], []
    for event in (*owners[1:], *others):
        if event.attr.aux_action & acting or event.group == leader.group:
            attr = replace(event.attr, disabled=False, pinned=False, enable_on_exec=False)
            members.append(replace(event, group=leader.group, leader=False, attr=attr))
        else:
            rest.append(event)
    return _numbered((leader, *members, *_in_place_of_leaders(rest)))


def _check_exclusive(owners: Sequence[EventPlan]) -> None:
    """Raise UsageError for two events of an exclusive PMU, which the kernel refuses with EBUSY.

    It allows one event on a CPU or in a task of each PMU whose trace perf decodes
    (PERF_PMU_CAP_EXCLUSIVE); of another PMU two events that differ may be two things.
    """
    # Compared without the attributes that depend on the place in a group.
    attrs = [replace(e.attr, disabled=False, pinned=False, enable_on_exec=False) for e in owners]
    for number, event in enumerate(owners):
        if attrs[number] in attrs[:number] or (number and decoder_of(event.pmu)):
            raise UsageError(
                f"{owners[0].name!r} and {event.name!r} are in one source, but {event.pmu} traces "
                "for one event at a time",
                hint="leave one out",
            )


def _in_place_of_leaders(events: Sequence[EventPlan]) -> list[EventPlan]:
    """Make the next event of a group its leader where the leader moved to another group."""
    on_exec = any(event.attr.enable_on_exec for event in events)
    led: set[int] = set()
    found = []
    for event in events:
        if event.group in led or event.leader:
            found.append(event)
        else:
            attr = replace(event.attr, disabled=True, enable_on_exec=on_exec)
            found.append(replace(event, leader=True, attr=attr))
        led.add(event.group)
    return found


def _numbered(events: Sequence[EventPlan]) -> tuple[EventPlan, ...]:
    """Number groups from 0 in the order of their leaders."""
    numbers: dict[int, int] = {}
    for event in events:
        numbers.setdefault(event.group, len(numbers))
    return tuple(replace(event, group=numbers[event.group]) for event in events)


def aux_set(
    source: PerfSourceConfig, events: Sequence[EventPlan], facts: KernelFacts, *, snapshot: bool
) -> AuxSet | None:
    """Return the AUX areas of a source, None if no event of it has one.

    Raises:
        PlanError: the area is larger than any ring should have.
        UsageError: keys of AUX in a source without it.
    """
    owner = next((event for event in events if event.aux), None)
    wanted = source.aux.in_bytes(facts.page_size, 0)
    if owner is None:
        if wanted or source.aux_flush is not None:
            raise UsageError(
                "there is an AUX size or flush interval, but no event of the source has an AUX "
                "area",
                hint="`collectord list` shows the PMUs that have one",
            )
        return None
    default = AUX_BYTES if facts.locks_freely else AUX_UNPRIVILEGED_BYTES
    size = ring_sizes.ring_bytes(wanted or default, facts.page_size)
    ring_sizes.check_size(size, "aux", "an AUX area")
    usual_ns = CS_ETM_FLUSH_NS if decoder_of(owner.pmu) == CS_ETM else 0
    return AuxSet(
        pmu=owner.pmu,
        requested_bytes=size,
        watermark=source.aux_watermark,
        snapshot=snapshot,
        flush_ns=usual_ns if source.aux_flush is None else source.aux_flush,
        counts_bytes=all(event.counts_bytes for event in events if event.aux),
    )


def chunk_bytes(areas: Sequence[AuxPlan], chunk: int, staging: int) -> tuple[int, str]:
    """Return the size of a staging chunk that holds any piece, and a note if it grew.

    A piece of trace whose records must not be cut may be as large as its area, and takes up to
    twice that with its header and the data ring's records.

    Raises:
        PlanError: staging holds too few chunks of that size.
    """
    needed = max((2 * area.data_bytes for area in areas if area.whole_records), default=0)
    if needed <= chunk:
        return chunk, ""
    if staging < CHUNKS_MIN * needed:
        raise PlanError(
            f"AUX records must not be split and need chunks of {show_bytes(needed)}, and staging "
            f"of {show_bytes(staging)} has room for fewer than {CHUNKS_MIN}",
            what="staging",
            hint="a larger `staging` in [daemon], or a smaller `aux`",
        )
    return needed, f"staging chunks of {show_bytes(needed)}: AUX records stay whole"
