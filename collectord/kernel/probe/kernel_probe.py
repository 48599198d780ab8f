# SPDX-License-Identifier: Apache-2.0
"""Probe of this kernel and user, by trying; versions are not considered."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from collectord.codec.perf_attr import (
    CLOCK_MONOTONIC,
    DUMMY,
    PRECISE_IP_MAX,
    EventType,
    HardwareId,
    PerfEventAttr,
    ReadFormat,
    SampleType,
)
from collectord.errors import KernelError, MissingFeature, MissingPrivilege
from collectord.facts.kernel_facts import BpfFacts, FtraceFacts, KernelFacts
from collectord.kernel.host import cpus
from collectord.kernel.host.aux_pmus import read_aux_pmus
from collectord.kernel.host.lockdown import NEED, deduce, read_lockdown
from collectord.kernel.host.pmus import read_pmus
from collectord.kernel.host.thread_scheduling import permitted
from collectord.kernel.probe import checks
from collectord.kernel.probe.aux_trial import PURPOSE, with_aux
from collectord.kernel.probe.bpf_probe import probe_bpf
from collectord.kernel.probe.ftrace_probe import probe_ftrace
from collectord.kernel.probe.relay_probe import probe_relay
from collectord.programs import bpf_program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.codec.tracepoint import Tracepoint
    from collectord.kernel.probe.local_kernel import LocalKernel
    from collectord.kernel.values.facts_wanted import FactsWanted

# A numeric field named pid, or something_pid; common_pid is not one of the event's own fields.
_TASK_FIELD: Final = re.compile(rb"\tfield:[^;\n]*[ *](?!common_)(?:\w+_)?pid;")


def probe(kernel: LocalKernel, wanted: FactsWanted) -> KernelFacts:
    """Probe the running kernel, its procfs and its sysfs.

    Raises:
        KernelError: sysfs does not tell the CPUs.
    """
    limits = kernel.limits()
    scheduling = permitted(limits.capabilities)
    programs = probe_bpf(kernel, wanted.bpf) if wanted.bpf is not None else BpfFacts()
    names = wanted.tracepoints
    if names is not None:
        needed = map(bpf_program.tracepoints, programs.programs.values())
        names = (*names, *chain.from_iterable(needed))
    tracepoints, problem, need, remedy = _tracepoints(kernel, names, mount=wanted.mount)
    attempts = _Attempts(kernel)
    online = kernel.online_cpus()
    relayed = None
    if wanted.relay:
        paths = wanted.relay if isinstance(wanted.relay, tuple) else None
        relayed = probe_relay(kernel, paths)
    traced = FtraceFacts()
    if wanted.ftrace:
        traced = probe_ftrace(kernel, measure=wanted.measure)
    aux_pmus = read_aux_pmus(kernel.sys)
    tracing = wanted.tracing if names is not None else (*wanted.tracing, *aux_pmus)
    lockdown = deduce(
        read_lockdown(kernel.sys),
        tracefs_open=traced.instances,
        debugfs_closed=relayed is not None and relayed.need == NEED,
    )
    pmus = with_aux(kernel, read_pmus(kernel.sys), tracing, aux_pmus)
    return KernelFacts(
        release=os.uname().release,
        arch=os.uname().machine,
        page_size=kernel.page_bytes,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * kernel.page_bytes,
        cpus_online=online,
        cpus_possible=cpus.possible(kernel.sys),
        perf_event_paranoid=2 if limits.paranoid is None else limits.paranoid,
        perf_event_mlock_kb=limits.mlock_kb,
        perf_event_max_sample_rate=limits.max_sample_rate,
        perf_event_max_stack=limits.max_stack,
        rlimit_memlock_bytes=None if limits.memlock_bytes < 0 else limits.memlock_bytes,
        rlimit_nofile=limits.nofile[0],
        rlimit_nofile_hard=limits.nofile[1],
        nice=scheduling.nice,
        nice_min=scheduling.nice_min,
        realtime=scheduling.realtime,
        realtime_max=scheduling.realtime_max,
        numa_nodes=cpus.numa_nodes(kernel.sys),
        capabilities=limits.capabilities,
        euid=limits.euid,
        lockdown=lockdown,
        pmus=pmus,
        aux_pmus=aux_pmus,
        tracepoints=tracepoints,
        task_tracepoints=frozenset(one for one in tracepoints if _names_task(kernel, one)),
        tracefs_path=str(kernel.tracefs.place) if kernel.tracefs.mounted else None,
        tracefs_problem=problem,
        tracefs_need=need,
        hardware_pmu=attempts.cycles(),
        format_lost=attempts.knows(read_format=ReadFormat.LOST),
        sample_cgroup=attempts.knows(sample_type=SampleType.CGROUP, cgroup=True),
        precise_ip_max=attempts.precise_ip_max(),
        ftrace=traced,
        bpf=programs,
        relay=relayed,
        checks=(
            checks.perf_events(limits, attempts.refusal(DUMMY, pid=0, cpu=-1)),
            checks.every_task(limits, attempts.refusal(DUMMY, pid=-1, cpu=online[0])),
            checks.tracepoints(problem, remedy),
            *(checks.ftrace(traced, lockdown) if wanted.ftrace else ()),
            *(checks.bpf(programs, limits, lockdown) if wanted.bpf is not None else ()),
            *(checks.relay(relayed, lockdown) if relayed is not None else ()),
            checks.hardware(attempts.cycles_refusal()),
            *checks.aux(pmus, aux_pmus, os.uname().machine, attempts.own_refusal),
            checks.ring_memory(limits, len(online)),
            checks.feature(
                "lost counters",
                known=attempts.knows(read_format=ReadFormat.LOST),
                detail="each event's lost records can be read (PERF_FORMAT_LOST)",
                remedy="Linux 6.0 or newer; without it no ring has an exact ledger",
            ),
            checks.feature(
                "clock",
                known=attempts.knows(use_clockid=True, clockid=CLOCK_MONOTONIC),
                detail="events can be stamped with CLOCK_MONOTONIC",
                remedy="Linux 4.1 or newer",
            ),
            checks.kernel_symbols(kernel.proc),
            checks.others_maps(limits),
            checks.open_files(limits),
            checks.drain_threads(scheduling),
        ),
    )


class _Attempts:
    """Trials that open events and close them at once."""

    def __init__(self, kernel: LocalKernel) -> None:
        self._kernel = kernel

    def refusal(self, attr: PerfEventAttr, *, pid: int, cpu: int) -> KernelError | None:
        """Return why an event cannot be opened, None if it can."""
        try:
            fd = self._kernel.perf_event_open(attr, pid=pid, cpu=cpu, purpose=PURPOSE)
            self._kernel.close(fd)
        except KernelError as error:
            return error
        return None

    def own_refusal(self, attr: PerfEventAttr) -> KernelError | None:
        """Return why an event of this process cannot be opened, None if it can."""
        return self.refusal(attr, pid=0, cpu=-1)

    def knows(self, **fields: int | bool) -> bool:
        """Whether the kernel takes these fields of a dummy event.

        A refusal for another reason than the attributes leaves the question open; then True.
        """
        changes: dict[str, Any] = fields
        error = self.own_refusal(replace(DUMMY, **changes))
        return error is None or error.errno not in (errno.EINVAL, errno.E2BIG)

    def cycles_refusal(self, precise_ip: int = 0) -> KernelError | None:
        """Return why a sampling cycles event of this process cannot be opened, None if it can."""
        cycles = replace(DUMMY, type=EventType.HARDWARE, config=HardwareId.CPU_CYCLES)
        return self.own_refusal(replace(cycles, sample_period=1_000_000, precise_ip=precise_ip))

    def cycles(self) -> bool:
        """Whether a hardware PMU can sample cycles."""
        return self.cycles_refusal() is None

    def precise_ip_max(self) -> int:
        """Return the highest precise_ip that cycles take, 0 for none."""
        levels = range(PRECISE_IP_MAX, 0, -1)
        return next((level for level in levels if self.cycles_refusal(level) is None), 0)


def _tracepoints(
    kernel: LocalKernel, wanted: Iterable[Tracepoint] | None, *, mount: bool
) -> tuple[dict[Tracepoint, int], str, str, str]:
    """Return their ids; or why they cannot be read, the missing privilege, and the remedy."""
    tracefs = kernel.tracefs
    try:
        if mount:
            tracefs.ensure_mounted()
        else:
            tracefs.check_mounted()
        chosen = _chosen(tracefs.available_events(), None if wanted is None else tuple(wanted))
        return _ids(kernel, chosen), "", "", ""
    except MissingPrivilege as error:
        if "mount" in error.syscall:
            return {}, error.message, "", error.hint
        return {}, error.message, error.need, error.need
    except KernelError as error:
        return {}, error.message, "", error.hint


def _chosen(
    known: tuple[Tracepoint, ...], wanted: tuple[Tracepoint, ...] | None
) -> Iterable[Tracepoint]:
    if wanted is None:
        return known
    matches = [[*filter(pattern.matches, known)] for pattern in wanted]
    if not all(matches):
        return known
    return dict.fromkeys(chain.from_iterable(matches))


def _ids(kernel: LocalKernel, chosen: Iterable[Tracepoint]) -> dict[Tracepoint, int]:
    ids = {}
    for one in chosen:
        try:
            ids[one] = kernel.tracefs.event_id(one)
        except MissingFeature:
            continue  # its module was removed since the list was read
    return ids


def _names_task(kernel: LocalKernel, tracepoint: Tracepoint) -> bool:
    """Whether one of a tracepoint's own fields is a task's id; arguments of system calls aside.

    `common_pid` is the task in which the event happens; such a field may be any other one.
    """
    if tracepoint.system == "syscalls":
        return False
    try:
        return _TASK_FIELD.search(kernel.tracefs.event_format(tracepoint)) is not None
    except KernelError:  # its module was removed, or it may not be read
        return False
