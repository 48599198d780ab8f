# SPDX-License-Identifier: Apache-2.0
"""Rows of `doctor`: each thing checked, and the least that would give what is missing.

A capability or a group comes before a sysctl, which would open access to every user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.errors import MissingPrivilege
from collectord.facts.kernel_facts import CAP_IPC_LOCK, TRACEPOINTS_CHECK, Check
from collectord.kernel.host.errno_mapping import perf_need
from collectord.kernel.host.lockdown import CONFIDENTIALITY, LOOK, REMEDY, UNKNOWN
from collectord.plan.drain_threads import AUTO_FIFO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from collectord.errors import KernelError
    from collectord.facts.kernel_facts import FtraceFacts
    from collectord.kernel.host.thread_scheduling import Permitted
    from collectord.kernel.values.limits import Limits

# Memory of a ring of the default size per CPU, its control page included.
_COMFORTABLE_MEMLOCK_BYTES: Final = 64 << 20
_COMFORTABLE_FILES: Final = 4096
_MEMLOCK_FREE: Final = -1
_KALLSYMS_READ_BYTES: Final = 4096


def check(name: str, *, ok: bool, detail: str, remedy: str) -> Check:
    """Return a row; it has the remedy only where that is needed."""
    return Check(name, ok=ok, detail=detail, remedy="" if ok else remedy)


def perf_events(limits: Limits, refusal: KernelError | None) -> Check:
    """Check events of one's own process."""
    return _opened("perf events", "events of this user's processes can be opened", limits, refusal)


def every_task(limits: Limits, refusal: KernelError | None) -> Check:
    """Check events of a whole CPU."""
    return _opened("system-wide", "events of every process can be opened", limits, refusal)


def _opened(name: str, detail: str, limits: Limits, refusal: KernelError | None) -> Check:
    if refusal is None:
        return Check(name, ok=True, detail=detail)
    remedy = refusal.hint
    if isinstance(refusal, MissingPrivilege):
        remedy = perf_need(limits) or refusal.hint
    return Check(name, ok=False, detail=refusal.message, remedy=remedy)


def tracepoints(problem: str, remedy: str) -> Check:
    """Check names, ids and formats of tracepoints."""
    detail = problem or "names, ids and formats can be read"
    return check(TRACEPOINTS_CHECK, ok=not problem, detail=detail, remedy=remedy)


def ftrace(facts: FtraceFacts, lockdown: str) -> Iterator[Check]:
    """Check an ftrace instance of one's own, and what its rings can do.

    Args:
        facts: facts of the probe.
        lockdown: the level of kernel lockdown.
    """
    yield _lockdown(lockdown)
    yield check(
        "ftrace instances",
        ok=facts.instances,
        detail=facts.problem or "instances with rings of their own can be created",
        remedy=facts.need or "mount tracefs; Linux with CONFIG_TRACING",
    )
    if not facts.instances:
        return
    yield feature(
        "ftrace mmap",
        known=facts.mmap,
        detail="rings can be mapped, so that a crash loses no page that was read",
        remedy="Linux 6.10 or newer; read and splice work without it",
    )
    # A mapped ring refuses to splice whole sub-buffers until the fix; ours is one or the other.
    yield feature(
        "ftrace splice",
        known=facts.splice,
        detail="rings can be spliced, unless another process maps them (before Linux 6.12.112, "
        "7.3)",
        remedy="read works without it",
    )
    yield feature(
        "sub-buffer sizes",
        known=facts.subbuf_sizes,
        detail="4KiB to 512KiB; larger ones cost less",
        remedy="Linux 6.8 or newer; until then they have the size of a page",
    )
    kinds = {
        "kprobes": (facts.kprobes, "CONFIG_KPROBE_EVENTS"),
        "uprobes": (facts.uprobes, "CONFIG_UPROBE_EVENTS"),
        "eprobes": (facts.eprobes, "CONFIG_EPROBE_EVENTS (Linux 5.15)"),
    }
    yield probes("ftrace probes", kinds)
    if facts.transport_ns:
        costs = sorted(facts.transport_ns.items(), key=lambda item: item[1])
        words = ", ".join(f"{name} {ns:.0f}" for name, ns in costs)
        yield Check("ftrace transports", ok=True, detail=f"ns of CPU per event: {words}")


