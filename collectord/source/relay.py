# SPDX-License-Identifier: Apache-2.0
"""The `relay` source: a blktrace of a device, or the files of a channel that a client made.

Facts of the kernel that shape this module (kernel/relay.c, kernel/trace/blktrace.c):

- blktrace counts the records that it could not write for the whole device, in a file of its own;
  those that it wrote are numbered on each CPU, and carry the numbers. So the source reports
  losses, and the core, which walks the records, production.
- Other channels have no counters, and their bytes are all that is known.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from collectord.codec.blktrace import ALL_ACTIONS, Setup
from collectord.errors import MissingFeature
from collectord.kernel.values.kept_trace import memory_bytes
from collectord.kernel.values.relay_files import Keep
from collectord.model import (
    RING_DROPPED,
    RING_OVERRUN,
    RING_UNCOVERED,
    Basis,
    Geometry,
    Produced,
    RingLabel,
    RingRole,
)
from collectord.plan.held_resources import block_digest
from collectord.plan.relay_source import CHANNEL_BYTES, RelayPlan
from collectord.source.base import Abilities, LateRing
from collectord.source.channel_ring import BlktraceRing, ChannelRing, LastingBlktraceRing
from collectord.source.lasting_trace import OpenTrace
from collectord.source.late_joining import LateJoining

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from collectord._native._core import Core, Stream
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.relay_files import RelayFile
    from collectord.model import LossKey
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.base import Hotplug
    from collectord.source.ring import RingHandle

# A pdu has 64 KiB at most, and a record is not larger than its sub-buffer.
_LONGEST_BYTES: Final = 48 + 65535


def open_session(
    kernel: Kernel,
    plan: SessionPlan,
    stack: ExitStack,
    *,
    exclude_tids: tuple[int, ...] = (),  # noqa: ARG001 - blktrace cannot leave threads out
    abort: int = -1,  # noqa: ARG001 - nothing here takes long
) -> OpenRelay:
    """Set up the trace, not started, or open the channel. See `source.base.Source`.

    Raises:
        NoSuchTarget, MissingFeature, MissingPrivilege, KernelError: see `Kernel.open_blktrace`
            and `Kernel.open_channel`.
    """
    relay = plan.payload_of(RelayPlan)
    with ExitStack() as own:
        kernel.reserve_files(plan.files)
        trace: OpenTrace | None = None
        if relay.is_blktrace:
            cpus = max(kernel.possible_cpus()) + 1
            made = kernel.open_blktrace(relay.device, _setup(relay), _keep(plan, cpus))
            trace, files = OpenTrace(kernel, made, cpus, own), made.files
        else:
            files = kernel.open_channel(relay.channel)
            for file in files:
                own.callback(kernel.close, file.fd)
        if not files:
            raise MissingFeature(f"{relay.name} has no relay files", feature="relay")
        rings = tuple(_handle(plan, trace, file, own) for file in files)
        stack.push(own.pop_all())
    opened = OpenRelay(kernel, plan, trace, rings)
    if trace is not None and plan.sink.single_file is None:
        opened.hotplug = (LateJoining(opened, partial(_open_late, kernel, plan, trace), stack),)
    return opened


def _setup(relay: RelayPlan) -> Setup:
    return Setup(
        actions=relay.actions & ALL_ACTIONS,
        subbuf_bytes=relay.subbuf_bytes,
        subbufs=relay.subbufs,
        start_lba=relay.start_lba,
        end_lba=relay.end_lba,
        pid=relay.pid,
    )


def _keep(plan: SessionPlan, cpus: int) -> Keep:
    if not plan.payload_of(RelayPlan).lasts:
        return Keep(plan.name)
    return Keep(plan.name, block_digest(plan), memory_bytes(cpus))


def _open_late(
    kernel: Kernel, plan: SessionPlan, trace: OpenTrace, cpu: int, stack: ExitStack
) -> RingHandle:
    """Open the file that the kernel made for a CPU since."""
    kernel.reserve_files(1)
    file = kernel.open_late_file(trace.id, cpu)
    stack.callback(kernel.close_late_file, trace.id, cpu)
    return _handle(plan, trace, file, stack)


def _handle(
    plan: SessionPlan, trace: OpenTrace | None, file: RelayFile, stack: ExitStack
) -> RingHandle:
    relay = plan.payload_of(RelayPlan)
    size = relay.buffer_bytes or CHANNEL_BYTES
    kind: Callable[..., RingHandle] = BlktraceRing if relay.is_blktrace else ChannelRing
    if trace is not None and trace.kept is not None:
        kind = partial(LastingBlktraceRing, **trace.kept.of(file.cpu, stack))
    return kind(
        fd=file.fd,
        basis=Basis.EXACT if relay.is_blktrace else Basis.NONE,
        geometry=Geometry(size, relay.subbuf_bytes, size),
        label=RingLabel(plan.name, plan.source, RingRole.DATA, file.cpu),
        longest_bytes=min(relay.subbuf_bytes, _LONGEST_BYTES) if relay.is_blktrace else 0,
    )


class OpenRelay:
    """The files of a trace or a channel. See `source.base.OpenSource`."""

    def __init__(
        self,
        kernel: Kernel,
        plan: SessionPlan,
        trace: OpenTrace | None,
        rings: tuple[RingHandle, ...],
    ) -> None:
        self._kernel = kernel
        self.rings = rings
        self.event_ids: Mapping[int, tuple[int, ...]] = {}
        self.target_fds: tuple[int, ...] = ()
        self.hotplug: tuple[Hotplug, ...] = ()
        self._plan = plan
        self._trace = trace
        self._late: Counter[int] = Counter()  # records of files that nobody opened

    @property
    def abilities(self) -> Abilities:
        """See `source.base.OpenSource`."""
        kept = self._trace.kept if self._trace is not None else None
        return Abilities(
            shared=(self,),
            late=(self,),
            hotplug=self.hotplug,
            lasting=(kept.legacy,) if kept is not None else (),
            outliving=(self,) if kept is not None else (),
        )

    def add_ring(self, ring: RingHandle) -> None:
        """Add a ring that the kernel made after the opening."""
        self.rings += (ring,)

    def drop_ring(self, cpu: int) -> None:
        """Forget the ring of a CPU."""
        self.rings = tuple(ring for ring in self.rings if ring.label.cpu != cpu)

    def add_stream(self, core: Core) -> Stream:
        """See `source.base.OpenSource`."""
        return core.add_relay_stream()

    def enable(self) -> None:
        """Start the trace; a channel's client writes when it wants. Raises KernelError."""
        if self._trace is not None:
            self._trace.start()

    def outlive(self) -> bool:
        """See `source.base.Outliving`."""
        if self._trace is not None:
            self._trace.leaves = True
        return True

    def disable(self) -> None:
        """Stop the trace's writing, unless it goes on; its buffers can still be read."""
        if self._trace is not None:
            self._trace.quiet()

    def read_produced(self, ring: RingHandle) -> Produced:  # noqa: ARG002 - the protocol's
        """Return an empty reading: the core sees the kernel's numbers in the records it walks."""
        return Produced(
            value=None, lost=0, losses={RING_DROPPED: 0, RING_OVERRUN: 0, RING_UNCOVERED: 0}
        )

    def shared_losses(self) -> Mapping[LossKey, int]:
        """Return the records that found no room, on any CPU. Raises KernelError.

        Of a trace that earlier processes had, also what these had not told.
        """
        return self._trace.lost() if self._trace is not None else {}

    def late_rings(self, *, last: bool) -> tuple[LateRing, ...]:
        """Return files that nobody opened; at the end they are read, and so counted."""
        if self._trace is None or self._trace.leaves or not last:
            return ()
        self._late.update(self._kernel.take_late_records(self._trace.id))
        losses = {RING_DROPPED: 0, RING_OVERRUN: 0}
        return tuple(
            LateRing(
                RingLabel(self._plan.name, self._plan.source, RingRole.DATA, cpu),
                self._plan.rings[0].data_bytes,
                Produced(value=count, lost=count, losses={**losses, RING_UNCOVERED: count}),
            )
            for cpu, count in sorted(self._late.items())
            if count
        )
