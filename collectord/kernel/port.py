# SPDX-License-Identifier: Apache-2.0
"""The port: the one seam for privileged calls.

Nothing outside `collectord.kernel` makes a privileged call: verbs are given a `Kernel` and pass it
on; only `__main__` names the one that is made. Every operation takes and returns plain values and
file descriptors, so that a separate process can carry it out and pass descriptors over a socket;
`linux.LinuxKernel` carries them out in this process. Whatever must be closed or removed later is
known by a descriptor or a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from collectord.kernel.ports.bpf_port import BpfPort
from collectord.kernel.ports.host_port import HostPort
from collectord.kernel.ports.perf_port import PerfPort
from collectord.kernel.ports.relay_port import RelayPort
from collectord.kernel.ports.tracefs_port import TracefsPort

if TYPE_CHECKING:
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.values.facts_wanted import FactsWanted


class Kernel(HostPort, PerfPort, BpfPort, TracefsPort, RelayPort, Protocol):
    """Privileged operations. Each raises a `KernelError` that says what is missing."""

    def facts(self, wanted: FactsWanted) -> KernelFacts:
        """Probe this host, by trying; events and instances that are made are removed again.

        Raises:
            KernelError: sysfs does not tell the CPUs.
        """
