# SPDX-License-Identifier: Apache-2.0
"""Rows of `doctor`: each thing checked, and the least that would give what is missing.

A capability or a group comes before a sysctl, which would open access to every user.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from collectord.codec.aux_pmu import ARM_SPE, CS_ETM, INTEL_PT, decoder_of
from collectord.errors import MissingPrivilege
from collectord.facts.kernel_facts import (
    CAP_IPC_LOCK,
    SEES_DEVICES,
    TRACEPOINTS_CHECK,
    Check,
    PmuFacts,
)
from collectord.kernel.host.errno_mapping import perf_need
from collectord.kernel.host.lockdown import CONFIDENTIALITY, LOOK, REMEDY, UNKNOWN
from collectord.kernel.probe.bpf_probe import BCC_REMEDY, missing_capabilities
from collectord.plan.drain_threads import AUTO_FIFO
from collectord.plan.known_aux import KNOWN, trial_attr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from collectord.codec.aux_pmu import AuxPmuFacts, Decoder
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.errors import KernelError
    from collectord.facts.kernel_facts import BpfFacts, FtraceFacts, RelayFacts
    from collectord.kernel.host.thread_scheduling import Permitted
    from collectord.kernel.values.limits import Limits

    Refusal = Callable[[PerfEventAttr], KernelError | None]

# Memory of a ring of the default size per CPU, its control page included.
_COMFORTABLE_MEMLOCK_BYTES: Final = 64 << 20
_COMFORTABLE_FILES: Final = 4096
_MEMLOCK_FREE: Final = -1
_KALLSYMS_READ_BYTES: Final = 4096
# uname's names of the machines that may have them.
_AUX_MACHINES: Final[Mapping[Decoder, tuple[str, ...]]] = {
    INTEL_PT: ("x86_64", "i686"),
    CS_ETM: ("aarch64", "armv7l"),
    ARM_SPE: ("aarch64",),
}
_BUSY_REMEDY: Final = "wait until its other user (perf, KVM, a debugger) releases it"
_HEADER_KINDS: Final = {
    "build": "the kernel's build directory",
    "kheaders": "the kernel's own archive",
    "merged": "packages in /usr/src",
}


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
    yield _lockdown(
        "lockdown",
        lockdown,
        unknown="it may be the reason why tracefs is closed",
        locked="tracefs is closed",
        free="tracefs is open",
    )
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


def _lockdown(name: str, level: str, *, unknown: str, locked: str, free: str) -> Check:
    """Return a row that says what the level of lockdown means, in the words for each case."""
    if level == UNKNOWN:
        return Check(name, ok=False, detail=f"{level}: {unknown}", remedy=LOOK, unknown=True)
    closed = level == CONFIDENTIALITY
    return check(
        name, ok=not closed, detail=f"{level}: {locked if closed else free}", remedy=REMEDY
    )


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


def aux(
    pmus: Mapping[str, PmuFacts],
    aux_pmus: Mapping[str, AuxPmuFacts],
    machine: str,
    refusal: Refusal,
) -> Iterator[Check]:
    """Yield a row for each kind of such hardware on this machine, and for each such PMU here.

    Args:
        pmus: PMUs of this host.
        aux_pmus: those of them whose trace perf can decode.
        machine: machine as in `uname -m`.
        refusal: why an event of this process cannot be opened, None if it can.
    """
    for decoder, (title, pmu, remedy) in KNOWN.items():
        here = [name for name in aux_pmus if decoder_of(name) == decoder and name in pmus]
        if not here and machine in _AUX_MACHINES[decoder]:
            yield check(title, ok=False, detail=f"this host has no PMU {pmu}", remedy=remedy)
        for name in here:
            title_here = title if len(here) == 1 else f"{title} {name}"
            yield _aux_row(title_here, pmus[name], aux_pmus[name], refusal)


def _aux_row(title: str, pmu: PmuFacts, facts: AuxPmuFacts, refusal: Refusal) -> Check:
    if facts.decoder == CS_ETM and not (facts.sinks and facts.etms):
        missing = "sink for the trace" if facts.etms else "trace unit of a CPU"
        remedy = "a kernel with the drivers of the host's CoreSight parts (CONFIG_CORESIGHT_*)"
        return Check(title, ok=False, detail=f"present, but no {missing}", remedy=remedy)
    error = refusal(trial_attr(pmu, facts))
    if error is None:
        return Check(
            title,
            ok=True,
            detail=f"this user's processes can be traced; {_aux_details(pmu, facts)}",
        )
    remedy = _BUSY_REMEDY if error.errno == errno.EBUSY else error.hint or error.message
    return Check(title, ok=False, detail=f"present, but {error.message}", remedy=remedy)


def _aux_details(pmu: PmuFacts, facts: AuxPmuFacts) -> str:
    """Return details of the hardware in words."""
    words = []
    if facts.decoder == CS_ETM:
        words.append(f"{len(facts.etms)} trace units, sinks {', '.join(facts.sinks)}")
    if facts.decoder == INTEL_PT:
        caps = {"psb_cyc": "cycles", "mtc": "MTC", "ptwrite": "PTWRITE"}
        has = [word for cap, word in caps.items() if facts.caps.get(cap)]
        words.append(f"TSC, {', '.join(has)}" if has else "TSC")
    if facts.decoder == ARM_SPE and "min_interval" in facts.caps:
        words.append(f"at most each {facts.caps['min_interval']} operations")
    filters = pmu.address_filters
    words.append(f"{filters} address filters" if filters else "no address filters")
    return ", ".join(words)


def bpf(facts: BpfFacts, limits: Limits, lockdown: str) -> Iterator[Check]:
    """Yield all rows about BPF.

    Args:
        facts: facts of the probe.
        limits: limits of this process.
        lockdown: the level of kernel lockdown.
    """
    yield check(
        "BPF programs",
        ok=not facts.problem,
        detail=facts.problem or "can be compiled, loaded and attached",
        remedy=facts.remedy,
    )
    need = missing_capabilities(limits)
    yield check(
        "BPF privileges",
        ok=not need,
        detail=f"{need} missing" if need else "CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN",
        remedy=f"{need}; CAP_DAC_READ_SEARCH for tracefs, CAP_IPC_LOCK for rings",
    )
    yield _lockdown(
        "BPF lockdown",
        lockdown,
        unknown=f"at {CONFIDENTIALITY} programs cannot read the kernel",
        locked="programs cannot read the kernel",
        free="programs can trace",
    )
    yield check(
        "bcc",
        ok=bool(facts.python),
        detail=f"{facts.bcc_version}, by {facts.python}" if facts.python else "no interpreter",
        remedy=BCC_REMEDY,
    )
    yield _headers(facts)
    yield feature(
        "BTF",
        known=facts.btf,
        detail="the kernel describes its types",
        remedy="a kernel with CONFIG_DEBUG_INFO_BTF; most programs do not need it",
    )
    yield check(
        "BPF JIT",
        ok=facts.jit,
        detail="programs run as machine code"
        if facts.jit
        else "programs are interpreted, which is slow",
        remedy="sysctl net.core.bpf_jit_enable=1",
    )
    # fentry is unknown without the privilege to try it.
    if not need:
        yield probes(
            "BPF attachments",
            {
                "kprobes": (facts.kprobes, "CONFIG_KPROBE_EVENTS"),
                "uprobes": (facts.uprobes, "CONFIG_UPROBE_EVENTS"),
                "fentry": (facts.fentry, "CONFIG_DEBUG_INFO_BTF and CONFIG_DYNAMIC_FTRACE"),
            },
        )
    if facts.unprivileged_disabled is not None:
        yield Check(
            "unprivileged BPF",
            ok=True,
            detail="closed" if facts.unprivileged_disabled else "open to every user; not needed",
        )
    for name, reason in sorted(facts.program_problems.items()):
        yield Check(
            "BPF directory" if name.startswith("/") else f"BPF program {name}",
            ok=False,
            detail=reason,
            remedy="correct the files, or remove them",
        )


def _headers(facts: BpfFacts) -> Check:
    release = os.uname().release
    remedy = (
        f"apt install linux-headers-{release}; for a kernel of your own, make "
        f"/lib/modules/{release}/build a link to the folder that it was built in"
    )
    if not facts.headers_kind:
        return Check("kernel headers", ok=False, detail="none found", remedy=remedy)
    origin = f"{_HEADER_KINDS[facts.headers_kind]}, {facts.headers}"
    if facts.headers_match:
        return Check("kernel headers", ok=True, detail=origin)
    return Check(
        "kernel headers",
        ok=False,
        detail=f"of {facts.headers_release}, not of this kernel: programs that read its structs "
        f"misread them, the shipped ones do not ({origin})",
        remedy=remedy,
    )


def relay(facts: RelayFacts, lockdown: str) -> Iterator[Check]:
    """Check whether relay files can be read, and devices be traced.

    Args:
        facts: facts of the probe.
        lockdown: the level of kernel lockdown.
    """
    yield check(
        "relay",
        ok=not facts.problem,
        detail=facts.problem
        or f"channels below {facts.debugfs} can be read (lockdown {lockdown})",
        remedy=facts.remedy,
    )
    yield check(
        "blktrace",
        ok=facts.blktrace and not facts.problem and not _all_hidden(facts),
        detail=_block_devices(facts),
        remedy=_blktrace_remedy(facts),
    )


def _blktrace_remedy(facts: RelayFacts) -> str:
    if not facts.blktrace:
        return "a kernel with CONFIG_BLK_DEV_IO_TRACE"
    return facts.remedy or f"needs {SEES_DEVICES}"


def _block_devices(facts: RelayFacts) -> str:
    if not facts.blktrace:
        return "block devices cannot be traced by this kernel"
    count = len(facts.devices)
    if facts.problem:
        return f"{count} block devices could be traced if the row above were ok"
    if _all_hidden(facts):
        return f"{count} block devices are hidden from this process"
    return f"{count - len(facts.hidden)} block devices can be traced"


def _all_hidden(facts: RelayFacts) -> bool:
    return bool(facts.hidden) and set(facts.hidden) == set(facts.devices)