def _lockdown(level: str) -> Check:
    """Return a row that tells what the level means for tracefs."""
    if level == UNKNOWN:
        detail = f"{level}: it may be the reason why tracefs is closed"
        return Check("lockdown", ok=False, detail=detail, remedy=LOOK, unknown=True)
    locked = level == CONFIDENTIALITY
    detail = f"{level}: tracefs is {'closed' if locked else 'open'}"
    return check("lockdown", ok=not locked, detail=detail, remedy=REMEDY)


def probes(name: str, kinds: Mapping[str, tuple[bool, str]]) -> Check:
    """Check kinds of probes, each present or not; the row says what the kernel needs for them."""
    missing = [kind for kind, (here, _) in kinds.items() if not here]
    return check(
        name,
        ok=not missing,
        detail=f"no {', '.join(missing)}" if missing else ", ".join(kinds),
        remedy=f"a kernel with {', '.join(kinds[kind][1] for kind in missing)}",
    )


def hardware(refusal: KernelError | None) -> Check:
    """Check sampling by a hardware counter."""
    if refusal is None:
        return Check("hardware counters", ok=True, detail="cycles can be sampled")
    return check(
        "hardware counters",
        ok=False,
        detail="cycles cannot be sampled; `profile` uses cpu-clock instead",
        remedy=refusal.hint or refusal.message,
    )


def ring_memory(limits: Limits, online: int) -> Check:
    """Check memory that rings may pin (perf_mmap in kernel/events/core.c)."""
    if CAP_IPC_LOCK in limits.capabilities:
        return Check("ring memory", ok=True, detail="no limit (CAP_IPC_LOCK)")
    free = limits.mlock_kb * online << 10
    memlock = limits.memlock_bytes
    if memlock == _MEMLOCK_FREE:
        return Check("ring memory", ok=True, detail="no limit (RLIMIT_MEMLOCK)")
    return check(
        "ring memory",
        ok=free + memlock >= _COMFORTABLE_MEMLOCK_BYTES,
        detail=f"{free + memlock >> 10} KiB for all rings of this user",
        remedy="CAP_IPC_LOCK, or LimitMEMLOCK= of the unit",
    )


def feature(name: str, *, known: bool, detail: str, remedy: str) -> Check:
    """Check a feature that the kernel has or lacks."""
    return check(name, ok=known, detail=detail if known else "not in this kernel", remedy=remedy)


def kernel_symbols(proc: Path) -> Check:
    """Check addresses in /proc/kallsyms, which place the kernel's own map."""
    try:
        with (proc / "kallsyms").open("rb", buffering=0) as file:
            lines = file.read(_KALLSYMS_READ_BYTES).splitlines()[:-1]
        shown = any(int(line.split()[0], 16) for line in lines)
        detail = "kernel addresses can be read" if shown else "kernel addresses read as 0"
    except OSError as error:
        shown, detail = False, f"kallsyms cannot be read ({error.strerror})"
    remedy = "CAP_SYSLOG; kernel functions stay unnamed without it"
    return check("kernel symbols", ok=shown, detail=detail, remedy=remedy)


def others_maps(limits: Limits) -> Check:
    """Check /proc/PID/maps of other users' processes."""
    return check(
        "processes of others",
        ok="CAP_SYS_PTRACE" in limits.capabilities,
        detail="mappings of running processes of other users, for their symbols",
        remedy="CAP_SYS_PTRACE; processes that start later are observed without it",
    )


def open_files(limits: Limits) -> Check:
    """Check descriptors: one per event, CPU and observed thread."""
    soft, hard = limits.nofile
    return check(
        "open files",
        ok=hard >= _COMFORTABLE_FILES,
        detail=f"up to {hard} (now {soft}); one per event, CPU and observed thread",
        remedy="LimitNOFILE= of the unit, ulimit -Hn",
    )


def drain_threads(found: Permitted) -> Check:
    """Check SCHED_FIFO, without which small rings overflow on a busy host."""
    realtime = f"fifo:1 to fifo:{found.realtime_max}" if found.realtime_max else "no fifo"
    return check(
        "drain priority",
        ok=found.realtime_max >= AUTO_FIFO,
        detail=f"{realtime}, and nice:{found.nice_min} and above",
        remedy="CAP_SYS_NICE, or LimitRTPRIO= of the unit (ulimit -r), and no RestrictRealtime=; "
        "without it drain threads wait like other threads, and small rings overflow on a busy "
        "host",
    )
