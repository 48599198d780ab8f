# SPDX-License-Identifier: Apache-2.0
"""The port: the one seam for privileged calls.

Nothing outside `collectord.kernel` makes a privileged call: verbs are given a `Kernel` and pass it
on; only `__main__` names the one that is made. Every operation takes and returns plain values and
file descriptors, so that a separate process can carry it out and pass descriptors over a socket;
`linux.LinuxKernel` carries them out in this process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from collectord.codec.aux_pmu import TimeConversion
    from collectord.codec.blktrace import Setup
    from collectord.codec.bpf_symbols import BpfSymbols
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.codec.perf_bpf import LoadedBpf
    from collectord.codec.perf_features import BuildId, Machine
    from collectord.codec.perf_sideband import Mmap2
    from collectord.codec.trace_dat_head import Metadata
    from collectord.codec.tracing_data import TracingData
    from collectord.config.scheduling import DrainPriority
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.tracefs.mount import Tracefs
    from collectord.kernel.values.bpf_objects import Entries, MapInfo, ProgramInfo
    from collectord.kernel.values.facts_wanted import FactsWanted
    from collectord.kernel.values.host import CpuNews, Holder, Host, Scheduling
    from collectord.kernel.values.instance_settings import (
        InstanceSettings,
        OpenedInstance,
        TraceEvent,
    )
    from collectord.kernel.values.left_instance import LeftInstance
    from collectord.kernel.values.limits import Limits, Purpose
    from collectord.kernel.values.relay_files import LeftTrace, OpenedTrace, RelayFile
    from collectord.kernel.values.ring_files import RingFiles
    from collectord.model import ClockReading
    from collectord.programs.bpf_program import BpfProgram


@dataclass(frozen=True, slots=True)
class CounterReading:
    """A reading of a perf event by read(2); times in ns.

    Attributes:
        value: events counted, those of inherited children included. Events that the event's own
            filter refuses are not counted.
        time_enabled_ns: 0 unless the event's read_format asks for it.
        time_running_ns: 0 unless the event's read_format asks for it.
        event_id: the id that samples carry, 0 unless asked for.
        lost: records that did not fit the ring, None where the read_format has no LOST.
    """

    value: int
    time_enabled_ns: int
    time_running_ns: int
    event_id: int
    lost: int | None


class Kernel(Protocol):
    """Privileged operations. Each raises a `KernelError` that says what is missing."""

    @property
    def page_bytes(self) -> int:
        """Size of a page in bytes."""

    def limits(self) -> Limits:
        """Return privileges and limits at this moment."""

    def facts(self, wanted: FactsWanted) -> KernelFacts:
        """Probe this host, by trying; events and instances that are made are removed again.

        Raises:
            KernelError: sysfs does not tell the CPUs.
        """

    def reserve_files(self, count: int) -> None:
        """Raise the soft RLIMIT_NOFILE, as far as the hard one, for `count` more descriptors."""

    def perf_event_open(
        self,
        attr: PerfEventAttr,
        *,
        pid: int,
        cpu: int,
        group_fd: int = -1,
        flags: int = 0,
        purpose: Purpose = ...,
    ) -> int:
        """Open an event, close-on-exec always, and return its descriptor.

        Raises:
            MissingPrivilege, MissingFeature, NoSuchTarget, KernelError: see `errno_mapping`.
        """

    def close(self, fd: int) -> None:
        """Close a descriptor that another operation returned."""

    def enable(self, fd: int) -> None:
        """Enable an event, inherited children included (PERF_EVENT_IOC_ENABLE)."""

    def disable(self, fd: int) -> None:
        """Disable an event, inherited children included; its counter is final after it."""

    def refresh(self, fd: int) -> None:
        """Enable an event of period 1 until its next overflow (PERF_EVENT_IOC_REFRESH).

        The overflow disables it and its group. Each call adds one overflow: call it once, and once
        after each.
        """

    def set_filter(self, fd: int, text: str) -> None:
        """Give a tracepoint event its filter, or a tracing event its addresses.

        The kernel allows a tracepoint event one filter.

        Raises:
            KernelError: EINVAL for a bad filter (`filter_refusal` has the reason).
        """

    def set_output(self, fd: int, ring_fd: int) -> None:
        """Send the event's records to the ring of `ring_fd`."""

    def event_id(self, fd: int) -> int:
        """Return the id that this event's samples carry."""

    def query_bpf(self, fd: int) -> tuple[int, ...] | None:
        """Return ids of the BPF programs on the event's tracepoint that may hide its events.

        Those that a live process of this program has loaded, and that hide none, are left out.

        Returns:
            None if that cannot be told yet of some program, and no other one may hide events.
        """

    def begin_loading(self) -> int:
        """Tell other processes that this one loads programs; return the number of their batch.

        Until `end_loading` nobody can tell whose a new program is. `forget_programs` is due even
        if nothing is loaded.
        """

    def end_loading(self, batch: int) -> None:
        """Tell other processes that the programs of a batch are loaded, or are not to be."""

    def may_hide_events(self, fd: int) -> bool:
        """Whether a BPF program may hide events of its tracepoint, by its own instructions."""

    def own_programs(self, batch: int, programs: Mapping[int, int]) -> None:
        """Leave those of these programs that hide no event out of `query_bpf`.

        That ends with `disown_programs`. Other processes of this program leave them out, too,
        until `forget_programs`. The instructions of a program decide, by what they may return; a
        program whose run the kernel skipped even once, which hides the event, is not left out
        either.

        Args:
            batch: the one that is being loaded.
            programs: a descriptor of each, by its id.
        """

    def disown_programs(self, programs: Iterable[int]) -> None:
        """Use the descriptors of these programs no more; they are about to be closed."""

    def forget_programs(self, batch: int) -> None:
        """Remove the notes of a batch from where other processes look; it is unloaded."""

    def possible_cpus(self) -> tuple[int, ...]:
        """Return CPUs that may ever be online: a per-CPU value of a BPF map has one for each."""

    def map_info(self, fd: int) -> MapInfo:
        """Return the sizes of a BPF map."""

    def map_lookup(self, fd: int, key: bytes, *, info: MapInfo) -> bytes | None:
        """Return the value of a key in a BPF map; see `bpf_calls.map_lookup`."""

    def map_update(
        self, fd: int, key: bytes, value: bytes | Sequence[bytes], *, info: MapInfo
    ) -> None:
        """Set the value of a key in a BPF map; see `bpf_calls.map_update`."""

    def map_entries(self, fd: int, *, info: MapInfo, limit: int = ...) -> Entries:
        """Return the entries of a BPF map, or the first ones; see `bpf_entries.map_entries`."""

    def program_info(self, fd: int) -> ProgramInfo:
        """Return the kernel's info and counters of a BPF program."""

    def enable_bpf_stats(self) -> int:
        """Have the kernel count the cost of BPF programs while the descriptor is open."""

    def bpf_program(self, name: str, local: Path) -> BpfProgram:
        """Return a program of the catalogue, shipped or in the host's own directory `local`.

        Raises:
            UsageError: there is no such program; the hint names the nearest.
            ConfigError: its files make no program, or others can change them.
        """

    def bpf_library(self) -> str:
        """Return the text of collectord.h, which programs of the catalogue may include."""

    def bpf_headers(self, named: str, cache: str) -> str:
        """Return the kernel headers to compile BPF programs with.

        Args:
            named: a tree, "" to find one.
            cache: folder where a tree is put together that the host has in parts.

        Raises:
            MissingFeature: there are none; the hint names the package that has them.
        """

    def read_counter(self, fd: int, read_format: int) -> CounterReading:
        """Read the event's counter. It costs an interrupt of the event's CPU if that runs it."""

    def pause_output(self, fd: int, *, paused: bool) -> None:
        """Pause the ring of this event, so that it counts new records as lost, or resume it.

        A record that was begun before is still finished.
        """

    def time_conversion(self) -> TimeConversion:
        """Return how the CPU's counter becomes perf's clock, as far as the kernel tells."""

    def create_instance(self, settings: InstanceSettings) -> OpenedInstance:
        """Create a tracefs instance, mounting tracefs if necessary; nothing is recorded yet.

        It is there until `remove_instance`.

        Raises:
            MissingPrivilege: tracefs is closed, by permission or by kernel lockdown.
            MissingFeature, NoSuchTarget, UsageError: a setting is not possible.
            KernelError: EEXIST, the session runs already, or what a crash left of it waits to be
                salvaged; others.
        """

    def remove_instance(self, instance: int) -> None:
        """Stop an instance, by its id, and remove it and its probes; its rings must be closed.

        Raises:
            KernelError: EBUSY, with the process that keeps it; others.
        """

    def open_instance_ring(self, instance: int, cpu: int) -> RingFiles:
        """Open the ring of a CPU; the caller closes its two files.

        Raises:
            NoSuchTarget, MissingPrivilege, KernelError: it cannot be opened.
        """

    def follow_threads(self, instance: int, pids: Sequence[int]) -> int:
        """Trace every thread that these processes have now, and return how many there are.

        The kernel itself adds later ones. Processes that have exited are left out.
        """

    def choose_events(self, instance: int, events: Sequence[TraceEvent]) -> None:
        """Choose the events that `enable_instance` enables, and set their filters.

        Raises:
            UnknownEvent: with the nearest name.
            UsageError: the kernel refuses a filter; with its reason.
            MissingPrivilege, KernelError: the filter cannot be written.
        """

    def enable_instance(self, instance: int) -> None:
        """Start recording the chosen events, all at one moment.

        Raises:
            UsageError: a probe cannot be placed.
            MissingPrivilege, KernelError: an event cannot be enabled.
        """

    def disable_instance(self, instance: int) -> None:
        """Stop all rings at one moment; the counters are final. Raises KernelError."""

    def freeze_on(self, instance: int, event: TraceEvent) -> None:
        """Have an instance stop itself, on all CPUs, when an event passes its filter.

        Raises:
            UsageError: the kernel refuses the condition.
            MissingPrivilege, MissingFeature, KernelError: the trigger cannot be set.
        """

    def is_recording(self, instance: int) -> bool:
        """Whether an instance records: it has not stopped itself. Raises KernelError."""

    def resume_recording(self, instance: int) -> None:
        """Resume an instance that has stopped itself. Raises KernelError."""

    def resize_ring(self, instance: int, cpu: int, buffer_bytes: int) -> None:
        """Resize a CPU's ring while it records. Growing keeps all, shrinking overwrites.

        Raises:
            KernelError: EBUSY while a ring is mapped, with the process that maps it;
                ENOMEM; others.
        """

    def instance_stats(self, instance: int, cpu: int) -> bytes:
        """Return the text of a CPU's counters, whose ring need not be open or exist.

        Raises:
            KernelError: it cannot be read.
        """

    def mark_instance(self, instance: int, text: str) -> int:
        """Write a marker (`ftrace:print`) into the ring of a CPU that is traced.

        Returns:
            bytes of it that were taken: the kernel cuts at a sub-buffer or 4 KiB.

        Raises:
            KernelError: nothing is recorded, or the ring is full and does not overwrite.
        """

    def instance_users(self, instance: int) -> tuple[Holder, ...]:
        """Return other processes that keep its files open: they may read its rings too."""

    def trace_metadata(self, instance: int) -> Metadata:
        """Return the metadata of a trace.dat of an instance's rings. Raises KernelError."""

    def task_comms(self, instance: int) -> Mapping[int, bytes]:
        """Return names of tasks by thread id, as many as were seen until now; reads files."""

    def learn_comms(self, instance: int) -> None:
        """Keep the names that the kernel has now, for later `task_comms`; reads one file."""

    def check_instance(self, session: str) -> None:
        """Raise KernelError, EEXIST, if a process holds the instance of this session's name."""

    def is_being_salvaged(self, session: str) -> bool:
        """Whether a process salvages what a crash left of this session's instance."""

    def leftover_instances(self) -> tuple[str, ...]:
        """Return names of tracefs instances that a crash left; none if tracefs is not mounted.

        Raises:
            MissingPrivilege, MissingFeature: instances cannot be listed.
        """

    def adopt_instance(self, name: str) -> LeftInstance:
        """Take over an instance that a crash left, and stop it, until `release_left`.

        Raises:
            NoSuchTarget: the instance is gone, or another process salvages it.
            KernelError: EBUSY, its process lives; others.
        """

    def release_left(self, instance: int, *, remove: bool) -> None:
        """Close an adopted instance and its rings, by its id, and remove it and its probes.

        Args:
            instance: its id.
            remove: otherwise it stays for a later try, with all that was not taken out of its
                rings, its events and its probes.

        Raises:
            KernelError: it cannot be removed, and stays; EBUSY, with the process that keeps it.
        """

    def note_instance(self, instance: str, directory: Path) -> None:
        """Note where an instance's segments go, to be found after a crash.

        Raises:
            KernelError: it cannot be written.
            UnsafePath: others can write there.
        """

    def noted_directory(self, instance: str) -> Path | None:
        """Return the folder of an instance's segments, None if nobody noted it."""

    def forget_instance(self, instance: str) -> None:
        """Remove the note of an instance that is gone; the note may be gone, too."""

    def remove_orphan_probes(self) -> None:
        """Remove probes that a crash left; leftover instances must be gone.

        Raises:
            KernelError: another process has enabled one; the others are removed.
        """

    def open_blktrace(self, device: str, setup: Setup, session: str) -> OpenedTrace:
        """Set up a trace of a block device for a session, not started; `close_blktrace` ends it.

        Raises:
            NoSuchTarget: there is no such block device.
            MissingFeature: debugfs is not mounted, or the kernel has no blktrace.
            MissingPrivilege: the device or its relay files may not be opened.
            KernelError: EBUSY; the device is already traced, by a process that the message names.
        """

    def start_blktrace(self, trace: int) -> None:
        """Start a trace, by its id. Raises KernelError."""

    def quiet_blktrace(self, trace: int) -> None:
        """Stop new records of a trace, and wait for those that are being written."""

    def blktrace_dropped(self, trace: int) -> int:
        """Return the records that found no room, on all CPUs. Raises KernelError."""

    def take_late_records(self, trace: int) -> Mapping[int, int]:
        """Remove the records of CPUs that came online since the setup, and count them by CPU.

        Raises:
            KernelError: they cannot be read.
        """

    def close_blktrace(self, trace: int) -> None:
        """Stop and remove a trace, and close its files."""

    def end_left_traces(self) -> Sequence[LeftTrace]:
        """End traces of block devices that killed processes of this program left."""

    def open_channel(self, path: str) -> tuple[RelayFile, ...]:
        """Open the files of a relay channel: `path` itself, or `path` with each CPU's number.

        The caller closes each with `close`.

        Raises:
            MissingFeature: there are none, or they are not relay files.
            MissingPrivilege, KernelError: they cannot be opened.
        """

    def machine(self) -> Machine:
        """Return CPUs, caches, memory and PMUs, as far as the kernel describes them."""

    def loaded_bpf(self, ids: Sequence[int] | None, room_bytes: int) -> LoadedBpf:
        """Return code and types of these BPF programs, or all, as far as there is room.

        Those that are gone are left out; without CAP_SYS_ADMIN there are none.
        """

    def host(self) -> Host:
        """Return the identity of the host and its kernel."""

    def lock_owner(self, fd: int) -> Holder | None:
        """Return the process that holds the flock on the file of `fd`, as far as it is seen."""

    def clocks(self) -> ClockReading:
        """Read the three clocks within one bracket."""

    def online_cpus(self) -> tuple[int, ...]:
        """Return the CPUs that are online now."""

    def prioritise(self, tid: int, priority: DrainPriority) -> None:
        """Give a thread a real-time or nice priority.

        Raises:
            MissingPrivilege: it is not permitted.
            KernelError: the kernel refuses it for another reason.
        """

    def confine(self, tid: int, cpus: Iterable[int]) -> None:
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

    def filter_refusal(self, system: str, name: str, text: str) -> str:
        """Return the kernel's reason for refusing a tracepoint's filter; "" if unknown."""

    def running_state(
        self, attr: PerfEventAttr, event_id: int, pids: Sequence[int] | None = None
    ) -> bytes:
        """Return these processes, or all, as sideband records with the trailer of this event."""

    def bpf_program_ids(self, after: int) -> tuple[int, ...]:
        """Return the kernel's numbers of the loaded BPF programs, ascending, beyond `after`.

        Raises:
            MissingPrivilege, KernelError: they cannot be listed.
        """

    def bpf_symbols(self, ids: Sequence[int]) -> tuple[BpfSymbols, ...]:
        """Return the functions of these BPF programs; programs that are gone are left out."""

    def mapped_build_ids(self, mappings: Sequence[Mmap2]) -> tuple[bytes, ...]:
        """Return the build-id of each mapped file; empty if it has none or is gone."""

    def inode_at(self, name: bytes) -> int:
        """Return the inode that a path leads to from here; 0 if there is none."""

    def kernel_build_ids(self) -> tuple[BuildId, ...]:
        """Return the build-ids of the kernel and of its modules."""

    def tracing_data(self, tracepoints: Sequence[tuple[str, str]]) -> TracingData:
        """Return formats of these tracepoints (system, name), as a perf.data file holds them.

        Raises:
            KernelError: tracefs is absent or may not be read.
        """


class LocalKernel(Kernel, Protocol):
    """The kernel of this process, whose files the probe behind `Kernel.facts` reads as well."""

    @property
    def proc(self) -> Path:
        """Root of procfs."""

    @property
    def sys(self) -> Path:
        """Root of sysfs."""

    @property
    def tracefs(self) -> Tracefs:
        """The tracefs below `sys`, mounted or not."""
