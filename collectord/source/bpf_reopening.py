# SPDX-License-Identifier: Apache-2.0
"""Perf rings of BPF programs that are opened anew, for a CPU that was offline.

The programs stay, with their tables and counts. A table keeps the old event of a CPU, which has no
ring any more, until it gets the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from collectord.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from collectord.model import RingLabel
    from collectord.source.base import Hotplug
    from collectord.source.ring import RingHandle


class Submitting(Protocol):
    """Running programs, as far as the rings of single CPUs concern them. See `OpenBpf`."""

    def shut(self, cpu: int) -> None:
        """Close the gates of a CPU whose rings are to be replaced."""

    def renew(self, cpu: int) -> None:
        """Let the next perf ring of a CPU count on from the end of the last one."""

    def connect(self, cpu: int) -> None:
        """Give each program the perf rings of a CPU that it submits to."""

    def slots_of(self, cpu: int) -> Sequence[RingHandle]:
        """Return the slots of a CPU that is back, which take what comes from now on."""

    def shared(self, ring: RingHandle) -> RingHandle:
        """Return a perf ring as all programs that submit into it let it be."""

    def has_slots(self, label: RingLabel) -> bool:
        """Return whether a ring is slots of a program, which no event of perf fills."""

    def admit(self, cpus: Iterable[int]) -> None:
        """Open the gates of CPUs that have new rings."""


class BpfReopening:
    """Closes and opens the perf rings of single CPUs. See `source.base.Hotplug`.

    Args:
        programs: submit into them.
        rings: closes and opens them.
    """

    def __init__(self, programs: Submitting, rings: Hotplug) -> None:
        self._programs = programs
        self._rings = rings

    def stop(self, cpu: int) -> None:
        """See `source.base.Hotplug`."""
        self._programs.shut(cpu)
        self._rings.stop(cpu)

    def leave(self, cpu: int) -> None:
        """See `source.base.Hotplug`."""
        self._programs.renew(cpu)
        self._rings.leave(cpu)

    def join(self, cpu: int) -> tuple[RingHandle, ...]:
        """See `source.base.Hotplug`."""
        rings = self._rings.join(cpu)
        try:
            self._programs.connect(cpu)
        except KernelError:
            self._rings.leave(cpu)
            raise
        slots = self._programs.slots_of(cpu)
        return (*slots, *map(self._programs.shared, rings))

    def enable(self, rings: Sequence[RingHandle]) -> None:
        """See `source.base.Hotplug`."""
        self._rings.enable([ring for ring in rings if not self._programs.has_slots(ring.label)])
        self._programs.admit(ring.label.cpu for ring in rings)
