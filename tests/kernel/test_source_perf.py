# SPDX-License-Identifier: Apache-2.0
"""The perf source on the running kernel: every scope counts exactly, every refusal is told."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import select
import struct
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.perf_attr import (
    CLOCK_MONOTONIC,
    EventType,
    PerfEventAttr,
    ReadFormat,
    RecordType,
    SoftwareId,
)
from collectord.codec.perf_record import iter_records
from collectord.codec.perf_sideband import Comm, decode
from collectord.codec.tracepoint import Tracepoint
from collectord.errors import KernelError, NoSuchTarget, UsageError
from collectord.kernel.linux import LinuxKernel
from collectord.model import Basis, RingRole, Scope, ScopeKind
from collectord.plan.event_attrs import BASE_SAMPLE_TYPE, EventPlan
from collectord.plan.ring_plan import RingPlan
from collectord.plan.session_plan import SessionPlan
from collectord.plan.sink_plan import SinkPlan
from collectord.source import perf
from tests.support import bpf
from tests.support.daemons import NUMBER
from tests.support.perf_ids import identifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from collectord.source.open_perf import OpenPerf
    from collectord.source.perf_ring import PerfRing
    from tests.support.generator import Generator

pytestmark = pytest.mark.vm  # also with Linux 6.12

COUNT: Final = 2_000  # calls per thread of the generator
RING_BYTES: Final = 1 << 20
READ_FORMAT: Final = ReadFormat.ID | ReadFormat.LOST
SOMEBODY: Final = 54_321  # no account has this uid
CPUS: Final = LinuxKernel().online_cpus()


def _attr(kind: int, config: int, *, inherit: bool = False, **fields: bool) -> PerfEventAttr:
    return PerfEventAttr(
        type=kind,
        config=config,
        sample_period=1,
        sample_type=BASE_SAMPLE_TYPE,
        read_format=READ_FORMAT,
        disabled=True,
        inherit=inherit,
        sample_id_all=True,
        use_clockid=True,
        clockid=CLOCK_MONOTONIC,
        **fields,
    )


def _calls(kernel: LinuxKernel, **fields: bool) -> EventPlan:
    """Counts the generator's system calls and no others."""
    config = kernel.tracefs.event_id(Tracepoint("raw_syscalls", "sys_enter"))
    return EventPlan(
        index=0,
        name="raw_syscalls:sys_enter",
        attr=_attr(EventType.TRACEPOINT, config, **fields),
        basis=Basis.EXACT,
        filter=f"id == {NUMBER}",
        tracepoint=Tracepoint("raw_syscalls", "sys_enter"),
    )


def _sideband(index: int = 9, **fields: bool) -> EventPlan:
    attr = _attr(EventType.SOFTWARE, SoftwareId.DUMMY, comm=True, task=True, **fields)
    return EventPlan(index=index, name="dummy:HG", attr=attr, basis=Basis.LOST_ONLY, group=index)


