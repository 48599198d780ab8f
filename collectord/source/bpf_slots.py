# SPDX-License-Identifier: Apache-2.0
"""The slots of BPF programs that are flight recorders, by collectord.h: a region for each CPU.

The program writes and overwrites them, and numbers its records. A snapshot copies a region while
the program goes on; from the numbers in the copy the core tells what was taken, overwritten and
torn. So nothing is ever paused, and the ledger is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from collectord._native._core import SlotMap
from collectord.codec import bpf_struct
from collectord.codec.perf_attr import sample_time_offset
from collectord.errors import BpfError, CodecError, KernelError
from collectord.model import (
    RING_DROPPED,
    RING_FULL,
    Geometry,
    LossKey,
    Produced,
    Reason,
    RingLabel,
    Stage,
)
from collectord.programs.bpf_program import HEADS, RECORD, SLOTS
from collectord.source.ring import CounterFd, RingHandle
from collectord.text.nearest import did_you_mean
from collectord.text.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from collectord._native._core import Core, Ring, RingCounters, Stream
    from collectord.codec.bpf_struct import Layout
    from collectord.ledger.record_ledger import Bracket, RingBalance
    from collectord.model import Basis
    from collectord.plan.program_plan import ProgramPlan
    from collectord.plan.ring_plan import RingPlan
    from collectord.programs.program_manifest import RecordConfig
    from collectord.source.loaded_program import Loaded, LoadedTable

# Ids of samples: far above those that the kernel gives to events, and those of ring buffers.
_FIRST_ID: Final = 3 << 61
_IDS_OF_CPU: Final = 1 << 16
# Bytes of a record's data in its first slot, and in each further one, of which there are seven.
_FIRST_BYTES: Final = 12
_MORE_BYTES: Final = 20
_SIZES: Final = range(_FIRST_BYTES, _FIRST_BYTES + 7 * _MORE_BYTES + 1, _MORE_BYTES)
_TASK_BYTES: Final = 4
_MISSED: Final[LossKey] = (Stage.PROGRAM, Reason.RECURSION)
_UNPLACED: Final[LossKey] = (Stage.PROGRAM, Reason.DROPPED)


class Kind(NamedTuple):
    """A kind of record, as the core takes it: see `Core.add_slot_ring`."""

    id: int
    size_bytes: int
    task_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRing(RingHandle):
    """The slots of one CPU.

    Attributes:
        map: the mapping of all of them.
        kinds: the kinds of records, from kind 1 on.
        time_offset: see `Core.add_slot_ring`.
        before: records and missed ones as it was opened.
    """

    map: SlotMap
    kinds: tuple[Kind, ...]
    time_offset: int
    before: tuple[int, int]
    held: bool = True
    counts_on: bool = True

    has_window: ClassVar[bool] = True

    def register(self, core: Core, shard: int, stream: Stream) -> Ring:
        """See `RingHandle`."""
        return core.add_slot_ring(
            shard,
            stream,
            self.map,
            cpu=self.label.cpu,
            kinds=[(kind.id, kind.size_bytes, kind.task_at) for kind in self.kinds],
            time_offset=self.time_offset,
            held=self.held,
        )

    def read(self, skipped: int) -> Produced:
        """Return what the program has counted on this CPU.

        Args:
            skipped: runs that the kernel skipped, which belong to no CPU.
        """
        records, missed = self.map.counted(self.label.cpu)
        missed += skipped - self.before[1]
        value = records - self.before[0] + missed
        losses = {_MISSED: missed, _UNPLACED: 0, RING_FULL: 0, RING_DROPPED: 0}
        return Produced(
            value=value if self.is_exact else None,
            lost=missed,
            losses=losses,
            per_event=((self.counters[0].event_id, value, missed),),
        )

    def anew(self) -> SlotRing:
        """Return the same slots as from now on, for a CPU that is back."""
        return replace(self, before=self.map.counted(self.label.cpu))

    def produced(self, reading: Produced, counters: RingCounters, gone: int) -> Produced:
        """See `RingHandle`: the core tells from the numbers what was overwritten, and torn.

        What is in the slots is not looked for before it is in a snapshot, or at the end.
        """
        del gone
        torn = counters.lost_samples
        return replace(
            reading,
            lost=(reading.lost or 0) + torn,
            losses={**reading.losses, RING_DROPPED: torn},
            overwritten=counters.overwritten,
            read_events=counters.samples,
        )

    def balance(
        self, bracket: Bracket, basis: Basis, suppressed_by: tuple[int, ...] = ()
    ) -> RingBalance:
        """See `RingHandle`.

        Until the next snapshot nothing tells what is in the slots yet, and what was overwritten:
        both are in flight.
        """
        ring = RingHandle.balance(self, bracket, basis, suppressed_by)
        in_flight = ring.in_flight
        if ring.produced is not None and not bracket.closed:
            told = ring.stored + (ring.overwritten or 0) + sum(ring.lost.values())
            in_flight = max(in_flight, ring.produced - told)
        return replace(ring, window_ns=bracket.counters.window_held_ns, in_flight=in_flight)


class Kept(NamedTuple):
    """The slots of a program on each CPU, and the layouts of its records by their events."""

    slots: tuple[SlotRing, ...]
    records: Mapping[str, Layout]


NOTHING_KEPT: Final = Kept((), {})


class SlotRecording:
    """Takes windows of slots, which never stop. See `source.base.Recording`."""

    stands_still = False
    freeze_fds: tuple[int, ...] = ()

    def frozen(self) -> bool:
        """Return False: no event stops them."""
        return False

    def pause(self) -> None:
        """Do nothing: the slots are copied while programs write them."""

    def resume(self) -> None:
        """Do nothing."""


def defines(ring: RingPlan, cpus: int) -> str:
    """Return lines that have collectord.h make the slots of so many CPUs."""
    return (
        f"#define COLLECTORD_CPUS {cpus}\n"
        f"#define COLLECTORD_SLOTS_EACH {ring.slots}\n"
        f"#define COLLECTORD_SLOTS {ring.slots * cpus}\n"
    )


def open_rings(
    session: str, plan: ProgramPlan, rings: Sequence[RingPlan], loaded: Loaded, stack: ExitStack
) -> Kept:
    """Map the slots of a program; one that keeps no records has none.

    Args:
        session: its name.
        plan: of the program.
        rings: of each CPU that is recorded.
        loaded: the program; its descriptors stay open until the stack is closed.
        stack: unmaps them.

    Raises:
        BpfError: its records cannot be described.
        KernelError: they cannot be mapped.
    """
    if not rings:
        return NOTHING_KEPT
    heads, slots = _table(plan, loaded, HEADS), _table(plan, loaded, SLOTS)
    layouts = record_layouts(plan, loaded)
    kinds = [
        Kind(
            one.event_index,
            layouts[one.record.event].size,
            _task_at(one.record, layouts[one.record.event]),
        )
        for one in plan.kept
    ]
    try:
        slot_map = SlotMap(
            heads.fd,
            slots.fd,
            cpus=heads.max_entries,
            slots_each=slots.max_entries // heads.max_entries,
        )
    except OSError as error:
        size = show_bytes(slots.max_entries * slots.leaf_bytes)
        message = f"{plan.name}: {size} of slots cannot be mapped"
        raise KernelError(message, syscall="mmap", errno=error.errno or 0) from error
    stack.callback(slot_map.close)
    made = (
        _ring(
            RingLabel(session, ring.source, ring.role, ring.cpu), ring, kinds, slot_map, heads.fd
        )
        for ring in rings
    )
    return Kept(tuple(made), layouts)


def _ring(
    label: RingLabel, plan: RingPlan, kinds: Sequence[Kind], slot_map: SlotMap, fd: int
) -> SlotRing:
    """Return the slots of a CPU; ids of samples are those of `kinds`, and of the CPU."""
    attr = plan.events[0].attr
    own = tuple(one._replace(id=_FIRST_ID + plan.cpu * _IDS_OF_CPU + one.id) for one in kinds)
    return SlotRing(
        map=slot_map,
        kinds=own,
        fd=fd,
        basis=plan.basis,
        geometry=Geometry(plan.data_bytes, 0, plan.requested_bytes),
        label=label,
        counters=tuple(
            CounterFd(fd, kind.id, one.id, attr.read_format)
            for kind, one in zip(kinds, own, strict=True)
        ),
        time_offset=sample_time_offset(attr),
        before=slot_map.counted(plan.cpu),
    )


def record_layouts(plan: ProgramPlan, loaded: Loaded) -> dict[str, Layout]:
    """Return the layouts of a program's records, by their events.

    Raises:
        BpfError: one cannot be described, has another size than those that fill slots, or lacks a
            field that its manifest names.
    """
    return {
        one.record.event: _layout(plan, one.record, _table(plan, loaded, f"{RECORD}{number}"))
        for number, one in enumerate(plan.kept, 1)
    }


def _layout(plan: ProgramPlan, record: RecordConfig, table: LoadedTable) -> Layout:
    name = f"{plan.name}: struct {record.struct}"
    if table.leaf_bytes not in _SIZES:
        raise BpfError(
            f"{name} has {table.leaf_bytes} bytes",
            program=plan.name,
            step="describe",
            hint=f"records have {', '.join(map(str, _SIZES))} bytes",
        )
    try:
        layout = bpf_struct.from_bcc(table.leaf, table.leaf_bytes, plan.name)
    except CodecError as error:
        raise BpfError(
            f"{name} cannot be described: {error.message}",
            program=plan.name,
            step="describe",
            text=str(error),
            hint="use integers, char arrays and arrays of integers",
        ) from error
    known = {field.name: field for field in layout.fields}
    shown = (column.field for column in record.columns)
    tasks = [*filter(None, (record.task,)), *record.comms.values()]
    for field in (*shown, *tasks):
        if field not in known:
            raise BpfError(
                f"{name} has no field {field!r}, which {plan.name}.toml names",
                program=plan.name,
                step="describe",
                hint=did_you_mean(field, known) or f"it has {', '.join(known)}",
            )
    for field in tasks:
        if known[field].size != _TASK_BYTES or known[field].count:
            raise BpfError(
                f"{name}: {field} cannot name a thread: it does not have 4 bytes",
                program=plan.name,
                step="describe",
            )
    return layout


def _task_at(record: RecordConfig, layout: Layout) -> int | None:
    return next((field.offset for field in layout.fields if field.name == record.task), None)


def _table(plan: ProgramPlan, loaded: Loaded, name: str) -> LoadedTable:
    try:
        return loaded.tables[name]
    except KeyError:
        raise BpfError(
            f"{plan.name}: {name} is not among the compiled tables",
            program=plan.name,
            step="describe",
        ) from None
