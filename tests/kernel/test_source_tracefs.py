# SPDX-License-Identifier: Apache-2.0
"""The tracefs source on the running kernel: every scope counts exactly, every refusal is told."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import select
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.codec.ftrace_page import Walk
from collectord.codec.trace_dat import build_head
from collectord.codec.tracepoint import Tracepoint
from collectord.config.trace_probe import Probe, ProbeKind
from collectord.errors import (
    CollectordError,
    KernelError,
    MissingFeature,
    MissingPrivilege,
    NoSuchTarget,
    UnknownEvent,
    UsageError,
)
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.mappings import map_pages
from collectord.kernel.tracefs import mount as kernel_tracefs
from collectord.kernel.tracefs.instance import Instance
from collectord.kernel.tracefs.instance_lock import find_leftovers, find_live
from collectord.kernel.tracefs.mount import Tracefs
from collectord.kernel.tracefs.trace_probes import group_of
from collectord.model import (
    FLIGHT_RECORDER,
    Basis,
    Reason,
    RingRole,
    Scope,
    ScopeKind,
    Stage,
    Transport,
)
from collectord.plan.ftrace_plan import FtraceEvent, FtracePlan
from collectord.plan.ring_plan import RingPlan
from collectord.plan.session_plan import SessionPlan
from collectord.plan.sink_plan import SinkPlan
from collectord.source import tracefs
from collectord.source.window import Held
from tests.support import probed
from tests.support.daemons import NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from collectord.source.ftrace_ring import FtraceRing
    from tests.support.generator import Generator

pytestmark = pytest.mark.vm  # also with Linux 6.12

COUNT: Final = 2_000  # calls per thread of the generator
RING_BYTES: Final = 1 << 20
PAGE: Final = os.sysconf("SC_PAGESIZE")
CPUS: Final = LinuxKernel().online_cpus()
EVERYTHING: Final = Scope(ScopeKind.SYSTEM)
CALLS: Final = FtraceEvent("raw_syscalls", "sys_enter", f"id == {NUMBER}")
SECOND: Final = 1_000_000_000
# Maps the ring whose `trace_pipe_raw` is its standard input, and waits.
MAPPER: Final = """
import ctypes, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
address = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, 0, ctypes.c_long(0))
assert address != ctypes.c_void_p(-1).value, ctypes.get_errno()
print("mapped", flush=True)
signal.pause()
"""


@pytest.fixture
def stack(session: str) -> Iterator[ExitStack]:
    """Return the stack of resources that a test opens."""
    assert session
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def session(request: pytest.FixtureRequest, kernel: LinuxKernel) -> Iterator[str]:
    """Provide a session's name; if anything of it is in tracefs after the test, the test fails."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:40]
    session = f"{name}-{os.getpid()}"
    yield session
    root = kernel.tracefs.root
    left = find_leftovers(kernel.tracefs.root, f"collectord-{session}")
    for instance in left:
        with ExitStack() as cleanup:
            Instance.adopt(kernel.tracefs, instance, cleanup)
    assert left == ()
    assert not (root / "instances" / f"collectord-{session}").exists()
    assert group_of(session) not in (root / "dynamic_events").read_text()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> probed.Probed:
    """Return a library with one function to be probed."""
    return probed.build(tmp_path_factory.mktemp("probed"))


