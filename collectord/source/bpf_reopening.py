# SPDX-License-Identifier: Apache-2.0
"""Perf rings of BPF programs that are opened anew, for a CPU that was offline.

The programs stay, with their tables and counts. A table keeps the old event of a CPU, which has no
ring any more, until it gets the new one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collectord.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.source.base import Hotplug
    from collectord.source.open_bpf import OpenBpf
    from collectord.source.ring import RingHandle


class BpfReopening:
    """Closes and opens the perf rings of single CPUs. See `source.base.Hotplug`.

    Args:
        programs: submit into them.
        rings: closes and opens them.
    """

    def __init__(self, programs: OpenBpf, rings: Hotplug) -> None:
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
        return (*slots, *(replace(ring, counts_on=True) for ring in rings))

    def enable(self, rings: Sequence[RingHandle]) -> None:
        """See `source.base.Hotplug`."""
        self._rings.enable([ring for ring in rings if not self._programs.has_slots(ring.label)])
        self._programs.admit(ring.label.cpu for ring in rings)
