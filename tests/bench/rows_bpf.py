# SPDX-License-Identifier: Apache-2.0
"""The rows of the table about BPF programs: our drain beside BCC's callback for each event."""

from __future__ import annotations

import os
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.config.schema import BpfConfig
from collectord.kernel.linux import LinuxKernel
from collectord.plan.bpf_source import cache_folder
from collectord.plan.program_plan import PERF, RINGBUF
from collectord.source import bcc_python
from tests.bench import row
from tests.bench.collectors import GENERATOR_CPU, Collector
from tests.bench.row import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.collectors import Outcome
    from tests.bench.row import Settings

RING_MIB: Final = 8
# The operations of a run that has only the costs that do not grow with the load.
_FEW: Final = 1000
_PEER: Final = Path(__file__).with_name("bcc_peer.py")
# The event of syscall_stream, on the CPU that ours observes.
_PROGRAM: Final = f"""
#include <uapi/linux/ptrace.h>
struct event {{
    u64 arg0; u64 arg1; u32 pid; u32 tid; s32 nr;
%(fields)s
}} __attribute__((packed));
%(tables)s
RAW_TRACEPOINT_PROBE(sys_enter)
{{
    if (bpf_get_smp_processor_id() != {GENERATOR_CPU})
        return 0;
    u64 pair[2];
    u64 id = bpf_get_current_pid_tgid();
    struct pt_regs *regs = (struct pt_regs *)ctx->args[0];
    bpf_probe_read_kernel(pair, sizeof(pair), &regs->si);
    struct event event = {{
        .arg0 = pair[1], .arg1 = pair[0], .pid = id >> 32, .tid = id, .nr = ctx->args[1],
    }};
%(submit)s
    return 0;
}}
"""
# By transport. In a ring buffer the time and the CPU are in the record, as a perf ring's have them
# beside it.
_SUBMITTED: Final = {
    PERF: {
        "fields": "",
        "tables": "BPF_PERF_OUTPUT(events);",
        "submit": "    events.perf_submit(ctx, &event, sizeof(event));",
    },
    RINGBUF: {
        "fields": "    u32 cpu; u64 time;",
        "tables": "BPF_RINGBUF_OUTPUT(events, %(pages)s);\nBPF_PERCPU_ARRAY(refused, u64, 1);",
        "submit": """
    event.cpu = bpf_get_smp_processor_id();
    event.time = bpf_ktime_get_ns();
    if (events.ringbuf_output(&event, sizeof(event), 0)) {
        u32 zero = 0;
        u64 *count = refused.lookup(&zero);
        if (count)
            *count += 1;
    }""",
    },
}


def _ours(transport: str, ring_mib: int) -> Collector:
    return Collector(
        f"collectord {transport}",
        lambda directory: [
            *(sys.executable, "-m", "collectord", "record", "--bpf", "syscall_stream"),
            *("--transport", transport, "-C", GENERATOR_CPU, "-m", f"{ring_mib}M"),
            *("--output-dir", str(directory), "--json"),
        ],
    )


def _bcc(settings: Settings, transport: str, ring_mib: int) -> Collector:
    python, reason = bcc_python.find_python()
    if not python:
        raise RuntimeError(reason)
    source = LinuxKernel().bpf_headers("", cache_folder(BpfConfig(), "/", os.geteuid()))
    # bcc takes the ring, of each CPU where it is perf's, as a number of pages.
    pages = str((ring_mib << 20) // os.sysconf("SC_PAGE_SIZE"))
    program = settings.directory.parent / f"peer-{transport}.bpf.c"
    program.write_text(_PROGRAM % _SUBMITTED[transport] % {"pages": pages})
    return Collector(
        f"bcc {transport}",
        lambda _directory: [
            *("env", f"BCC_KERNEL_SOURCE={source}"),
            *(python, str(_PEER), str(program), pages),
        ],
    )


def pair(
    settings: Settings, *, transport: str = PERF, ring_mib: int = RING_MIB
) -> tuple[Collector, Collector]:
    """Return our run, and bcc's with a callback."""
    return _ours(transport, ring_mib), _bcc(settings, transport, ring_mib)


def _stored(outcome: Outcome) -> tuple[int, int]:
    """Return the events delivered and lost in our run."""
    assert outcome.answer is not None
    (session,) = outcome.answer["sessions"]
    assert session["unaccounted"] == 0, session
    return session["stored"], sum(session["lost"].values())


def _seen(outcome: Outcome) -> tuple[int, int]:
    """Count the same events in the peer's output."""
    assert outcome.answer is not None
    return outcome.answer["seen"], outcome.answer["lost"]


def _collecting(outcome: Outcome) -> float:
    """Return CPU seconds of the process itself from the moment that the load begins.

    Ours compiles in a child that has ended by then, the peer within itself.
    """
    return outcome.cpu_collecting - outcome.cpu_children


class _Group:
    """The runs of one collector, with and almost without a load: both include an end's cost."""

    def __init__(
        self,
        loaded: list[Outcome],
        bare: list[Outcome],
        delivered: Callable[[Outcome], tuple[int, int]],
    ) -> None:
        end = statistics.median(map(_collecting, bare))
        start = statistics.median(run.cpu - _collecting(run) for run in bare)
        pairs = [(run, *delivered(run)) for run in loaded]
        self.constant = f"{start:.2f} + {end:.2f} s"
        self.ns = [(_collecting(run) - end) / events * 1e9 for run, events, _ in pairs]
        self.median = statistics.median(self.ns)
        self.lost = sum(lost for *_, lost in pairs)
        self.share = self.lost / sum(events + lost for _, events, lost in pairs)

    @property
    def figures(self) -> str:
        spread = f"{min(self.ns):.0f}-{max(self.ns):.0f}"
        return f"{self.median:.0f} ns/event delivered ({spread}), {self.share:.2%} lost"


def saturated_bpf(settings: Settings) -> list[Row]:
    """Record every system call of one CPU by BPF: CPU time and loss against BCC's callback."""
    which = pair(settings)
    bare = row.interleaved(settings, which, count=_FEW)
    loaded = row.interleaved(settings, which, count=settings.events)
    ours, peer = (
        _Group(loaded[name], bare[name], delivered)
        for name, delivered in zip(loaded, (_stored, _seen), strict=True)
    )
    runs = tuple(asdict(run) for group in loaded.values() for run in group)
    work = "BPF_PERF_OUTPUT stream, one CPU saturated"
    constant = f"collectord {ours.constant}, bcc {peer.constant}"
    note = f"bpf: start-up with compiling, and what each run ends with, are apart: {constant}"
    return [
        Row(
            f"{work}: CPU against bcc's perf_buffer_poll",
            ours.figures,
            peer.figures,
            ours.median / peer.median,
            0.008,
            "x",
            (note,),
            runs,
        ),
        Row(f"{work}: lost events", f"{ours.lost}", f"{peer.lost}", float(ours.lost), 0, "events"),
    ]