def plan_of(
    session: str,
    scope: Scope = EVERYTHING,
    *events: FtraceEvent,
    probes: tuple[Probe, ...] = (),
    cpus: tuple[int, ...] = CPUS,
    mode: str = "stream",
    **changes: Any,  # noqa: ANN401 - fields of FtracePlan
) -> SessionPlan:
    """Return a plan of `CALLS`, or of these events."""
    ftrace = FtracePlan(
        events=events if events or probes else (CALLS,),
        probes=probes,
        buffer_bytes=RING_BYTES,
        subbuf_bytes=PAGE,
        overwrite=True,
        buffer_percent=25,
        transport=Transport.READ,
        transport_reason="as configured",
    )
    ftrace = replace(ftrace, **changes)
    rings = tuple(
        RingPlan("tracefs", RingRole.DATA, cpu, RING_BYTES, RING_BYTES, RING_BYTES // 4, ())
        for cpu in cpus
    )
    sink = SinkPlan(format="trace.dat", directory="/nowhere")
    return SessionPlan(session, "tracefs", scope, mode, rings, sink, files=0, payload=ftrace)


def total(opened: tracefs.OpenTracefs, field: str = "value") -> int:
    """Return a figure of all rings' counters."""
    return sum(getattr(opened.read_produced(ring), field) for ring in opened.rings)


def drain(ring: FtraceRing) -> list[bytes]:
    """Read a ring until it is empty."""
    pages: list[bytes] = []
    with suppress(BlockingIOError):
        # Some kernels give the end of the file in place of EAGAIN.
        while page := os.read(ring.fd, ring.subbuf_bytes):
            pages.append(page)
    return pages


def events_of(opened: tracefs.OpenTracefs) -> int:
    """Drain all rings and count their events."""
    return sum(1 for ring in opened.rings for page in drain(ring) for _ in Walk(page))


def test_system_scope_counts_every_call(
    kernel: LinuxKernel, stack: ExitStack, session: str, generator: Generator
) -> None:
    """System-wide, the counters and the rings of all CPUs have each of a known number of calls."""
    opened = tracefs.open_session(kernel, plan_of(session), stack)
    with generator.start("count", nr=NUMBER, count=COUNT, threads=4) as running:
        opened.enable()
        running.run()
    opened.disable()
    assert (total(opened), total(opened, "unread"), total(opened, "lost")) == (8_000, 8_000, 0)
    assert events_of(opened) == 4 * COUNT
    assert (total(opened), total(opened, "read_events")) == (4 * COUNT, 4 * COUNT)
    assert total(opened, "unread") == 0
    assert (opened.target_fds, opened.event_ids) == ((), {})
    assert not opened.abilities.suppressible


def test_handles_describe_the_rings(kernel: LinuxKernel, stack: ExitStack, session: str) -> None:
    """A ring for each CPU of the plan, with what the kernel made of the sizes asked for."""
    plan = plan_of(session, subbuf_bytes=4 * PAGE, buffer_percent=50)
    opened = tracefs.open_session(kernel, plan, stack)
    assert [ring.label.cpu for ring in opened.rings] == list(CPUS)
    for ring in opened.rings:
        assert ring.basis is Basis.EXACT
        assert str(ring.label) == f"{session}/tracefs/data/cpu{ring.label.cpu}"
        assert (ring.subbuf_bytes, ring.held) == (4 * PAGE, False)
        assert (ring.transport, ring.page_map) == (Transport.READ, None)
        assert ring.geometry.data_bytes == ring.subbufs * 4 * PAGE >= RING_BYTES
        assert ring.geometry.watermark_bytes == ring.geometry.data_bytes // 2
        assert not os.get_blocking(ring.fd)


def test_listed_cpus_only(
    kernel: LinuxKernel,
    stack: ExitStack,
    session: str,
    generator: Generator,
    require: Callable[[str], None],
) -> None:
    """Calls on the listed one of two CPUs are recorded, and no others."""
    require("two CPUs")
    scope = Scope(ScopeKind.CPUS, cpus=CPUS[1:2])
    opened = tracefs.open_session(kernel, plan_of(session, scope, cpus=CPUS[1:2]), stack)
    opened.enable()
    for cpu, count in zip(CPUS, (300, 20), strict=False):
        with generator.start("count", nr=NUMBER, count=count, cpu=cpu) as running:
            running.run()
    assert (len(opened.rings), total(opened)) == (1, 20)
    instance = kernel.tracefs.root / "instances" / opened.tracing.name
    other = (instance / f"per_cpu/cpu{CPUS[0]}/stats").read_text()
    assert other.startswith("entries: 0\noverrun: 0\n")


def test_process_scope_covers_threads_before_and_after(
    kernel: LinuxKernel, stack: ExitStack, session: str, generator: Generator
) -> None:
    """All threads of a running process are counted, no other process; its end is reported."""
    with (
        generator.start("count", nr=NUMBER, count=COUNT, threads=4, later=4, hold=True) as running,
        generator.start("count", nr=NUMBER, count=COUNT) as other,
    ):
        scope = Scope(ScopeKind.PROCESS, pids=(running.pid,))
        opened = tracefs.open_session(kernel, plan_of(session, scope), stack)
        opened.enable()
        running.run()
        other.run()
        assert select.select(opened.target_fds, (), (), 0)[0] == []
    assert total(opened) == 8 * COUNT
    assert select.select(opened.target_fds, (), (), 10)[0] == list(opened.target_fds)


def test_threads_that_come_later_may_be_left_out(
    kernel: LinuxKernel, stack: ExitStack, session: str, generator: Generator
) -> None:
    """Without inheritance the threads that there are when the session is opened are counted."""
    with generator.start("count", nr=NUMBER, count=COUNT, threads=2, later=4) as running:
        scope = Scope(ScopeKind.PROCESS, pids=(running.pid,), inherit=False)
        opened = tracefs.open_session(kernel, plan_of(session, scope), stack)
        opened.enable()
        running.run()
    assert total(opened) == 2 * COUNT


def test_command_scope_covers_its_children(
    kernel: LinuxKernel, stack: ExitStack, session: str, generator: Generator
) -> None:
    """For a command that waits for its release, all calls of its children are counted."""
    words = generator.command("count", nr=NUMBER, count=COUNT)
    script = 'read line; "$@" & wait; "$@"'
    with (
        subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        ) as child,
        generator.start("count", nr=NUMBER, count=COUNT) as other,
    ):
        scope = Scope(ScopeKind.COMMAND, pids=(child.pid,))
        opened = tracefs.open_session(kernel, plan_of(session, scope), stack)
        opened.enable()
        other.run()
        child.communicate(b"\n")
    assert total(opened) == 2 * COUNT
    assert opened.target_fds == ()


