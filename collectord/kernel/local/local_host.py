# SPDX-License-Identifier: Apache-2.0
"""The host, its processes and threads, as this process sees them."""

from __future__ import annotations

import mmap
import os
import resource
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.kernel.host import (
    code_files,
    cpus,
    host_moment,
    pressure,
    process_traits,
    sysfs,
    targets,
    thread_scheduling,
)
from collectord.kernel.host.capabilities import effective_capabilities
from collectord.kernel.host.clocks import read_clocks, read_discipline
from collectord.kernel.host.fd_holders import lock_owner
from collectord.kernel.host.identity import read_host
from collectord.kernel.host.machine import read_machine
from collectord.kernel.values.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from collectord.codec.perf_features import BuildId, Machine
    from collectord.codec.perf_sideband import Mmap2
    from collectord.config.pressure_limit import PressureLimit
    from collectord.kernel.tracefs.mount import Tracefs
    from collectord.kernel.values.host import CpuNews, Discipline, Holder, Host, Origin
    from collectord.kernel.values.moment import Moment
    from collectord.model import ClockReading, ScopeKind

# Descriptors kept for files, sockets and pipes beside those that were asked for.
_SPARE_FILES: Final = 64


class Places(NamedTuple):
    """The roots of what the kernel shows as files.

    Attributes:
        proc: root of procfs.
        sys: root of sysfs.
        tracefs: tracefs, mounted or not.
        run: where processes note which BPF programs are theirs.
    """

    proc: Path
    sys: Path
    tracefs: Tracefs
    run: Path


class LocalHost:
    """See `HostPort`.

    Args:
        places: roots of the host's files.
    """

    def __init__(self, places: Places) -> None:
        self.proc = places.proc
        self.sys = places.sys
        self.tracefs = places.tracefs
        self.page_bytes = mmap.PAGESIZE

    prioritise = staticmethod(thread_scheduling.prioritise)
    confine = staticmethod(thread_scheduling.confine)
    scheduling = staticmethod(thread_scheduling.scheduling)
    open_pid = staticmethod(targets.open_pid)
    open_process_news = staticmethod(process_traits.open_news)

    def moment(self) -> Moment:
        """See `Kernel.moment`."""
        return host_moment.read_moment(self.proc)

    def oom_kills(self) -> int | None:
        """See `Kernel.oom_kills`."""
        return host_moment.oom_kills(self.proc)

    def open_pressure(self, limit: PressureLimit) -> int:
        """See `Kernel.open_pressure`."""
        return pressure.open_limit(limit, self.proc)

    def stalled_ns(self, limit: PressureLimit) -> int:
        """See `Kernel.stalled_ns`."""
        return pressure.stalled_ns(limit, self.proc)

    def limits(self) -> Limits:
        """See `Kernel.limits`."""
        memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        paranoid = self._sysctl("perf_event_paranoid")
        return Limits(
            euid=os.geteuid(),
            capabilities=effective_capabilities(self.proc),
            nofile=resource.getrlimit(resource.RLIMIT_NOFILE),
            memlock_bytes=-1 if memlock == resource.RLIM_INFINITY else memlock,
            paranoid=paranoid,
            mlock_kb=self._sysctl("perf_event_mlock_kb") or 0,
            max_sample_rate=self._sysctl("perf_event_max_sample_rate") or 0,
            max_stack=self._sysctl("perf_event_max_stack") or 0,
        )

    def reserve_files(self, count: int) -> None:
        """See `Kernel.reserve_files`."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = min(len(list((self.proc / "self/fd").iterdir())) + count + _SPARE_FILES, hard)
        if wanted > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

    def _sysctl(self, name: str) -> int | None:
        return sysfs.number(self.proc / "sys/kernel" / name)

    def machine(self) -> Machine:
        """See `Kernel.machine`."""
        return read_machine(self.sys)

    def host(self) -> Host:
        """See `Kernel.host`."""
        return read_host(self.proc, self.sys)

    def lock_owner(self, fd: int) -> Holder | None:
        """See `Kernel.lock_owner`."""
        return lock_owner(fd, self.proc)

    def clocks(self) -> ClockReading:
        """See `Kernel.clocks`."""
        return read_clocks()

    def clock_discipline(self) -> Discipline | None:
        """See `Kernel.clock_discipline`."""
        return read_discipline()

    def online_cpus(self) -> tuple[int, ...]:
        """See `Kernel.online_cpus`."""
        return cpus.online(self.sys)

    def open_cpu_news(self) -> CpuNews:
        """See `Kernel.open_cpu_news`."""
        return cpus.open_news(self.sys)

    def possible_cpus(self) -> tuple[int, ...]:
        """See `Kernel.possible_cpus`."""
        return cpus.possible(self.sys)

    def threads_of(self, pid: int) -> tuple[int, ...]:
        """See `Kernel.threads_of`."""
        return targets.threads_of(pid, self.proc)

    def processes_of(self, uid: int) -> tuple[int, ...]:
        """See `Kernel.processes_of`."""
        return targets.processes_of(uid, self.proc)

    def processes(self) -> tuple[int, ...]:
        """See `Kernel.processes`."""
        return process_traits.running(self.proc)

    def traits_of(self, pid: int, kind: ScopeKind) -> tuple[str, ...]:
        """See `Kernel.traits_of`."""
        return process_traits.traits_of(pid, kind, self.proc)

    def origin_of(self, pid: int) -> Origin:
        """See `Kernel.origin_of`."""
        return process_traits.origin_of(pid, self.proc)

    def open_cgroup(self, path: str) -> int:
        """See `Kernel.open_cgroup`."""
        return targets.open_cgroup(path, self.proc)

    def mapped_build_ids(self, mappings: Sequence[Mmap2]) -> tuple[bytes, ...]:
        """See `Kernel.mapped_build_ids`."""
        return tuple(code_files.mapped_build_id(mapping, self.proc) for mapping in mappings)

    def inode_at(self, name: bytes) -> int:
        """See `Kernel.inode_at`."""
        return code_files.inode_at(name)

    def kernel_build_ids(self) -> tuple[BuildId, ...]:
        """See `Kernel.kernel_build_ids`."""
        return code_files.kernel_build_ids(self.sys)
