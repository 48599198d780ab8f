# SPDX-License-Identifier: Apache-2.0
"""`Kernel` carried out in this process: system calls, ioctls and /proc."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import struct
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from collectord._native import _syscalls
from collectord.codec.perf_attr import ReadFormat
from collectord.codec.perf_bpf import LoadedBpf
from collectord.codec.tracing_data import TracingData
from collectord.errors import KernelError
from collectord.kernel.bpf import (
    bpf_calls,
    bpf_entries,
    catalogue,
    kernel_headers,
    program_image,
)
from collectord.kernel.bpf.program_notes import RUN, ProgramNotes
from collectord.kernel.bpf.program_returns import may_hide_events
from collectord.kernel.host import (
    code_files,
    cpus,
    errno_mapping,
    processes,
    sysfs,
    targets,
    thread_scheduling,
)
from collectord.kernel.host.capabilities import effective_capabilities
from collectord.kernel.host.clocks import read_clocks, read_time_conversion
from collectord.kernel.host.fd_holders import lock_owner
from collectord.kernel.host.identity import read_host
from collectord.kernel.host.lockdown import CONFIDENTIALITY, read_lockdown
from collectord.kernel.host.machine import read_machine
from collectord.kernel.port import CounterReading
from collectord.kernel.probe.kernel_probe import probe
from collectord.kernel.relay import block_trace, relay_channel
from collectord.kernel.tracefs import instance_lock, instance_note, left_rings, trace_probes
from collectord.kernel.tracefs.instance import Instance
from collectord.kernel.tracefs.mount import Tracefs
from collectord.kernel.values.instance_settings import PREFIX, OpenedInstance
from collectord.kernel.values.limits import Limits, Purpose
from collectord.kernel.values.relay_files import OpenedTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from collectord.codec.aux_pmu import TimeConversion
    from collectord.codec.blktrace import Setup
    from collectord.codec.bpf_symbols import BpfSymbols
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.codec.perf_features import BuildId, Machine
    from collectord.codec.perf_sideband import Mmap2
    from collectord.codec.trace_dat_head import Metadata
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.values.facts_wanted import FactsWanted
    from collectord.kernel.values.host import CpuNews, Holder, Host
    from collectord.kernel.values.instance_settings import InstanceSettings, TraceEvent
    from collectord.kernel.values.left_instance import LeftInstance
    from collectord.kernel.values.relay_files import LeftTrace, RelayFile
    from collectord.kernel.values.ring_files import RingFiles
    from collectord.model import ClockReading
    from collectord.programs.bpf_program import BpfProgram

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")
_COUNTER_BYTES: Final = 40
# Descriptors kept for files, sockets and pipes beside those that were asked for.
_SPARE_FILES: Final = 64
_ANY_PURPOSE: Final = Purpose()


@cache
def _figures(read_format: int) -> tuple[bool, ...]:
    """Return which figures follow the value that read(2) gives, in its order."""
    return tuple(
        bool(read_format & int(bit))
        for bit in (
            ReadFormat.TOTAL_TIME_ENABLED,
            ReadFormat.TOTAL_TIME_RUNNING,
            ReadFormat.ID,
            ReadFormat.LOST,
        )
    )


def _control(
    message: str, call: Callable[[*_Arguments], _Result], *arguments: *_Arguments
) -> _Result:
    """Carry out an ioctl. Raises KernelError with the message."""
    try:
        return call(*arguments)
    except OSError as error:
        raise errno_mapping.call_refused(error.errno or 0, "ioctl", message) from error


class LinuxKernel:
    """The running kernel.

    Args:
        proc: root of procfs.
        sys: root of sysfs.
        tracefs: tracefs, mounted or not; the one below `sys` by default.
        run: where processes note which BPF programs are theirs.
    """

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        tracefs: Tracefs | None = None,
        run: Path = RUN,
    ) -> None:
        self.proc = proc
        self.sys = sys
        self.tracefs = tracefs or Tracefs.below(sys)
        self.page_bytes = mmap.PAGESIZE
        self._own_programs: dict[int, int] = {}  # descriptor of each event, by id
        self._program_notes = ProgramNotes(run)
        self._numbers = count(1)
        self._instances: dict[int, tuple[Instance, ExitStack]] = {}
        self._traces: dict[int, tuple[block_trace.Blktrace, ExitStack]] = {}
        self._loaded = program_image.LoadedPrograms()

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

    def facts(self, wanted: FactsWanted) -> KernelFacts:
        """See `Kernel.facts`."""
        return probe(
            self,
            wanted.tracepoints,
            mount=wanted.mount,
            ftrace=wanted.ftrace,
            measure=wanted.measure,
            bpf=wanted.bpf,
            relay=wanted.relay,
            tracing=wanted.tracing,
        )

    def reserve_files(self, count: int) -> None:
        """See `Kernel.reserve_files`."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = min(len(list((self.proc / "self/fd").iterdir())) + count + _SPARE_FILES, hard)
        if wanted > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

    def _sysctl(self, name: str) -> int | None:
        return sysfs.number(self.proc / "sys/kernel" / name)

    def perf_event_open(
        self,
        attr: PerfEventAttr,
        *,
        pid: int,
        cpu: int,
        group_fd: int = -1,
        flags: int = 0,
        purpose: Purpose = _ANY_PURPOSE,
    ) -> int:
        """See `Kernel.perf_event_open`."""
        try:
            return _syscalls.perf_event_open(attr.encode(), pid, cpu, group_fd, flags)
        except OSError as error:
            code = error.errno or 0
            # Without descriptors no file can be read either, and the CPU is not to blame.
            online = () if code in (errno.EMFILE, errno.ENFILE) else self.online_cpus()
            raise errno_mapping.open_refused(
                code, attr, purpose, self.limits(), pid=pid, cpu=cpu, online=online
            ) from error

    def close(self, fd: int) -> None:
        """See `Kernel.close`."""
        os.close(fd)

    def enable(self, fd: int) -> None:
        """See `Kernel.enable`."""
        _control("cannot enable an event", _syscalls.perf_enable, fd)

    def disable(self, fd: int) -> None:
        """See `Kernel.disable`."""
        _control("cannot disable an event", _syscalls.perf_disable, fd)

    def refresh(self, fd: int) -> None:
        """See `Kernel.refresh`.

        Newer kernels stop the event at its last overflow and disable it later. Enabling it again
        does not start it (perf_trace_add(), Linux 6.18): setting its period, to its present value,
        does.
        """
        _control("cannot arm an event", _syscalls.perf_refresh, fd, 1)
        _control("cannot start an event again", _syscalls.perf_set_period, fd, 1)

    def set_filter(self, fd: int, text: str) -> None:
        """See `Kernel.set_filter`."""
        message = "the kernel refuses the filter"
        _control(message, _syscalls.perf_set_filter, fd, os.fsencode(text))

    def set_output(self, fd: int, ring_fd: int) -> None:
        """See `Kernel.set_output`."""
        _control("cannot share a ring", _syscalls.perf_set_output, fd, ring_fd)

    def event_id(self, fd: int) -> int:
        """See `Kernel.event_id`."""
        return _control("cannot read an event's id", _syscalls.perf_event_id, fd)

    def query_bpf(self, fd: int) -> tuple[int, ...] | None:
        """See `Kernel.query_bpf`."""
        message = "cannot list a tracepoint's programs"
        programs = _control(message, _syscalls.perf_query_bpf, fd)
        passing = {program: self._passes(program) for program in programs}
        foreign = tuple(program for program, passes in passing.items() if passes is False)
        return foreign if foreign or None not in passing.values() else None

    def _passes(self, program: int) -> bool | None:
        """Whether a program hides no event; None if unknown.

        One of ours hides an event only where the kernel skips its run: trace_call_bpf() then
        returns 0, as if the program had, and counts it.
        """
        fd = self._own_programs.get(program)
        if fd is None:
            return self._program_notes.passes(program)
        return bpf_calls.program_info(fd).recursion_misses == 0

    def begin_loading(self) -> int:
        """See `Kernel.begin_loading`."""
        return self._program_notes.begin()

    def end_loading(self, batch: int) -> None:
        """See `Kernel.end_loading`."""
        self._program_notes.end(batch)

    def own_programs(self, batch: int, programs: Mapping[int, int]) -> None:
        """See `Kernel.own_programs`."""
        passing = {number: fd for number, fd in programs.items() if not may_hide_events(fd)}
        self._own_programs.update(passing)
        self._program_notes.add(batch, map(bpf_calls.program_info, passing.values()))

    def disown_programs(self, programs: Iterable[int]) -> None:
        """See `Kernel.disown_programs`."""
        for program in programs:
            self._own_programs.pop(program, None)

    def forget_programs(self, batch: int) -> None:
        """See `Kernel.forget_programs`."""
        self._program_notes.forget(batch)

    may_hide_events = staticmethod(may_hide_events)
    map_info = staticmethod(bpf_calls.map_info)
    map_lookup = staticmethod(bpf_calls.map_lookup)
    map_update = staticmethod(bpf_calls.map_update)
    map_entries = staticmethod(bpf_entries.map_entries)
    program_info = staticmethod(bpf_calls.program_info)
    enable_bpf_stats = staticmethod(bpf_calls.enable_stats)

    def bpf_program(self, name: str, local: Path) -> BpfProgram:
        """See `Kernel.bpf_program`."""
        return catalogue.load(name, local)

    def bpf_library(self) -> str:
        """See `Kernel.bpf_library`."""
        return catalogue.library_text()

    def bpf_headers(self, named: str, cache: str) -> str:
        """See `Kernel.bpf_headers`."""
        if named:
            return named
        release = os.uname().release
        tree = kernel_headers.find_headers(release)
        if tree is None:
            raise kernel_headers.missing(release)
        return str(kernel_headers.make_headers(tree, Path(cache)))

    def read_counter(self, fd: int, read_format: int) -> CounterReading:
        """See `Kernel.read_counter`. Order: value, time_enabled, time_running, id, lost."""
        try:
            data = os.read(fd, _COUNTER_BYTES)
        except OSError as error:
            code = error.errno or 0
            raise errno_mapping.call_refused(code, "read", "cannot read a counter") from error
        wanted = _figures(int(read_format))
        if len(data) != 8 * (1 + sum(wanted)):
            # An event in error state (its pinned PMU slot is gone) reads as end of file.
            raise KernelError("the event has no counter any more", syscall="read")
        words = iter(struct.unpack(f"<{len(data) // 8}Q", data))
        value = next(words)
        enabled, running, event_id, lost = (next(words) if bit else None for bit in wanted)
        return CounterReading(value, enabled or 0, running or 0, event_id or 0, lost)

    def pause_output(self, fd: int, *, paused: bool) -> None:
        """See `Kernel.pause_output`."""
        _control("cannot pause a ring", _syscalls.perf_pause_output, fd, paused)

    def time_conversion(self) -> TimeConversion:
        """See `Kernel.time_conversion`."""
        return read_time_conversion(self.page_bytes)

    def create_instance(self, settings: InstanceSettings) -> OpenedInstance:
        """See `Kernel.create_instance`."""
        if read_lockdown(self.sys) == CONFIDENTIALITY:
            raise errno_mapping.tracefs_locked_down()
        self.tracefs.ensure_mounted()
        with ExitStack() as own:
            instance = Instance.create(self.tracefs, settings, own, proc=self.proc)
            effective, cpus = instance.effective(), instance.cpus()
            number = next(self._numbers)
            self._instances[number] = instance, own.pop_all()
        return OpenedInstance(number, instance.name, effective, cpus, instance.probe_events)

    def remove_instance(self, instance: int) -> None:
        """See `Kernel.remove_instance`."""
        _, stack = self._instances.pop(instance)
        stack.close()

    def open_instance_ring(self, instance: int, cpu: int) -> RingFiles:
        """See `Kernel.open_instance_ring`."""
        with ExitStack() as own:
            files = self._instances[instance][0].open_ring(cpu, own)
            own.pop_all()
        return files

    def follow_threads(self, instance: int, pids: Sequence[int]) -> int:
        """See `Kernel.follow_threads`."""
        return self._instances[instance][0].follow(lambda: targets.threads_of_all(pids, self.proc))

    def choose_events(self, instance: int, events: Sequence[TraceEvent]) -> None:
        """See `Kernel.choose_events`."""
        self._instances[instance][0].choose(events)

    def enable_instance(self, instance: int) -> None:
        """See `Kernel.enable_instance`."""
        self._instances[instance][0].enable()

    def disable_instance(self, instance: int) -> None:
        """See `Kernel.disable_instance`."""
        self._instances[instance][0].disable()

    def freeze_on(self, instance: int, event: TraceEvent) -> None:
        """See `Kernel.freeze_on`."""
        self._instances[instance][0].freeze_on(event)

    def is_recording(self, instance: int) -> bool:
        """See `Kernel.is_recording`."""
        return self._instances[instance][0].is_on

    def resume_recording(self, instance: int) -> None:
        """See `Kernel.resume_recording`."""
        self._instances[instance][0].turn_on()

    def resize_ring(self, instance: int, cpu: int, buffer_bytes: int) -> None:
        """See `Kernel.resize_ring`."""
        self._instances[instance][0].resize(buffer_bytes, cpu)

    def instance_stats(self, instance: int, cpu: int) -> bytes:
        """See `Kernel.instance_stats`."""
        return self._instances[instance][0].stats(cpu)

    def mark_instance(self, instance: int, text: str) -> int:
        """See `Kernel.mark_instance`."""
        return self._instances[instance][0].mark(text)

    def instance_users(self, instance: int) -> tuple[Holder, ...]:
        """See `Kernel.instance_users`."""
        return self._instances[instance][0].other_users()

    def trace_metadata(self, instance: int) -> Metadata:
        """See `Kernel.trace_metadata`."""
        return self._instances[instance][0].metadata()

    def task_comms(self, instance: int) -> Mapping[int, bytes]:
        """See `Kernel.task_comms`."""
        return self._instances[instance][0].comms()

    def learn_comms(self, instance: int) -> None:
        """See `Kernel.learn_comms`."""
        self._instances[instance][0].learn_comms()

    def check_instance(self, session: str) -> None:
        """See `Kernel.check_instance`."""
        if self.tracefs.mounted:
            instance_lock.check_unheld(self.tracefs, PREFIX + session, proc=self.proc)

    def is_being_salvaged(self, session: str) -> bool:
        """See `Kernel.is_being_salvaged`."""
        name = PREFIX + session
        return self.tracefs.mounted and instance_lock.is_being_salvaged(
            self.tracefs, name, proc=self.proc
        )

    def leftover_instances(self) -> tuple[str, ...]:
        """See `Kernel.leftover_instances`."""
        if not self.tracefs.mounted:
            return ()
        return instance_lock.find_leftovers(self.tracefs, proc=self.proc)

    def adopt_instance(self, name: str) -> LeftInstance:
        """See `Kernel.adopt_instance`."""
        with ExitStack() as own:
            instance = Instance.adopt(self.tracefs, name, own, proc=self.proc)
            self.reserve_files(2 * len(instance.cpus()))
            left = left_rings.open_left(instance, next(self._numbers))
            self._instances[left.id] = instance, own.pop_all()
        return left

    def release_left(self, instance: int, *, remove: bool) -> None:
        """See `Kernel.release_left`."""
        left, stack = self._instances.pop(instance)
        if not remove:
            left.keep()
        stack.close()

    note_instance = staticmethod(instance_note.write_note)
    noted_directory = staticmethod(instance_note.read_note)
    forget_instance = staticmethod(instance_note.remove_note)

    def remove_orphan_probes(self) -> None:
        """See `Kernel.remove_orphan_probes`."""
        if self.tracefs.mounted:
            trace_probes.remove_orphans(self.tracefs, proc=self.proc)

    def open_blktrace(self, device: str, setup: Setup, session: str) -> OpenedTrace:
        """See `Kernel.open_blktrace`."""
        with ExitStack() as own:
            trace = block_trace.open_trace(
                device, setup, session, own, proc=self.proc, sys=self.sys
            )
            number = next(self._numbers)
            self._traces[number] = trace, own.pop_all()
        return OpenedTrace(number, trace.files)

    def start_blktrace(self, trace: int) -> None:
        """See `Kernel.start_blktrace`."""
        self._traces[trace][0].start()

    def quiet_blktrace(self, trace: int) -> None:
        """See `Kernel.quiet_blktrace`."""
        self._traces[trace][0].quiet()

    def blktrace_dropped(self, trace: int) -> int:
        """See `Kernel.blktrace_dropped`."""
        return self._traces[trace][0].dropped()

    def take_late_records(self, trace: int) -> Mapping[int, int]:
        """See `Kernel.take_late_records`."""
        return self._traces[trace][0].take_late()

    def close_blktrace(self, trace: int) -> None:
        """See `Kernel.close_blktrace`."""
        _, stack = self._traces.pop(trace)
        stack.close()

    def end_left_traces(self) -> Sequence[LeftTrace]:
        """See `Kernel.end_left_traces`."""
        return block_trace.end_leftovers(self.proc, self.sys)

    def open_channel(self, path: str) -> tuple[RelayFile, ...]:
        """See `Kernel.open_channel`."""
        return relay_channel.open_channel(Path(path))

    def machine(self) -> Machine:
        """See `Kernel.machine`."""
        return read_machine(self.sys)

    def loaded_bpf(self, ids: Sequence[int] | None, room_bytes: int) -> LoadedBpf:
        """See `Kernel.loaded_bpf`."""
        try:
            return self._loaded.read(bpf_calls.program_ids() if ids is None else ids, room_bytes)
        except KernelError:
            return LoadedBpf()

    def host(self) -> Host:
        """See `Kernel.host`."""
        return read_host(self.proc, self.sys)

    def lock_owner(self, fd: int) -> Holder | None:
        """See `Kernel.lock_owner`."""
        return lock_owner(fd, self.proc)

    def clocks(self) -> ClockReading:
        """See `Kernel.clocks`."""
        return read_clocks()

    def online_cpus(self) -> tuple[int, ...]:
        """See `Kernel.online_cpus`."""
        return cpus.online(self.sys)

    def open_cpu_news(self) -> CpuNews:
        """See `Kernel.open_cpu_news`."""
        return cpus.open_news(self.sys)

    def possible_cpus(self) -> tuple[int, ...]:
        """See `Kernel.possible_cpus`."""
        return cpus.possible(self.sys)

    prioritise = staticmethod(thread_scheduling.prioritise)
    confine = staticmethod(thread_scheduling.confine)
    scheduling = staticmethod(thread_scheduling.scheduling)

    def threads_of(self, pid: int) -> tuple[int, ...]:
        """See `Kernel.threads_of`."""
        return targets.threads_of(pid, self.proc)

    def processes_of(self, uid: int) -> tuple[int, ...]:
        """See `Kernel.processes_of`."""
        return targets.processes_of(uid, self.proc)

    def open_cgroup(self, path: str) -> int:
        """See `Kernel.open_cgroup`."""
        return targets.open_cgroup(path, self.proc)

    open_pid = staticmethod(targets.open_pid)

    def filter_refusal(self, system: str, name: str, text: str) -> str:
        """See `Kernel.filter_refusal`."""
        return self.tracefs.filter_refusal(system, name, text)

    def running_state(
        self, attr: PerfEventAttr, event_id: int, pids: Sequence[int] | None = None
    ) -> bytes:
        """See `Kernel.running_state`."""
        return processes.scan(attr, event_id, pids=pids, proc=self.proc)

    def bpf_program_ids(self, after: int) -> tuple[int, ...]:
        """See `Kernel.bpf_program_ids`."""
        return bpf_calls.program_ids(after)

    def bpf_symbols(self, ids: Sequence[int]) -> tuple[BpfSymbols, ...]:
        """See `Kernel.bpf_symbols`."""
        return tuple(program_image.symbols(ids))

    def mapped_build_ids(self, mappings: Sequence[Mmap2]) -> tuple[bytes, ...]:
        """See `Kernel.mapped_build_ids`."""
        return tuple(code_files.mapped_build_id(mapping, self.proc) for mapping in mappings)

    def inode_at(self, name: bytes) -> int:
        """See `Kernel.inode_at`."""
        return code_files.inode_at(name)

    def kernel_build_ids(self) -> tuple[BuildId, ...]:
        """See `Kernel.kernel_build_ids`."""
        return code_files.kernel_build_ids(self.sys)

    def tracing_data(self, tracepoints: Sequence[tuple[str, str]]) -> TracingData:
        """See `Kernel.tracing_data`."""
        formats: dict[str, list[bytes]] = {}
        for system, name in dict.fromkeys(tracepoints):
            formats.setdefault(system, []).append(self.tracefs.event_format(system, name))
        return TracingData(
            header_page=self.tracefs.header_page(),
            header_event=self.tracefs.header_event(),
            page_size_bytes=self.page_bytes,
            events=formats,
        )
