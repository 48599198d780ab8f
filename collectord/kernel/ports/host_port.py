# SPDX-License-Identifier: Apache-2.0
"""The part of the kernel's port for the host, its processes and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from collectord.codec.perf_features import BuildId, Machine
    from collectord.codec.perf_sideband import Mmap2
    from collectord.config.pressure_limit import PressureLimit
    from collectord.config.scheduling import DrainPriority
    from collectord.kernel.values.host import CpuNews, Discipline, Holder, Host, Origin, Scheduling
    from collectord.kernel.values.limits import Limits
    from collectord.kernel.values.moment import Moment
    from collectord.model import ClockReading, ScopeKind


class HostPort(Protocol):
    """See `Kernel`."""

    @property
    def page_bytes(self) -> int:
        """Size of a page in bytes."""

    def limits(self) -> Limits:
        """Return privileges and limits at this moment."""

    def reserve_files(self, count: int) -> None:
        """Raise the soft RLIMIT_NOFILE, as far as the hard one, for `count` more descriptors."""

    def close(self, fd: int) -> None:
        """Close a descriptor that another operation returned."""

    def possible_cpus(self) -> tuple[int, ...]:
        """Return CPUs that may ever be online: a per-CPU value of a BPF map has one for each."""

    def machine(self) -> Machine:
        """Return CPUs, caches, memory and PMUs, as far as the kernel describes them."""

    def host(self) -> Host:
        """Return the identity of the host and its kernel."""

    def lock_owner(self, fd: int) -> Holder | None:
        """Return the process that holds the flock on the file of `fd`, as far as it is seen."""

    def clocks(self) -> ClockReading:
        """Read the three clocks within one bracket."""

    def clock_discipline(self) -> Discipline | None:
        """Return the state of the wall clock; None if it may not be read."""

    def online_cpus(self) -> tuple[int, ...]:
        """Return the CPUs that are online now."""

    def prioritise(self, tid: int, priority: DrainPriority) -> None:
        """Give a thread a real-time or nice priority.

        Raises:
            MissingPrivilege: it is not permitted.
            KernelError: the kernel refuses it for another reason.
        """

    def confine(self, tid: int, cpus: Collection[int]) -> None:
        """Restrict a thread to these CPUs.

        Raises:
            KernelError: the process may use none of them.
        """

    def scheduling(self, tid: int) -> Scheduling | None:
        """Return the scheduling in effect; None for a thread that has ended."""

    def open_cpu_news(self) -> CpuNews:
        """Open what tells which CPUs come and go; the caller closes both descriptors.

        Raises:
            KernelError: sysfs does not tell.
        """

    def threads_of(self, pid: int) -> tuple[int, ...]:
        """Return the threads of a process.

        Raises:
            NoSuchTarget: there is no such process.
        """

    def processes_of(self, uid: int) -> tuple[int, ...]:
        """Return the processes whose effective user is `uid`."""

    def processes(self) -> tuple[int, ...]:
        """Return all processes of the host."""

    def traits_of(self, pid: int, kind: ScopeKind) -> tuple[str, ...]:
        """Return what a pattern of a FOLLOWING scope may match: comm, executable or cgroups.

        Raises:
            NoSuchTarget: there is no such process, or it has exited and shows none any more.
            KernelError: they may not be read.
        """

    def origin_of(self, pid: int) -> Origin:
        """Return where a process came from. Raises NoSuchTarget."""

    def open_process_news(self) -> int:
        """Open a socket with the kernel's messages about processes, which does not block.

        `codec.process_event` decodes them. ENOBUFS of a read says that some were lost.

        Raises:
            MissingPrivilege, MissingFeature, KernelError: the kernel has none for this process.
        """

    def open_cgroup(self, path: str) -> int:
        """Open a cgroup's directory, given in full or below the root of perf_event's hierarchy.

        Raises:
            NoSuchTarget: there is no such directory in that hierarchy.
            MissingFeature: no hierarchy is mounted that has perf_event.
        """

    def open_pid(self, pid: int) -> int:
        """Return a pidfd, which is readable once the process has exited.

        Raises:
            NoSuchTarget: there is no such process.
            KernelError: EINVAL for a thread that does not lead its process, before 6.9.
        """

    def mapped_build_ids(self, mappings: Sequence[Mmap2]) -> tuple[bytes, ...]:
        """Return the build-id of each mapped file; empty if it has none or is gone."""

    def inode_at(self, name: bytes) -> int:
        """Return the inode that a path leads to from here; 0 if there is none."""

    def moment(self) -> Moment:
        """Read load, pressure and all processes as they are now; it takes 10 us for each."""

    def oom_kills(self) -> int | None:
        """Return how many processes the kernel has killed for lack of memory; None: unknown."""

    def open_pressure(self, limit: PressureLimit) -> int:
        """Let the kernel watch a limit of pressure; a poll for POLLPRI wakes once it is passed.

        Raises:
            MissingPrivilege: this process may not have it watched.
            MissingFeature, KernelError: the kernel does not do that.
        """

    def stalled_ns(self, limit: PressureLimit) -> int:
        """Return the time that tasks have waited for the limit's resource. Raises KernelError."""

    def kernel_build_ids(self) -> tuple[BuildId, ...]:
        """Return the build-ids of the kernel and of its modules."""
