# SPDX-License-Identifier: Apache-2.0
"""`Kernel` carried out in this process: system calls, ioctls and files of the kernel."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

from collectord.folders.trust import PROC
from collectord.kernel.bpf.program_notes import RUN
from collectord.kernel.local.local_bpf import LocalBpf
from collectord.kernel.local.local_host import Places
from collectord.kernel.local.local_perf import LocalPerf
from collectord.kernel.local.local_relay import LocalRelay
from collectord.kernel.local.local_tracefs import LocalTracefs
from collectord.kernel.probe.kernel_probe import probe
from collectord.kernel.tracefs.mount import Tracefs

if TYPE_CHECKING:
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.values.facts_wanted import FactsWanted


class LinuxKernel(LocalPerf, LocalBpf, LocalTracefs, LocalRelay):
    """The running kernel.

    Args:
        proc: root of procfs.
        sys: root of sysfs.
        tracefs: tracefs, mounted or not; the one below `sys` by default.
        run: where processes note which BPF programs are theirs.
    """

    def __init__(
        self,
        *,
        proc: Path = PROC,
        sys: Path = Path("/sys"),
        tracefs: Tracefs | None = None,
        run: Path = RUN,
    ) -> None:
        super().__init__(Places(proc, sys, tracefs or Tracefs.below(sys), run))

    def facts(self, wanted: FactsWanted) -> KernelFacts:
        """See `Kernel.facts`."""
        if wanted.mount:
            return probe(self, wanted)
        with self.tracefs.seen() as tracefs:
            seeing = copy(self)
            seeing.tracefs = tracefs
            return probe(seeing, wanted)