@pytest.mark.parametrize("exclude_self", [True, False])
def test_own_threads(
    kernel: LinuxKernel, stack: ExitStack, session: str, *, exclude_self: bool
) -> None:
    """The program's own threads are left out if the plan says so, and only then."""
    plan = plan_of(session, events=(replace(CALLS, exclude_self=exclude_self),))
    tids = (threading.get_native_id(),)
    opened = tracefs.open_session(kernel, plan, stack, exclude_tids=tids)
    opened.enable()
    libc = ctypes.CDLL(None)
    for _ in range(30):
        libc.syscall(ctypes.c_long(NUMBER))
    assert total(opened) == (0 if exclude_self else 30)
    folder = kernel.tracefs.root / "instances" / opened.tracing.name
    assert (folder / "set_event_notrace_pid").read_text() == ""  # it would cost each switch


@pytest.mark.parametrize(
    ("overwrite", "mode", "kind"),
    [(True, "stream", Reason.OVERRUN), (False, "stream", Reason.DROPPED), (True, "", None)],
)
def test_a_ring_that_nobody_reads(
    kernel: LinuxKernel,
    stack: ExitStack,
    session: str,
    generator: Generator,
    *,
    overwrite: bool,
    mode: str,
    kind: Reason | None,
) -> None:
    """All calls are in the ring or lost, for the one reason; a flight recorder overwrites."""
    plan = plan_of(
        session, overwrite=overwrite, mode=mode or FLIGHT_RECORDER, buffer_bytes=8 * PAGE
    )
    opened = tracefs.open_session(kernel, plan, stack)
    with generator.start("count", nr=NUMBER, count=20 * COUNT, cpu=CPUS[0]) as running:
        opened.enable()
        running.run()
    opened.disable()
    ring = opened.rings[0]
    reading = opened.read_produced(ring)
    assert ring.held == (not mode)
    gone = 20 * COUNT - reading.unread
    assert reading.value == 20 * COUNT
    assert 0 < reading.unread < 2_000
    assert reading.lost == sum(reading.losses.values()) == (gone if mode else 0)
    assert reading.overwritten == (0 if mode else gone)
    assert kind is None or reading.losses[Stage.KERNEL_RING, kind] == gone
    assert reading.oldest_unread_age_ns is not None
    assert 0 <= reading.oldest_unread_age_ns < 60 * SECOND
    assert sum(1 for page in drain(ring) for _ in Walk(page)) == reading.unread


def test_counters_of_a_running_ring_never_go_back(
    kernel: LinuxKernel, stack: ExitStack, session: str, generator: Generator
) -> None:
    """While events are overwritten, readings rise up to what was generated and never beyond."""
    opened = tracefs.open_session(kernel, plan_of(session, buffer_bytes=8 * PAGE), stack)
    opened.enable()
    count = 300_000
    with generator.start("count", nr=NUMBER, count=count, cpu=CPUS[0]) as running:
        running.go()
        readings = [0]
        while len(readings) < 3_000 or not readings[-1]:
            readings.append(opened.read_produced(opened.rings[0]).value or 0)
        running.result()
    assert readings == sorted(readings)
    assert 0 < readings[-1] <= count == total(opened)


