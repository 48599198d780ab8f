# SPDX-License-Identifier: Apache-2.0
"""BPF ring buffers, into which programs submit by collectord.h, one for all CPUs.

The map is made with the program; the daemon maps and drains it. Only the program counts what
cannot be reserved in it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from collectord._native._core import BpfMap
from collectord.codec.perf_attr import sample_time_offset
from collectord.errors import KernelError
from collectord.ledger.record_ledger import NESTING
from collectord.model import Geometry, RingLabel
from collectord.source.kept_ring import Hold, Lasting
from collectord.source.ring import CounterFd, RingHandle
from collectord.text.units import show_bytes

if TYPE_CHECKING:
    from contextlib import ExitStack

    from collectord._native._core import Core, Ring, RingNote, Stream
    from collectord.ledger.record_ledger import Bracket, RingBalance
    from collectord.model import Basis
    from collectord.plan.ring_plan import RingPlan
    from collectord.source.loaded_program import LoadedTable

# Ids of samples: far above those that the kernel gives to events, which are of the same files.
_FIRST_ID: Final = 1 << 62
# Bytes of `struct collectord_record` before the event.
_FIELDS_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRing(RingHandle):
    """A BPF ring buffer.

    Attributes:
        map: its mapping.
        time_offset: see `Core.add_bpf_ring`.
        writers: CPUs that submit.
    """

    map: BpfMap
    time_offset: int
    writers: int
    counts_on: bool = True

    def register(self, core: Core, shard: int, stream: Stream) -> Ring:
        """See `RingHandle`."""
        return self._register(core, shard, stream, held=self.held)

    def _register(
        self, core: Core, shard: int, stream: Stream, *, held: bool, note: RingNote | None = None
    ) -> Ring:
        (counter,) = self.counters
        return core.add_bpf_ring(
            shard,
            stream,
            self.map,
            self.fd,
            id=counter.event_id,
            fields_bytes=_FIELDS_BYTES,
            time_offset=self.time_offset,
            held=held,
            note=note,
        )

    def balance(
        self, bracket: Bracket, basis: Basis, suppressed_by: tuple[int, ...] = ()
    ) -> RingBalance:
        """See `RingHandle`: on each CPU a submission may be counted that is not there yet."""
        before = bracket.before
        if before.value is not None and not bracket.closed:
            known = before.value - NESTING * (self.writers - 1)
            bracket = replace(bracket, before=replace(before, value=known))
        return RingHandle.balance(self, bracket, basis, suppressed_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingBuffer(Lasting, BufferRing):
    """A BPF ring buffer that another process holds.

    Attributes:
        hold: see `Hold`.
    """

    hold: Hold


def defines(ring: RingPlan, *, page_bytes: int, writers: int) -> str:
    """Return lines that have collectord.h submit into a ring buffer.

    Each CPU wakes the daemon for its share of the watermark.
    """
    wake = max(1, ring.watermark_bytes // writers)
    pages = ring.data_bytes // page_bytes
    return f"#define COLLECTORD_RING_PAGES {pages}\n#define COLLECTORD_WAKE_BYTES {wake}\n"


def open_ring(
    session: str, plan: RingPlan, table: LoadedTable, *, writers: int, stack: ExitStack
) -> BufferRing:
    """Map a program's ring buffer.

    Args:
        session: its name.
        plan: plan of the ring.
        table: the program's table; its descriptor stays open until the stack is closed.
        writers: CPUs that submit.
        stack: unmaps it.

    Raises:
        KernelError: it cannot be mapped.
    """
    (event,) = plan.events
    try:
        bpf_map = BpfMap(table.fd, table.max_entries)
    except OSError as error:
        size = show_bytes(table.max_entries)
        message = f"a BPF ring buffer of {size} cannot be mapped"
        raise KernelError(message, syscall="mmap", errno=error.errno or 0) from error
    stack.callback(bpf_map.close)
    event_id = _FIRST_ID + event.index
    return BufferRing(
        map=bpf_map,
        fd=table.fd,
        basis=plan.basis,
        geometry=Geometry(table.max_entries, plan.watermark_bytes, plan.requested_bytes),
        label=RingLabel(session, plan.source, plan.role, plan.cpu),
        counters=(CounterFd(table.fd, event.index, event_id, event.attr.read_format),),
        time_offset=sample_time_offset(event.attr),
        writers=writers,
    )


def kept(ring: BufferRing, hold: Hold) -> LastingBuffer:
    """Return a ring buffer as one that another process holds."""
    return LastingBuffer(**{one.name: getattr(ring, one.name) for one in fields(ring)}, hold=hold)
