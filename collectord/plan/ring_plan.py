# SPDX-License-Identifier: Apache-2.0
"""The plan of one ring: its sizes, and the events that write into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collectord.model import Basis, RingRole
from collectord.text.foreign import plain

if TYPE_CHECKING:
    from collectord.plan.aux_areas import AuxPlan
    from collectord.plan.event_attrs import EventPlan


@dataclass(frozen=True, slots=True)
class RingPlan:
    """One ring to map.

    Attributes:
        source: the session's source it belongs to, as in labels: "perf", "perf-2", "tracefs".
        role: data, or the sideband of the dummy event.
        cpu: the CPU, or -1 for one ring per thread: then this ring is the pattern of them all.
        requested_bytes: requested size, rounded up to a power of two of pages; for an ftrace ring
            to whole sub-buffers.
        data_bytes: size that fits the mlock budget; never more than `requested_bytes`.
        watermark_bytes: fill at which the kernel wakes the drain; 0 for a flight recorder's ring.
        events: events that write into it. The first one owns the ring (it is mapped and polled),
            the others are sent there by SET_OUTPUT. Under a task scope each is opened per thread.
            None for an ftrace ring: its instance enables them for all rings.
        aux: its AUX area, None without. The area's event is the first of `events`.
        overwrite: a perf ring that overwrites its oldest records, and is read for snapshots only.
        slots: of a BPF program that is a flight recorder, how many it has on this CPU; its records
            are numbered, so those that are overwritten are counted.
        own_basis: basis of the balance of a ring without events.
    """

    source: str
    role: RingRole
    cpu: int
    requested_bytes: int
    data_bytes: int
    watermark_bytes: int
    events: tuple[EventPlan, ...]
    aux: AuxPlan | None = None
    overwrite: bool = False
    slots: int = 0
    own_basis: Basis = Basis.EXACT  # an ftrace ring counts all that is written into it

    @property
    def basis(self) -> Basis:
        """The basis of the ring's balance: the weakest of its events that make samples.

        Nobody counts records that are overwritten.
        """
        if not self.events:
            return self.own_basis
        bases = [event.basis for event in self.events if not event.aux]
        gives_up = self.overwrite or (self.aux is not None and self.aux.snapshot)
        return Basis.weakest([*bases, Basis.LOST_ONLY] if gives_up or not bases else bases)

    def to_dict(self) -> dict[str, Any]:
        """Return the ring for `check --json`; its events by index."""
        return {
            **plain(self, "events", "aux", "own_basis"),
            "events": [event.index for event in self.events],
            "ledger_basis": str(self.basis),
            "aux": self.aux.to_dict() if self.aux is not None else None,
        }