def _session(
    scope: Scope,
    *events: EventPlan,
    sideband: EventPlan | None = None,
    cpus: tuple[int, ...] = CPUS,
    ring_bytes: int = RING_BYTES,
) -> SessionPlan:
    def ring(role: RingRole, cpu: int, plans: tuple[EventPlan, ...]) -> RingPlan:
        return RingPlan("perf", role, cpu, ring_bytes, ring_bytes, ring_bytes // 2, plans)

    rings = [ring(RingRole.DATA, cpu, events) for cpu in cpus]
    if sideband is not None:
        rings += [ring(RingRole.SIDEBAND, cpu, (sideband,)) for cpu in cpus]
    sink = SinkPlan(format="perf.data", directory="/nowhere")
    return SessionPlan("test", "perf", scope, "stream", tuple(rings), sink, files=0)


def _produced(opened: OpenPerf, role: RingRole = RingRole.DATA) -> int:
    values = [opened.read_produced(r).value for r in opened.rings if r.label.role is role]
    return sum(value or 0 for value in values)


def _lost(opened: OpenPerf) -> int:
    return sum(opened.read_produced(ring).lost or 0 for ring in opened.rings)


def _contents(ring: PerfRing) -> bytes:
    """Return the records of a ring, which must not have wrapped."""
    with mmap.mmap(ring.fd, mmap.PAGESIZE + ring.geometry.data_bytes) as mapping:
        return mapping[mmap.PAGESIZE : mmap.PAGESIZE + ring.map.head]


def _sample_ids(ring: PerfRing) -> list[int]:
    """Event ids of the samples that a ring holds."""
    data = _contents(ring)
    headers = (header for header in iter_records(data) if header.type == RecordType.SAMPLE)
    return [identifier(data, header) for header in headers]


def _samples(opened: OpenPerf) -> int:
    return sum(len(_sample_ids(r)) for r in opened.rings if r.label.role is RingRole.DATA)


def test_system_scope_counts_every_call(
    kernel: LinuxKernel, stack: ExitStack, generator: Generator
) -> None:
    """System-wide, the counters and the rings of all CPUs hold each of a known number of calls."""
    plan = _session(Scope(ScopeKind.SYSTEM), _calls(kernel), sideband=_sideband())
    opened = perf.open_session(kernel, plan, stack)
    with generator.start("count", nr=NUMBER, count=COUNT, threads=4) as running:
        opened.enable()
        running.run()
    opened.disable()
    assert (_produced(opened), _samples(opened), _lost(opened)) == (4 * COUNT, 4 * COUNT, 0)


def test_overload_is_counted_as_lost(
    kernel: LinuxKernel, stack: ExitStack, generator: Generator
) -> None:
    """A ring that nobody reads keeps what fits, and value = samples + lost."""
    plan = _session(Scope(ScopeKind.SYSTEM), _calls(kernel), ring_bytes=mmap.PAGESIZE)
    opened = perf.open_session(kernel, plan, stack)
    with generator.start("count", nr=NUMBER, count=COUNT, threads=2) as running:
        opened.enable()
        running.run()
    opened.disable()
    assert _produced(opened) == 2 * COUNT == _samples(opened) + _lost(opened)
    assert _lost(opened) > 0


def test_process_scope_covers_threads_before_and_after(
    kernel: LinuxKernel, stack: ExitStack, generator: Generator
) -> None:
    """All threads of a running process are counted, existing and later ones."""
    with generator.start("count", nr=NUMBER, count=COUNT, threads=4, later=4) as running:
        scope = Scope(ScopeKind.PROCESS, pids=(running.pid,))
        plan = _session(scope, _calls(kernel, inherit=True), sideband=_sideband(inherit=True))
        opened = perf.open_session(kernel, plan, stack)
        assert len(opened.rings) == 2 * len(CPUS)
        opened.enable()
        running.run()
        opened.disable()
    assert _produced(opened) == 8 * COUNT == _samples(opened) + _lost(opened)


def test_shared_ring_outlives_its_first_thread(
    kernel: LinuxKernel, stack: ExitStack, generator: Generator
) -> None:
    """A ring that threads share wakes its poller and does not hang up when they are gone."""
    with generator.start("count", nr=NUMBER, count=COUNT, threads=4) as running:
        scope = Scope(ScopeKind.PROCESS, pids=(running.pid,))
        plan = _session(scope, _calls(kernel, inherit=True), ring_bytes=4 * mmap.PAGESIZE)
        opened = perf.open_session(kernel, plan, stack)
        opened.enable()
        running.run()
    poll = select.poll()
    for ring in opened.rings:
        poll.register(ring.fd, select.POLLIN)
    states = {state for _, state in poll.poll(10_000)}
    assert states == {select.POLLIN}
    assert not any(state & select.POLLHUP for _, state in poll.poll(0))
    ended, _, _ = select.select(opened.target_fds, (), (), 10)
    assert ended == list(opened.target_fds)


def test_thread_scope_counts_that_thread_only(
    kernel: LinuxKernel, stack: ExitStack, generator: Generator
) -> None:
    """One of four equal threads makes a quarter of the calls."""
    with generator.start("count", nr=NUMBER, count=COUNT, threads=4) as running:
        scope = Scope(ScopeKind.THREAD, pids=(running.tids[1],))
        opened = perf.open_session(kernel, _session(scope, _calls(kernel)), stack)
        opened.enable()
        running.run()
    assert _produced(opened) == COUNT == _samples(opened)


def test_per_thread_gives_each_thread_a_ring(
    kernel: LinuxKernel, stack: ExitStack, generator: Generator
) -> None:
    """Without per-CPU rings each existing thread has its own, labelled with its tid."""
    with generator.start("count", nr=NUMBER, count=COUNT, threads=4) as running:
        scope = Scope(ScopeKind.PROCESS, pids=(running.pid,), per_thread=True)
        opened = perf.open_session(kernel, _session(scope, _calls(kernel), cpus=(-1,)), stack)
        opened.enable()
        running.run()
        tids = {ring.label.tid: opened.read_produced(ring).value for ring in opened.rings}
        workers = dict.fromkeys(running.tids, COUNT)
    assert workers.items() <= tids.items()
    assert sum(value or 0 for value in tids.values()) == 4 * COUNT


def test_command_scope_starts_at_exec(
    kernel: LinuxKernel, stack: ExitStack, generator: Generator
) -> None:
    """Events of a command wait for its exec, and its ring hangs up when all of it has ended."""
    gate = 'read line && echo && read line && exec "$@"'
    with subprocess.Popen(
        ["/bin/sh", "-c", gate, "sh", *generator.command("count", nr=NUMBER, count=COUNT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        scope = Scope(ScopeKind.COMMAND, pids=(child.pid,))
        fields = {"inherit": True, "enable_on_exec": True}
        event, sideband = _calls(kernel, **fields), _sideband(**fields)
        every = replace(event, index=1, filter="", group=1)
        plan = _session(scope, event, every, sideband=sideband)
        opened = perf.open_session(kernel, plan, stack)
        opened.enable_sideband()
        opened.enable()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        assert _produced(opened) == 0
        child.communicate(b"\n")
    ids = [event_id for ring in opened.rings[: len(CPUS)] for event_id in _sample_ids(ring)]
    assert sum(event_id in opened.event_ids[0] for event_id in ids) == COUNT
    assert _produced(opened) == len(ids) > COUNT
    poll = select.poll()
    poll.register(opened.rings[0].fd, select.POLLIN)
    assert poll.poll(10_000)[0][1] & select.POLLHUP


def test_user_scope_counts_that_users_processes(
    kernel: LinuxKernel, stack: ExitStack, generator: Generator
) -> None:
    """Calls of one user's running processes are counted; a user without any is an error."""
    plan = _session(Scope(ScopeKind.USER, uid=SOMEBODY), _calls(kernel, inherit=True))
    with pytest.raises(NoSuchTarget, match=f"user {SOMEBODY} has no running process"):
        perf.open_session(kernel, plan, stack)
    program = os.open(generator.program, os.O_RDONLY)  # its directory is closed to others
    stack.callback(os.close, program)
    words = generator.command("count", nr=NUMBER, now=False, count=COUNT)[1:]
    with subprocess.Popen(
        [f"/proc/self/fd/{program}", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=SOMEBODY,
        pass_fds=(program,),
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        opened = perf.open_session(kernel, plan, stack)
        opened.enable()
        child.communicate(b"\n")
    assert _produced(opened) == COUNT == _samples(opened)


@pytest.fixture
def cgroup(require: Callable[[str], None]) -> Iterator[Path]:
    """Provide an empty cgroup."""
    require("cgroup v2")
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    root = next(Path(words[4]) for words in mounts if "cgroup2" in words)
    path = root / f"collectord-test-{os.getpid()}"
    path.mkdir()
    yield path
    path.rmdir()


def test_cgroup_scope_counts_its_members(
    kernel: LinuxKernel, stack: ExitStack, generator: Generator, cgroup: Path
) -> None:
    """Calls of a process in the cgroup are counted, those of one outside are not."""
    scope = Scope(ScopeKind.CGROUP, cgroup=str(cgroup))
    plan = _session(scope, _calls(kernel), sideband=_sideband())
    opened = perf.open_session(kernel, plan, stack)
    opened.enable_sideband()
    opened.enable()
    with (
        generator.start("count", nr=NUMBER, count=COUNT) as member,
        generator.start("count", nr=NUMBER, count=COUNT) as other,
    ):
        (cgroup / "cgroup.procs").write_text(str(member.pid))
        member.run()
        other.run()
    assert _produced(opened) == COUNT == _samples(opened)
    named = set()
    for ring in opened.rings[len(CPUS) :]:
        data = _contents(ring)
        records = [decode(data, header, _sideband().attr) for header in iter_records(data)]
        named |= {record.pid for record in records if isinstance(record, Comm)}
    assert {member.pid, other.pid} <= named  # a name is given before the cgroup is entered


def test_events_share_a_ring(kernel: LinuxKernel, stack: ExitStack, generator: Generator) -> None:
    """Two events of a CPU write into one ring, and each sample names its event."""
    exits = kernel.tracefs.event_id(Tracepoint("raw_syscalls", "sys_exit"))
    leave = replace(
        _calls(kernel),
        index=1,
        name="raw_syscalls:sys_exit",
        attr=_attr(EventType.TRACEPOINT, exits),
        tracepoint=Tracepoint("raw_syscalls", "sys_exit"),
        group=1,
    )
    plan = _session(Scope(ScopeKind.CPUS, cpus=CPUS[:1]), _calls(kernel), leave, cpus=CPUS[:1])
    opened = perf.open_session(kernel, plan, stack)
    with generator.start("count", nr=NUMBER, count=COUNT, cpu=CPUS[0]) as running:
        opened.enable()
        running.run()
    opened.disable()
    (ring,) = opened.rings
    ids = _sample_ids(ring)
    enters = opened.event_ids[0]
    assert [len(found) for found in opened.event_ids.values()] == [1, 1]
    assert ids.count(enters[0]) == COUNT == ids.count(opened.event_ids[1][0])
    assert {row[:2] for row in opened.read_produced(ring).per_event} == {
        (opened.event_ids[index][0], COUNT) for index in (0, 1)
    }


def test_group_counts_together(kernel: LinuxKernel, stack: ExitStack) -> None:
    """A member counts nothing while its leader is off, and as much as it from then on."""
    leader = EventPlan(
        index=0,
        name="page-faults",
        attr=_attr(EventType.SOFTWARE, SoftwareId.PAGE_FAULTS),
        basis=Basis.EXACT,
    )
    member = replace(leader, index=1, leader=False)
    scope = Scope(ScopeKind.THREAD, pids=(threading.get_native_id(),))
    opened = perf.open_session(kernel, _session(scope, leader, member), stack)
    members = [c.fd for ring in opened.rings for c in ring.counters if c.event_index == 1]

    def fault() -> list[int]:
        with mmap.mmap(-1, 64 * mmap.PAGESIZE) as fresh:
            for page in range(64):
                fresh[page * mmap.PAGESIZE] = 1
        rows = [opened.read_produced(ring).per_event for ring in opened.rings]
        return [sum(row[index][1] for row in rows) for index in (0, 1)]

    for fd in members:
        kernel.enable(fd)
    assert fault() == [0, 0]
    opened.enable()
    first, second = fault()
    assert first == second >= 1


def test_excluded_threads_are_not_counted(kernel: LinuxKernel, stack: ExitStack) -> None:
    """Filtered events are in no counter either, so that the balance stays exact."""
    event = replace(_calls(kernel), filter="", exclude_self=True)
    call = kernel.tracefs.event_id(Tracepoint("syscalls", "sys_enter_getppid"))
    event = replace(
        event, attr=_attr(EventType.TRACEPOINT, call), tracepoint=Tracepoint("syscalls", "x")
    )
    scope = Scope(ScopeKind.THREAD, pids=(threading.get_native_id(),))
    mine = (1, threading.get_native_id())
    counted = perf.open_session(kernel, _session(scope, event), stack)
    excluded = perf.open_session(kernel, _session(scope, event), stack, exclude_tids=mine)
    counted.enable()
    excluded.enable()
    for _ in range(100):
        os.getppid()
    counted.disable()
    excluded.disable()
    assert (_produced(counted), _samples(counted)) == (100, 100)
    assert (_produced(excluded), _samples(excluded), _lost(excluded)) == (0, 0, 0)


def test_sideband_is_enabled_apart(tracefs: Path, stack: ExitStack) -> None:
    """Sideband events can start before, and stop after, the events that need them."""

    class Watched(LinuxKernel):
        calls: list[tuple[str, int]] = []  # noqa: RUF012 - one instance

        def enable(self, fd: int) -> None:
            self.calls.append(("enable", fd))
            super().enable(fd)

        def disable(self, fd: int) -> None:
            self.calls.append(("disable", fd))
            super().disable(fd)

    kernel = Watched()
    assert tracefs.is_dir()
    plan = _session(Scope(ScopeKind.SYSTEM), _calls(kernel), sideband=_sideband())
    opened = perf.open_session(kernel, plan, stack)
    opened.enable_sideband()
    opened.enable()
    opened.disable()
    side = {c.fd for r in opened.rings if r.label.role is RingRole.SIDEBAND for c in r.counters}
    kinds = [(verb, fd in side) for verb, fd in kernel.calls]
    both = len(CPUS)
    assert kinds == [
        *[("enable", True)] * both,
        *[("enable", False)] * both,
        *[("disable", False)] * both,
        *[("disable", True)] * both,
    ]


def test_dead_pid_is_named(kernel: LinuxKernel, stack: ExitStack) -> None:
    """A process that is gone, or a zombie, is an error that names it."""
    with subprocess.Popen(["/bin/true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        plan = _session(Scope(ScopeKind.PROCESS, pids=(child.pid,)), _calls(kernel))
        with pytest.raises(NoSuchTarget, match=f"pid {child.pid} has no running thread"):
            perf.open_session(kernel, plan, stack)
    with pytest.raises(NoSuchTarget, match=f"pid {child.pid} does not exist"):
        perf.open_session(kernel, plan, stack)


def test_absent_cpu_is_named(kernel: LinuxKernel, stack: ExitStack) -> None:
    """A CPU that is not there is an error that lists those that are, and leaves nothing open."""
    plan = _session(Scope(ScopeKind.CPUS, cpus=(0, 4000)), _calls(kernel), cpus=(0, 4000))
    with pytest.raises(NoSuchTarget, match=r"CPU 4000 is offline or absent.*CPUs online: 0"):
        perf.open_session(kernel, plan, stack)


def test_bad_filter_gives_the_kernels_reason(kernel: LinuxKernel, stack: ExitStack) -> None:
    """A filter that does not parse is refused with the words that tracefs has for it."""
    event = replace(_calls(kernel), filter="nofield == 1")
    plan = _session(Scope(ScopeKind.SYSTEM), event)
    with pytest.raises(UsageError, match=r"'nofield == 1' .*: Field not found"):
        perf.open_session(kernel, plan, stack)


def test_out_of_descriptors_tells_how_many(
    tracefs: Path, stack: ExitStack, generator: Generator
) -> None:
    """EMFILE half-way closes what was opened, and names the limit and the number needed."""

    class Unraised(LinuxKernel):
        def reserve_files(self, count: int) -> None:
            """Stay at the soft limit, as where the hard one is no higher."""

    kernel = Unraised()
    assert tracefs.is_dir()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with generator.start("count", nr=NUMBER, count=1, threads=32) as running:
        scope = Scope(ScopeKind.PROCESS, pids=(running.pid,))
        plan = _session(scope, _calls(kernel, inherit=True))
        needed = 33 * len(CPUS) + len(CPUS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (48, limits[1]))
        try:
            with pytest.raises(KernelError, match=f"limit is 48 .*about {needed} ") as caught:
                perf.open_session(kernel, plan, stack)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert caught.value.errno == errno.EMFILE
        assert "RLIMIT_NOFILE" in str(caught.value)


def test_descriptors_are_reserved(
    kernel: LinuxKernel, stack: ExitStack, generator: Generator
) -> None:
    """The soft limit is raised as far as many threads need it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with generator.start("count", nr=NUMBER, count=1, threads=32) as running:
        scope = Scope(ScopeKind.PROCESS, pids=(running.pid,))
        resource.setrlimit(resource.RLIMIT_NOFILE, (48, limits[1]))
        try:
            perf.open_session(kernel, _session(scope, _calls(kernel, inherit=True)), stack)
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 33 * len(CPUS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_ring_shrinks_to_the_budget(kernel: LinuxKernel, stack: ExitStack) -> None:
    """Without CAP_IPC_LOCK a ring over the budget is halved until it fits, watermark and all."""
    wanted = 256 << 20
    plan = _session(Scope(ScopeKind.CPUS, cpus=(0,)), _calls(kernel), cpus=(0,), ring_bytes=wanted)
    with _without_ipc_lock():
        opened = perf.open_session(kernel, plan, stack)
    (ring,) = opened.rings
    assert mmap.PAGESIZE <= ring.geometry.data_bytes < wanted
    assert ring.geometry.requested_bytes == wanted
    assert ring.geometry.watermark_bytes == ring.geometry.data_bytes // 2
    assert ring.map.data_bytes == ring.geometry.data_bytes


@contextmanager
def _without_ipc_lock() -> Iterator[None]:
    """Drop CAP_IPC_LOCK (bit 14) from this thread's effective set for a while."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(struct.pack("<Ii", 0x20080522, 0))
    full = ctypes.create_string_buffer(24)
    assert libc.capget(header, full) == 0
    words = list(struct.unpack("<6I", full.raw[:24]))
    words[0] &= ~(1 << 14)
    assert libc.capset(header, ctypes.create_string_buffer(struct.pack("<6I", *words))) == 0
    try:
        yield
    finally:
        assert libc.capset(header, full) == 0


def test_foreign_program_is_reported(
    kernel: LinuxKernel, stack: ExitStack, require: Callable[[str], None]
) -> None:
    """A BPF program on the tracepoint shows by its id while it is attached, and then no more."""
    require("BPF")
    config = kernel.tracefs.event_id(Tracepoint("syscalls", "sys_enter_getppid"))
    attr = _attr(EventType.TRACEPOINT, config)
    event = replace(_calls(kernel), filter="", attr=attr)
    opened = perf.open_session(kernel, _session(Scope(ScopeKind.SYSTEM), event), stack)
    assert opened.suppressed_by(0) == ()
    with bpf.harmless_program() as program:
        foreign = kernel.perf_event_open(attr, pid=-1, cpu=0)
        bpf.attach(foreign, program)
        assert len(opened.suppressed_by(0) or ()) == 1
        kernel.close(foreign)
    assert opened.suppressed_by(0) == ()


def test_clock_reading_brackets_the_perf_clock(kernel: LinuxKernel) -> None:
    """Between two readings the perf clock advances as MONOTONIC does, within their brackets."""
    first, second = kernel.clocks(), kernel.clocks()
    assert first.perf_ns > 0
    error = (second.perf_ns - first.perf_ns) - (second.monotonic_ns - first.monotonic_ns)
    assert abs(error) <= first.bracket_ns + second.bracket_ns
