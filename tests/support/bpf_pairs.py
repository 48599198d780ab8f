# SPDX-License-Identifier: Apache-2.0
"""A BPF program as a user would write it: a matching pair of source and manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from collectord.facts.kernel_facts import BpfFacts
from collectord.programs.bpf_program import BpfProgram
from collectord.programs.manifest_text import load_manifest
from tests.support.hosts import host

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.facts.kernel_facts import KernelFacts

SOURCE: Final = """// A comment that returns 0.
struct event { u64 time; u32 pid; char comm[16]; };
#define COLLECTORD_EVENT struct event
#include "collectord.h"
struct key { u32 dev; u32 slot; };
BPF_HISTOGRAM(latency, struct key);
TRACEPOINT_PROBE(sched, sched_switch)
{
    struct event event = {};

    if (PARAMETER_PID && args->next_pid != PARAMETER_PID)
        return 1;
    event.pid = args->next_pid;
    collectord_submit(args, &event);
    return 1;
}
"""
MANIFEST: Final = """
summary = "switches to a process"
license = "Dual BSD/GPL"
tracepoints = ["sched:sched_switch"]

[parameter.pid]
type = "int"
default = 0
min = 0
unit = "pid"
help = "only switches to this process"

[event]
columns = [
    { field = "pid", title = "PID" },
    { field = "comm", title = "COMM", show = "text" },
]

[[metric]]
name = "switch_latency_seconds"
type = "histogram"
help = "time until a process runs"
table = "latency"
scale = "log2"
slot = "slot"
unit = "us"
labels = [{ name = "device", field = "dev", show = "device", max = 8 }]

[[answer]]
kind = "histogram"
table = "latency"
title = "latency"
scale = "log2"
slot = "slot"
unit = "us"
by = [{ field = "dev", title = "DEVICE", show = "device" }]
"""

# One that is a flight recorder, of two kinds of records.
KEEPER: Final = """struct one { s32 pid; u32 value; u32 more; };
struct other { u64 sector; u32 words[6]; };
#include "collectord.h"
TRACEPOINT_PROBE(sched, sched_switch)
{
    struct one one = {};

    collectord_keep(one, &one);
    return 1;
}
"""
KEEPER_MANIFEST: Final = """
summary = "records"
license = "GPL-2.0"
tracepoints = ["sched:sched_switch"]

[[record]]
event = "sched:sched_switch"
struct = "one"
task = "pid"
comms = { comm = "pid" }

[[record]]
event = "block:block_rq_issue"
struct = "other"
"""


def program(
    source: str = SOURCE, manifest: str = MANIFEST, *, name: str = "switches"
) -> BpfProgram:
    """Return the pair as it is loaded."""
    config = load_manifest(manifest.encode(), f"{name}.toml")
    return BpfProgram(name, f"/p/{name}.bpf.c", source, config, "local")


def write(
    folder: Path, source: str = SOURCE, manifest: str = MANIFEST, *, name: str = "switches"
) -> Path:
    """Return the pair as files in a directory of its owner's alone."""
    folder.mkdir(mode=0o755, exist_ok=True)
    for suffix, text in ((".bpf.c", source), (".toml", manifest)):
        path = folder / f"{name}{suffix}"
        path.write_text(text)
        path.chmod(0o644)
    return folder


def keeper() -> BpfProgram:
    """Return the flight recorder `keeps`."""
    return program(KEEPER, KEEPER_MANIFEST, name="keeps")


def keeping_host(**changes: Any) -> KernelFacts:  # noqa: ANN401 - any field
    """Return a host of four CPUs that can run both programs."""
    found = {"keeps": keeper(), "switches": program()}
    bpf = BpfFacts(python="/usr/bin/python3", programs=found)
    return host(**{"arch": "x86_64", "bpf": bpf, **changes})


def facts(*programs: tuple[str, str], **changes: Any) -> KernelFacts:  # noqa: ANN401 - any field
    """Return a host of four CPUs that has these programs, name and source."""
    found = {name: program(source, name=name) for name, source in programs}
    return host(bpf=BpfFacts(python="/usr/bin/python3", programs=found), **changes)
