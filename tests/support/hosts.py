# SPDX-License-Identifier: Apache-2.0
"""Facts of an imagined host, for planning without a kernel."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Final

from collectord.codec.tracepoint import Tracepoint
from collectord.facts.kernel_facts import BpfFacts, KernelFacts, PmuFacts
from collectord.kernel.bpf import catalogue

TRACEPOINTS: Final = {
    Tracepoint("sched", "sched_switch"): 300,
    Tracepoint("sched", "sched_wakeup"): 301,
    Tracepoint("sched", "sched_stat_runtime"): 302,
    Tracepoint("sched", "sched_process_exec"): 303,
    Tracepoint("sched", "sched_process_fork"): 304,
    Tracepoint("sched", "sched_process_exit"): 305,
    Tracepoint("raw_syscalls", "sys_enter"): 20,
}

# It has the program of the installed configuration, and nothing that compiles it.
WITHOUT_BCC: Final = BpfFacts(
    problem="no interpreter has bcc",
    programs={"blackbox": catalogue.load("blackbox", owner=os.geteuid())},
)
_HOST: Final = KernelFacts(
    release="6.12.0-test",
    arch="x86_64",
    page_size=4096,
    cpus_online=(0, 1, 2, 3),
    cpus_possible=tuple(range(8)),
    capabilities=frozenset({"CAP_PERFMON", "CAP_IPC_LOCK"}),
    hardware_pmu=True,
    bpf=WITHOUT_BCC,
    tracefs_path="/sys/kernel/tracing",
    tracepoints=TRACEPOINTS,
    pmus={
        "cpu": PmuFacts(
            type=4,
            formats={
                "event": "config:0-7,32-35",
                "umask": "config:8-15",
                "edge": "config:18",
                "ldlat": "config1:0-15",
                "wide": "config3:0-7",
            },
            events={"mem-loads": "event=0xcd,umask=0x1,ldlat=3", "open": "event=1,umask=?"},
        ),
        "uncore_imc": PmuFacts(type=13, formats={"event": "config:0-7"}, cpus=(0, 2), core=False),
        "uprobe": PmuFacts(type=8, formats={"retprobe": "config:0"}),
    },
)


def host(**changes: Any) -> KernelFacts:  # noqa: ANN401 - fields of any type
    """Return a capable host of four CPUs, with the changes given."""
    return replace(_HOST, **changes)


def unprivileged(**changes: Any) -> KernelFacts:  # noqa: ANN401 - fields of any type
    """Return the same host for a user without capabilities, at the default paranoid level."""
    return replace(host(capabilities=frozenset(), euid=1000), **changes)
