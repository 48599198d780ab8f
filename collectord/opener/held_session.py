# SPDX-License-Identifier: Apache-2.0
"""The rings of one session, held with their mappings, whoever drains them.

A ring lives as long as one mapping of it: with its descriptor alone the kernel frees the ring, and
counts nothing that it refuses then.
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from collectord.errors import KernelError
from collectord.kernel.values.kept_rings import (
    EVENTS_MAX,
    NOTE_BYTES,
    STATE_BYTES,
    KeptEvent,
    KeptRing,
    Prior,
)
from collectord.plan.kept import digest
from collectord.source.perf_opening import Opening

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from collectord.kernel.port import Kernel
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.ring import RingHandle

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NOTE: Final = struct.Struct("<5Q")  # as `_core.RingNote` says


class HeldSession:
    """The rings of one session, from their opening until `end`.

    Args:
        kernel: opens them.
        plan: says which.
        prior: what is known of rings that these replace.

    Raises:
        CollectordError: they cannot be opened; none is left open.
    """

    def __init__(self, kernel: Kernel, plan: SessionPlan, prior: Prior) -> None:
        self.digest = digest(plan)
        self.prior = prior
        self.is_drained = False
        self._kernel = kernel
        with ExitStack() as own:
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            self.memory = os.memfd_create("collectord-notes", flags)
            own.callback(os.close, self.memory)
            size = STATE_BYTES + NOTE_BYTES * len(plan.rings)
            os.ftruncate(self.memory, size + -size % kernel.page_bytes)
            # Whoever drains writes notes into it, and must not take them away.
            fcntl.fcntl(self.memory, fcntl.F_ADD_SEALS, _SEALS)
            opening = Opening(kernel, plan, own, ())
            opening.run()
            opened = opening.result()
            self._rings = tuple(enumerate(opened.rings))
            self._stack = own.pop_all()

    def parts(self) -> Iterator[tuple[KeptRing, list[int]]]:
        """Yield the rings as they are handed out, with their descriptors."""
        for number, ring in self._rings:
            for at in range(0, len(ring.counters), EVENTS_MAX):
                some = ring.counters[at : at + EVENTS_MAX]
                part = KeptRing(
                    number,
                    ring.geometry.data_bytes,
                    ring.geometry.watermark_bytes,
                    tuple(KeptEvent(c.event_index, c.event_id, c.read_format) for c in some),
                )
                yield part, [counter.fd for counter in some]

    @property
    def ring_count(self) -> int:
        """The number of its rings."""
        return len(self._rings)

    def is_on(self, cpus: Collection[int]) -> bool:
        """Whether one of its rings is on one of these CPUs."""
        return any(ring.label.cpu in cpus for _, ring in self._rings)

    def end(self) -> Prior:
        """Close the rings; return what is known of them for those that replace them."""
        state = os.pread(self.memory, STATE_BYTES, 0).rstrip(b"\0").decode("utf-8", "replace")
        before = Prior(state) if state else self.prior
        taken = lost = left = 0
        for number, ring in self._rings:
            if ring.label.has_data:
                own = self._taken(number)
                produced, refused = self._counted(ring)
                taken += own
                lost += refused
                if ring.is_exact:
                    left += max(0, produced - refused - own)
        self._stack.close()
        return Prior(before.state, before.taken + taken, before.lost + lost, before.left + left)

    def _taken(self, number: int) -> int:
        note = os.pread(self.memory, _NOTE.size, STATE_BYTES + NOTE_BYTES * number)
        turn, *pairs = _NOTE.unpack(note)
        return int(pairs[2 * (turn & 1) + 1])

    def _counted(self, ring: RingHandle) -> tuple[int, int]:
        """Stop a ring's events; return what they counted and what of it did not fit."""
        produced = refused = 0
        for counter in ring.counters:
            try:
                self._kernel.disable(counter.fd)
                reading = self._kernel.read_counter(counter.fd, counter.read_format)
            except KernelError:  # the CPU is gone, and the counter with it
                continue
            produced += reading.value
            refused += reading.lost or 0
        return produced, refused
