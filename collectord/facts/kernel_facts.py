# SPDX-License-Identifier: Apache-2.0
"""Capabilities of a kernel and a process as plain data: `doctor --json` feeds `check --facts`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Final, Literal

import msgspec

from collectord.codec.aux_pmu import AuxPmuFacts  # noqa: TC001 - of the facts' JSON
from collectord.codec.tracepoint import Tracepoint  # noqa: TC001 - likewise
from collectord.programs.bpf_program import BpfProgram  # noqa: TC001 - of the facts' JSON

# `from_json` reads it; it is raised when a field changes its meaning, not when one is added.
FACTS_VERSION: Final = 1

# The row of `doctor` that says whether tracepoints can be read.
TRACEPOINTS_CHECK: Final = "tracepoints"

CAP_IPC_LOCK: Final = "CAP_IPC_LOCK"
CAP_PERFMON: Final = "CAP_PERFMON"
CAP_SYS_ADMIN: Final = "CAP_SYS_ADMIN"

# perf_event_paranoid (Documentation/admin-guide/sysctl/kernel.rst); Debian adds level 3.
_PARANOID_NO_LOCK_LIMIT: Final = -1
_PARANOID_RAW_TRACEPOINTS: Final = -1
_PARANOID_CPU_WIDE: Final = 0
_PARANOID_KERNEL: Final = 1
_PARANOID_CLOSED: Final = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that `doctor` checked. `remedy` is the least that would make it `ok`.

    What is not `ok` is missing, or `unknown`: it may exist, but nothing tells.
    """

    name: str
    ok: bool
    detail: str = ""
    remedy: str = ""
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class PmuFacts:
    """One folder of /sys/bus/event_source/devices.

    Attributes:
        type: `perf_event_attr.type` of its events.
        formats: term name to bit ranges, e.g. {"event": "config:0-7", "umask": "config:8-15"}.
        events: alias to terms, e.g. {"cpu-cycles": "event=0x3c"}.
        cpus: CPUs that the PMU's events must be opened on (`cpumask`, or `cpus` of a hybrid
            core PMU); empty means any.
        core: it counts for a CPU core and knows privilege levels; an uncore PMU (one with a
            `cpumask`) refuses task scopes and exclude_* bits.
        aux: its events write into an AUX area.
        aux_pause: the overflow of another event can pause them (kernel 6.13, and some before).
        address_filters: how many address ranges an event of it takes, 0 for none.
        units: alias to the unit of its count, e.g. {"trace": "bytes"}.
    """

    type: int
    formats: dict[str, str] = field(default_factory=dict)
    events: dict[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()
    core: bool = True
    aux: bool = False
    aux_pause: bool = False
    address_filters: int = 0
    units: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FtraceFacts:
    """Capabilities of the kernel's ftrace and its tracefs, and of this user there.

    Attributes:
        instances: an instance of one's own can be made.
        problem: why not, "" if it can.
        need: the least privilege that would let it be made, "" if none is missing.
        mmap: a ring can be mapped (TRACE_MMAP_IOCTL_GET_READER, kernel 6.10).
        splice: a ring's pages can be spliced into a pipe.
        subbuf_sizes: the size of sub-buffers can be chosen (kernel 6.8).
        kprobes, uprobes, eprobes: probes of this kind can be made.
        clock_mono: events can be stamped with CLOCK_MONOTONIC.
        transport_ns: CPU ns per event, by transport, as measured; empty where it was not.
    """

    instances: bool = True
    problem: str = ""
    need: str = ""
    mmap: bool = True
    splice: bool = True
    subbuf_sizes: bool = True
    kprobes: bool = True
    uprobes: bool = True
    eprobes: bool = True
    clock_mono: bool = True
    transport_ns: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BpfFacts:
    """Requirements for compiling, loading and attaching BPF programs, and the programs.

    Attributes:
        problem: why none can run, "" if they can.
        remedy: what would let them run.
        need: the least privilege that would, "" if none is missing.
        python: interpreter that has bcc, "" for none.
        bcc_version: version of its bcc.
        headers: the tree of kernel headers, or what it is made of; "" for none.
        headers_kind: a kernel's build directory, its archive of headers, or packages to merge.
        headers_release: release of the kernel that they belong to.
        headers_match: that is the running kernel.
        btf: the kernel describes its types.
        jit: programs are compiled to machine code.
        unprivileged_disabled: the sysctl; not 0 closes bpf(2) to those without privilege. None
            where it cannot be read.
        kprobes, uprobes, fentry: programs can be attached to functions of the kernel, of
            processes, of the kernel by trampolines.
        programs: requested programs that exist, by name.
        program_problems: why others are invalid, by name.
        unknown_programs: names without files, each with the nearest known one.
        failed_programs: why a daemon could not load others, by name, as it found when it tried.
    """

    problem: str = ""
    remedy: str = ""
    need: str = ""
    python: str = ""
    bcc_version: str = ""
    headers: str = ""
    headers_kind: Literal["", "build", "kheaders", "merged"] = ""
    headers_release: str = ""
    headers_match: bool = False
    btf: bool = True
    jit: bool = True
    unprivileged_disabled: int | None = None
    kprobes: bool = True
    uprobes: bool = True
    fentry: bool = True
    programs: dict[str, BpfProgram] = field(default_factory=dict)
    program_problems: dict[str, str] = field(default_factory=dict)
    unknown_programs: dict[str, str] = field(default_factory=dict)
    failed_programs: dict[str, str] = field(default_factory=dict)

    def with_programs_of(self, other: BpfFacts) -> BpfFacts:
        """Return these facts with what the others say of programs."""
        return replace(
            self,
            programs=other.programs,
            program_problems=other.program_problems,
            unknown_programs=other.unknown_programs,
            failed_programs=other.failed_programs,
        )


# Settings of systemd.exec(5) for a service that opens block devices and no others.
SEES_DEVICES: Final = "PrivateDevices=no, DevicePolicy=closed, DeviceAllow=block-* r in its unit"


@dataclass(frozen=True, slots=True)
class RelayFacts:
    """Requirements of relay sources.

    Attributes:
        debugfs: its mount point, "" if it is not.
        problem: why relay files cannot be opened, "" if they can.
        need: the least privilege that would let them be opened, "" if none is missing.
        remedy: what to do about the problem.
        blktrace: the kernel traces block devices.
        devices: paths of block devices.
        hidden: those of them that are missing in this process's /dev, as with PrivateDevices=.
        channels: paths of channels that were found, without the CPU's number, to the CPUs that
            have a file; (-1,) for a channel with one file.
    """

    debugfs: str = ""
    problem: str = ""
    need: str = ""
    remedy: str = ""
    blktrace: bool = False
    devices: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    channels: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenerFacts:
    """The abilities of the process that opens rings for the daemon.

    Attributes:
        capabilities, euid, rlimit_memlock_bytes: see `KernelFacts`.
        hardware_pmu, format_lost, sample_cgroup, precise_ip_max: likewise; who may open nothing
            cannot tell.
        bpf: likewise, without the programs, which everybody finds alone.
        pmus: likewise, those that have AUX areas.
    """

    capabilities: frozenset[str]
    euid: int
    rlimit_memlock_bytes: int | None
    hardware_pmu: bool
    format_lost: bool
    precise_ip_max: int
    bpf: BpfFacts = field(default_factory=BpfFacts)
    pmus: dict[str, PmuFacts] = field(default_factory=dict)
    sample_cgroup: bool = True


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Probed facts of the host and of the user that runs the plan.

    Attributes:
        release: `uname -r`.
        arch: `uname -m`.
        page_size: bytes of a page.
        cpus_online: CPUs that events can be opened on.
        cpus_possible: CPUs that may come online.
        perf_event_paranoid: the sysctl; 3 and more is Debian's closed level.
        perf_event_mlock_kb: the sysctl: KiB per online CPU and user that rings may pin freely.
        perf_event_max_sample_rate: the sysctl, Hz; the kernel lowers it by itself.
        perf_event_max_stack: the sysctl, frames of a callchain.
        rlimit_memlock_bytes: soft RLIMIT_MEMLOCK, None when unlimited.
        rlimit_nofile: soft RLIMIT_NOFILE.
        rlimit_nofile_hard: how far the process may raise it.
        nice: nice value of this process.
        nice_min: the lowest nice value that its threads can be given.
        realtime: the process itself is scheduled in real time.
        realtime_max: the highest priority of SCHED_FIFO that its threads can be given, 0 for none.
        numa_nodes: CPUs of each node of memory; none where unknown.
        memory_bytes: of the machine, 0 where unknown.
        capabilities: names of the effective set, e.g. "CAP_PERFMON".
        euid: effective user id.
        lockdown: "none", "integrity", "confidentiality", or "unknown" where it cannot be read;
            "integrity or none" where something else than securityfs tells that much.
        pmus: dynamic PMUs by name, "cpu" included.
        aux_pmus: those with an AUX area whose trace perf can decode, by name.
        tracepoints: the id of each, of those that could be read.
        task_tracepoints: those of them that name a task beside the one in which they happen.
        tracefs_path: where tracefs is mounted, or is mounted when needed; None if it was not seen.
        tracefs_problem: why tracepoints cannot be read; "" if they can.
        tracefs_need: the least privilege that would let them be read, "" if none is missing.
        hardware_pmu: a hardware cycles event can be opened.
        format_lost: PERF_FORMAT_LOST is known (kernel 6.0).
        sample_cgroup: PERF_SAMPLE_CGROUP is known (kernel 5.7).
        precise_ip_max: highest precise_ip that a cycles event takes, 3 (any) when unknown.
        ftrace: facts for tracefs sources.
        bpf: facts for BPF sources.
        relay: facts for relay sources, None where not probed.
        opener: those of the opener; None if there is none, or it has not answered.
        checks: the rows of `doctor`.
    """

    release: str
    arch: str
    page_size: int
    cpus_online: tuple[int, ...]
    cpus_possible: tuple[int, ...]
    perf_event_paranoid: int = 2
    perf_event_mlock_kb: int = 516
    perf_event_max_sample_rate: int = 100_000
    perf_event_max_stack: int = 127
    rlimit_memlock_bytes: int | None = 8 << 20
    rlimit_nofile: int = 1024
    rlimit_nofile_hard: int = 524_288
    nice: int = 0
    nice_min: int = 0
    realtime: bool = False
    realtime_max: int = 0
    numa_nodes: tuple[tuple[int, ...], ...] = ()
    capabilities: frozenset[str] = frozenset()
    euid: int = 0
    lockdown: str = "unknown"
    pmus: dict[str, PmuFacts] = field(default_factory=dict)
    aux_pmus: dict[str, AuxPmuFacts] = field(default_factory=dict)
    tracepoints: dict[Tracepoint, int] = field(default_factory=dict)
    task_tracepoints: frozenset[Tracepoint] = frozenset()
    tracefs_path: str | None = None
    tracefs_problem: str = ""
    tracefs_need: str = ""
    hardware_pmu: bool = False
    format_lost: bool = True
    sample_cgroup: bool = True
    precise_ip_max: int = 3
    ftrace: FtraceFacts = field(default_factory=FtraceFacts)
    bpf: BpfFacts = field(default_factory=BpfFacts)
    relay: RelayFacts | None = None
    memory_bytes: int = 0
    opener: OpenerFacts | None = None
    checks: tuple[Check, ...] = ()
    version: int = FACTS_VERSION

    @property
    def perfmon(self) -> bool:
        """Whether paranoid levels, Debian's included, do not apply (`perfmon_capable()`)."""
        if CAP_SYS_ADMIN in self.capabilities:
            return True
        return CAP_PERFMON in self.capabilities and self.perf_event_paranoid < _PARANOID_CLOSED

    @property
    def may_open(self) -> bool:
        """Whether any event at all can be opened."""
        return self.perfmon or self.perf_event_paranoid < _PARANOID_CLOSED

    @property
    def may_observe_cpus(self) -> bool:
        """Whether events of a whole CPU, of every task on it, can be opened."""
        return self.perfmon or self.perf_event_paranoid <= _PARANOID_CPU_WIDE

    @property
    def may_observe_kernel(self) -> bool:
        """Whether events that fire in kernel mode can be opened."""
        return self.perfmon or self.perf_event_paranoid <= _PARANOID_KERNEL

    @property
    def may_read_tracepoints(self) -> bool:
        """Whether samples may have a tracepoint's fields (PERF_SAMPLE_RAW)."""
        return self.perfmon or self.perf_event_paranoid <= _PARANOID_RAW_TRACEPOINTS

    @property
    def locks_freely(self) -> bool:
        """Whether ring memory is unlimited (perf_mmap: CAP_IPC_LOCK, or paranoid -1)."""
        return (
            CAP_IPC_LOCK in self.capabilities
            or self.perf_event_paranoid <= _PARANOID_NO_LOCK_LIMIT
        )

    def with_areas_of(self, before: KernelFacts) -> KernelFacts:
        """Return facts with the AUX areas that PMUs had before.

        A PMU that is in use refuses the trial for one.
        """
        pmus = {
            name: replace(pmu, aux=True, aux_pause=before.pmus[name].aux_pause)
            if name in before.pmus and before.pmus[name].aux
            else pmu
            for name, pmu in self.pmus.items()
        }
        return replace(self, pmus=pmus)

    def as_opener(self) -> OpenerFacts:
        """Return what a daemon has to know, if the process with these facts is its opener."""
        own = {one.name: getattr(self, one.name) for one in fields(OpenerFacts)}
        own["bpf"] = self.bpf.with_programs_of(BpfFacts())
        own["pmus"] = {name: pmu for name, pmu in self.pmus.items() if pmu.aux}
        return OpenerFacts(**own)

    def for_opener(self) -> KernelFacts:
        """Return the facts by which the opener's rings are planned: these, if there is none."""
        if self.opener is None:
            return self
        own = {one.name: getattr(self.opener, one.name) for one in fields(OpenerFacts)}
        own["bpf"] = self.opener.bpf.with_programs_of(self.bpf)
        own["pmus"] = {**self.pmus, **self.opener.pmus}
        return replace(self, **own)

    def to_json(self) -> bytes:
        """Return the facts as a JSON document, keys sorted."""
        document = msgspec.to_builtins(self, order="sorted") | {
            "tracepoints": {str(one): number for one, number in self.tracepoints.items()},
            "task_tracepoints": sorted(map(str, self.task_tracepoints)),
        }
        return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2)
