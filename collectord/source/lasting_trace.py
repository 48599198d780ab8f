# SPDX-License-Identifier: Apache-2.0
"""A block trace that goes on after its process, for the next one.

The kernel keeps the trace with all that is unread in it. What the next process needs to know is
how far it was read and what was counted. That is in memory beside the trace's note, so a kill
leaves it as well as a stop does.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from collectord.kernel.values.kept_rings import NOTE_BYTES, Prior
from collectord.kernel.values.kept_trace import decode, note_at, slots_at
from collectord.kernel.values.relay_files import NOT_KEPT
from collectord.model import RING_DROPPED, RING_OVERRUN, LossKey, loss_name
from collectord.source.kept_memory import KeptMemory
from collectord.source.kept_ring import Legacy, Use

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from collectord.kernel.port import Kernel
    from collectord.kernel.values.relay_files import OpenedTrace


class KeptTrace:
    """The memory of a trace.

    Args:
        opened: the trace.
        cpus: for how many CPUs the memory is.
        dropped: records that had found no room before this process.
        stack: unmaps it.

    Attributes:
        legacy: what earlier processes leave to this one.
        use: what this process makes of it.
    """

    def __init__(self, opened: OpenedTrace, cpus: int, dropped: int, stack: ExitStack) -> None:
        self._cpus = cpus
        self._memory = KeptMemory(opened.kept, cpus, stack)
        self.use = Use()
        self.dropped = dropped
        notes = os.pread(opened.kept, NOTE_BYTES * cpus, note_at(0))
        rings = [decode(notes, at) for at in range(0, len(notes), NOTE_BYTES)]
        overrun = sum(ring.missing for ring in rings)
        found = Prior(
            taken=sum(ring.events for ring in rings),
            lost={loss_name(RING_DROPPED): dropped, loss_name(RING_OVERRUN): overrun},
        )
        self.legacy = Legacy(self._memory.text, Prior(), found, names=False)

    def of(self, cpu: int, stack: ExitStack) -> dict[str, Any]:
        """Return what the handle of a CPU's ring has of it; the stack closes its note."""
        note = self._memory.ring(cpu, stack)
        return {"note": note, "slots_at": slots_at(self._cpus, cpu), "use": self.use}


class OpenTrace:
    """A trace, until it is removed, or left to the next process.

    Args:
        kernel: has it.
        opened: the trace.
        cpus: for how many CPUs its memory is.
        stack: closes it.

    Attributes:
        id: the kernel's.
        leaves: it is left. Until it begins here, one that an earlier process had is.
        kept: its memory, None if it ends with this process.

    Raises:
        KernelError: the records that found no room are not known.
    """

    def __init__(self, kernel: Kernel, opened: OpenedTrace, cpus: int, stack: ExitStack) -> None:
        self._kernel = kernel
        self.id = opened.id
        self.leaves = opened.resumed
        self.kept: KeptTrace | None = None
        stack.callback(self._close)
        if opened.kept != NOT_KEPT:
            dropped = kernel.blktrace_dropped(self.id) if opened.resumed else 0
            self.kept = KeptTrace(opened, cpus, dropped, stack)

    def _close(self) -> None:
        if self.leaves:
            self._kernel.leave_blktrace(self.id)
        else:
            self._kernel.close_blktrace(self.id)

    def start(self) -> None:
        """Start it, and have it end with its session. Raises KernelError."""
        self.leaves = False
        self._kernel.start_blktrace(self.id)

    def quiet(self) -> None:
        """Stop new records, unless it is left."""
        if self.leaves:
            return
        if self.kept is not None:
            self.kept.use.ended = True
        self._kernel.quiet_blktrace(self.id)

    def lost(self) -> Mapping[LossKey, int]:
        """Return the records that found no room, and what earlier processes had not told of.

        Raises:
            KernelError: the kernel's count cannot be read.
        """
        lost = Counter({RING_DROPPED: self._kernel.blktrace_dropped(self.id)})
        if self.kept is not None:
            lost[RING_DROPPED] -= self.kept.dropped
            lost.update(self.kept.legacy.shared_losses())
        return lost