def test_somebody_empties_the_ring(
    kernel: LinuxKernel, stack: ExitStack, session: str, generator: Generator
) -> None:
    """A reset by somebody else is seen, and what was counted stays counted."""
    opened = tracefs.open_session(kernel, plan_of(session), stack)
    opened.enable()
    assert total(opened) == 0
    with generator.start("count", nr=NUMBER, count=50, hold=True) as running:
        running.run()
    assert total(opened) == 50
    (kernel.tracefs.root / "instances" / opened.tracing.name / "trace").write_text("")
    with generator.start("count", nr=NUMBER, count=7) as running:
        running.run()
    assert total(opened) == 57
    assert sum(opened.read_produced(ring).resets for ring in opened.rings) == 1


def test_markers(kernel: LinuxKernel, stack: ExitStack, session: str) -> None:
    """A marker is an event of the ring; before the session records it is refused."""
    opened = tracefs.open_session(kernel, plan_of(session), stack)
    with pytest.raises(KernelError, match="recording is off"):
        opened.tracing.mark("early")
    opened.enable()
    assert opened.tracing.mark("here and now") == len("here and now")
    assert total(opened) == 1
    pages = b"".join(page for ring in opened.rings for page in drain(ring))
    assert b"here and now" in pages


def test_what_a_file_says_beside_its_events(
    kernel: LinuxKernel, stack: ExitStack, session: str
) -> None:
    """Formats of the chosen events, of markers, names of tasks and the rings' counters."""
    events = (CALLS, FtraceEvent("sched", "sched_switch"), FtraceEvent("sched", "sched_waking"))
    opened = tracefs.open_session(
        kernel, plan_of(session, EVERYTHING, *events, subbuf_bytes=4 * PAGE), stack
    )
    metadata = opened.tracing.metadata()
    assert {system: len(texts) for system, texts in metadata.events.items()} == {
        "raw_syscalls": 1,
        "sched": 2,
    }
    assert any(text.startswith(b"name: print\n") for text in metadata.ftrace_events)
    assert (metadata.clock, metadata.kallsyms) == ("mono", b"")
    head = build_head(metadata, CPUS, 1 << 20)
    assert head.sub_buffer_bytes == 4 * PAGE
    comms = opened.tracing.comms()
    assert comms[os.getpid()] == Path("/proc/self/comm").read_bytes().rstrip(b"\n")
    texts = opened.tracing.ring_stats()
    assert list(texts) == list(CPUS)
    assert texts[CPUS[0]].startswith(f"CPU: {CPUS[0]}\nentries: 0\n")


def test_symbols_come_with_events_that_print_them(
    kernel: LinuxKernel, stack: ExitStack, session: str
) -> None:
    """An event whose text prints an address by name brings the kernel's functions along."""
    event = FtraceEvent("timer", "timer_start")
    opened = tracefs.open_session(kernel, plan_of(session, EVERYTHING, event), stack)
    found = opened.tracing.metadata().kallsyms
    assert re.search(rb"^[0-9a-f]+ [tT] schedule$", found, re.MULTILINE)
    assert not re.search(rb"^[0-9a-f]+ [dDbB] ", found, re.MULTILINE)


def test_probes_are_events(
    kernel: LinuxKernel, stack: ExitStack, session: str, library: probed.Probed
) -> None:
    """A probe of the plan counts the calls that its filter lets pass, and its format is known."""
    probe = Probe(ProbeKind.URETPROBE, "back", library.place, "value=$retval:s32", "value < 11")
    opened = tracefs.open_session(kernel, plan_of(session, probes=(probe,)), stack)
    opened.enable()
    assert [library.loaded.probed(number) for number in range(50)] == list(range(1, 51))
    opened.disable()
    assert total(opened) == 10
    assert set(opened.tracing.metadata().events) == {group_of(session)}


def test_two_recordings_at_once(kernel: LinuxKernel, stack: ExitStack) -> None:
    """Sessions that a command line made do not stand in each other's way, others do.

    A session may be opened a second time beside itself, as a reload does.
    """
    plan = plan_of("record")
    opened = tracefs.open_session(kernel, plan, stack)
    assert opened.tracing.name == f"collectord-record~{os.getpid()}"
    assert find_live(kernel.tracefs.root, opened.tracing.name) == (opened.tracing.name,)
    again = tracefs.open_session(kernel, plan, stack)
    assert again.tracing.name == f"{opened.tracing.name}+"
    with pytest.raises(KernelError, match=rf"pid {os.getpid()}\b") as caught:
        tracefs.open_session(kernel, plan, stack)
    assert caught.value.errno == errno.EEXIST


def test_a_mapped_ring(
    kernel: LinuxKernel,
    stack: ExitStack,
    session: str,
    generator: Generator,
    require: Callable[[str], None],
) -> None:
    """With transport mmap each ring is mapped."""
    require("mapped ftrace rings")
    opened = tracefs.open_session(kernel, plan_of(session, transport=Transport.MMAP), stack)
    opened.enable()
    with generator.start("count", nr=NUMBER, count=COUNT) as running:
        running.run()
    for ring in opened.rings:
        assert ring.page_map is not None
        assert ring.page_map.subbuf_bytes == ring.subbuf_bytes
        assert ring.page_map.subbufs == ring.subbufs + 1
    assert total(opened) == COUNT


def test_what_is_no_ring_cannot_be_mapped(tracefs: Path) -> None:
    """A file that the kernel does not map is told as a kernel that lacks it."""
    fd = os.open(tracefs / "per_cpu/cpu0/stats", os.O_RDONLY)
    try:
        with pytest.raises(MissingFeature, match=r"cannot map .*/per_cpu/cpu0/stats"):
            map_pages(fd, tuple)
    finally:
        os.close(fd)


@contextmanager
def using(opened: tracefs.OpenTracefs, code: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has a ring of the session as its standard input, and has said a word."""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=opened.rings[0].fd,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_other_readers_are_named(kernel: LinuxKernel, stack: ExitStack, session: str) -> None:
    """Other processes with an open file of the instance are reported, but not this one."""
    opened = tracefs.open_session(kernel, plan_of(session), stack)
    assert opened.tracing.other_readers() == ""
    with using(opened, "import signal; print(1, flush=True); signal.pause()") as process:
        name = Path(f"/proc/{process.pid}/comm").read_text().strip()
        assert opened.tracing.other_readers() == f"{name} (pid {process.pid})"


def test_a_flight_recorder_grows(
    kernel: LinuxKernel, stack: ExitStack, session: str, generator: Generator
) -> None:
    """A ring that holds too short a time grows, keeps its events, and says when it may no more."""
    plan = plan_of(
        session,
        mode=FLIGHT_RECORDER,
        buffer_bytes=16 * PAGE,
        keep_ns=20 * SECOND,
        max_bytes=len(CPUS) * 16 * PAGE + 32 * PAGE,
    )
    opened = tracefs.open_session(kernel, plan, stack)
    opened.enable()
    with generator.start("count", nr=NUMBER, count=100, cpu=CPUS[0]) as running:
        running.run()
    ring = opened.rings[0]
    size = ring.geometry.data_bytes
    control = kernel.tracefs.root / "instances" / opened.tracing.name / f"per_cpu/cpu{CPUS[0]}"
    before = int((control / "buffer_size_kb").read_text())
    held = Held(ring.label.cpu, used_bytes=size, window_ns=16 * SECOND)
    assert not opened.tracing.grew
    assert opened.tracing.keep_window([held]) == ""
    assert opened.tracing.grew
    grown = int((control / "buffer_size_kb").read_text())
    assert before < grown < 2 * before
    assert total(opened, "unread") == 100
    assert ring.subbufs * PAGE >= (grown << 10)
    short = held._replace(window_ns=2 * SECOND)
    assert "would be needed" in opened.tracing.keep_window([short])


def test_a_mapper_keeps_a_ring_from_growing(
    kernel: LinuxKernel, stack: ExitStack, session: str, require: Callable[[str], None]
) -> None:
    """While another process has the ring mapped it cannot grow: that process is named."""
    require("mapped ftrace rings")
    plan = plan_of(session, mode=FLIGHT_RECORDER, keep_ns=60 * SECOND, max_bytes=100 * RING_BYTES)
    opened = tracefs.open_session(kernel, plan, stack)
    ring = opened.rings[0]
    held = Held(ring.label.cpu, used_bytes=ring.geometry.data_bytes, window_ns=SECOND)
    with using(opened, MAPPER) as process:
        problem = opened.tracing.keep_window([held])
        assert "buffer_size_kb is busy" in problem
        assert f"(pid {process.pid})" in problem
    assert opened.tracing.keep_window([held]) == ""


def refused(
    kernel: LinuxKernel, plan: SessionPlan, error: type[CollectordError], words: str
) -> CollectordError:
    """Open a session that is refused in one clear line, and leaves nothing open."""
    with ExitStack() as stack, pytest.raises(error, match=words) as caught:
        tracefs.open_session(kernel, plan, stack)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("event", "error", "words"),
    [
        (FtraceEvent("sched", "sched_swich"), UnknownEvent, 'did you mean "sched:sched_switch"'),
        (
            FtraceEvent("sched", "sched_switch", "nxt_pid == 1"),
            UsageError,
            r'Field not found, at character \d+; did you mean "next_pid"',
        ),
        (FtraceEvent("sched", "sched_switch", "(next_pid == 1"), UsageError, r"Too many '\('"),
        (FtraceEvent("ftrace", "print"), UnknownEvent, "cannot be enabled"),
    ],
)
def test_refused_events(
    kernel: LinuxKernel,
    session: str,
    event: FtraceEvent,
    error: type[CollectordError],
    words: str,
) -> None:
    """An unknown event and a bad filter are told in the kernel's words, with what is near."""
    refused(kernel, plan_of(session, EVERYTHING, event), error, words)


def test_refused_probe(kernel: LinuxKernel, session: str, library: probed.Probed) -> None:
    """A probe that cannot be placed is told with the kernel's reason; the others go too."""
    good = Probe(ProbeKind.UPROBE, "good", library.place)
    bad = Probe(ProbeKind.UPROBE, "bad", f"{library.path}.gone:0x10")
    plan = plan_of(session, probes=(good, bad))
    refused(kernel, plan, UsageError, r"cannot place uprobe bad at .*given file")


def test_refused_size(kernel: LinuxKernel, session: str) -> None:
    """Sub-buffers larger than the kernel makes them are refused by name."""
    plan = plan_of(session, subbuf_bytes=1 << 20)
    refused(kernel, plan, KernelError, "buffer_subbuf_size_kb")


def test_missing_targets(kernel: LinuxKernel, session: str) -> None:
    """CPUs and processes that do not exist are named."""
    absent = plan_of(session, Scope(ScopeKind.CPUS, cpus=(7_999,)), cpus=(7_999,))
    assert "CPUs online: " in refused(kernel, absent, NoSuchTarget, "CPU 7999 is offline").hint
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    process = plan_of(session, Scope(ScopeKind.PROCESS, pids=(gone.pid,)))
    refused(kernel, process, NoSuchTarget, f"pid {gone.pid} does not exist")


def test_no_tracefs(session: str, tmp_path: Path) -> None:
    """Without tracefs that is said, and nothing is mounted."""
    kernel = LinuxKernel(tracefs=Tracefs(tmp_path))
    refused(kernel, plan_of(session), MissingFeature, "CONFIG_FTRACE")


def test_tracefs_without_instances(session: str, tmp_path: Path) -> None:
    """A tree that has no instances, as lockdown leaves it, is told as such."""
    (tmp_path / "events").mkdir()
    kernel = LinuxKernel(tracefs=Tracefs(tmp_path))
    error = refused(kernel, plan_of(session), MissingFeature, "no .*/instances")
    assert "lockdown" in error.hint


def test_lockdown(session: str, tmp_path: Path) -> None:
    """Under lockdown that is said before anything is tried, and a mount is not made."""
    (tmp_path / "kernel/security").mkdir(parents=True)
    (tmp_path / "kernel/security/lockdown").write_text("none integrity [confidentiality]\n")
    (tmp_path / "kernel/tracing").mkdir()
    cpus = tmp_path / "devices/system/cpu"
    cpus.mkdir(parents=True)
    (cpus / "online").write_text(Path("/sys/devices/system/cpu/online").read_text())
    kernel = LinuxKernel(sys=tmp_path)
    refused(kernel, plan_of(session), MissingPrivilege, "lockdown .* closes tracefs")


def test_the_filter_trial_is_nobodys_leftover(
    kernel: LinuxKernel, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance that a refused perf filter is tried in is locked while it is there."""
    assert session
    name = f"collectord-filter-{os.getpid()}"
    seen: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    words = kernel_tracefs._refusal_words

    def poll(path: Path, text: str) -> str:
        found = words(path, text)
        seen.append(
            (find_live(kernel.tracefs.root, name), find_leftovers(kernel.tracefs.root, name))
        )
        return found

    monkeypatch.setattr(kernel_tracefs, "_refusal_words", poll)
    assert "Field not found" in kernel.filter_refusal(
        Tracepoint("sched", "sched_switch"), "nothing == 1"
    )
    assert seen == [((name,), ())]
    assert not (kernel.tracefs.root / "instances" / name).exists()
