# SPDX-License-Identifier: Apache-2.0
"""A tracefs instance of one's own on the running kernel: set up, drained, left, taken over."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.config.trace_probe import Probe, ProbeKind
from collectord.errors import (
    KernelError,
    MissingFeature,
    NoSuchTarget,
    UnknownEvent,
    UsageError,
)
from collectord.kernel.tracefs import trace_probes
from collectord.kernel.tracefs.control_files import NEED
from collectord.kernel.tracefs.instance import Instance
from collectord.kernel.tracefs.instance_lock import find_leftovers, find_live
from collectord.kernel.tracefs.mount import Tracefs
from collectord.kernel.values.instance_settings import InstanceSettings, TraceEvent
from tests.support import probed as probed_support

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.support.probed import Probed

pytestmark = [pytest.mark.vm, pytest.mark.alone]  # also with Linux 6.12

ROOT: Final = Path(__file__).parents[2]
PROC: Final = Path("/proc")
NOBODY: Final = 65_534
PAGE: Final = mmap.PAGESIZE
GETPPID: Final = {"x86_64": 110, "aarch64": 173}
SYS_ENTER: Final = ("raw_syscalls", "sys_enter")
# All that belongs to everybody.
TOP_LEVEL: Final = (
    "tracing_on",
    "current_tracer",
    "trace_clock",
    "set_event",
    "set_event_pid",
    "set_event_notrace_pid",
    "buffer_size_kb",
    "buffer_subbuf_size_kb",
    "buffer_percent",
    "tracing_cpumask",
    "trace_options",
    "dynamic_events",
)
UNPLACEABLE: Final = Probe(ProbeKind.UPROBE, "x", "/nothing:0x0")
# Makes an instance, marks it and waits; prints one line when all is in the ring.
OWNER: Final = """
import sys
from contextlib import ExitStack
from pathlib import Path
from collectord.kernel.tracefs.instance import Instance
from collectord.kernel.values.instance_settings import InstanceSettings
from collectord.kernel.values.instance_settings import TraceEvent
from collectord.config.trace_probe import Probe, ProbeKind
from collectord.kernel.tracefs.mount import Tracefs
session, probed = sys.argv[1:]
probe = Probe(ProbeKind.UPROBE, "probed", probed)
with ExitStack() as stack:
    settings = InstanceSettings(session, 1 << 17, 1 << 12, probes=(probe,))
    instance = Instance.create(Tracefs(Path("/sys/kernel/tracing")), settings, stack)
    rings = [instance.open_ring(cpu) for cpu in instance.cpus()]
    instance.choose([TraceEvent("sched", "sched_process_hang"), *instance.probe_events])
    instance.enable()
    for number in range(100):
        instance.mark(f"mark {number:04d} of the owner")
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def tree(tracefs: Path) -> Tracefs:
    """Return the kernel's tracefs."""
    return Tracefs(tracefs)


@pytest.fixture
def settings(request: pytest.FixtureRequest, tree: Tracefs) -> Iterator[InstanceSettings]:
    """Return settings of an instance named after the test; if it remains, the test fails."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))
    session = f"{name[:30]}-{os.getpid()}"
    yield InstanceSettings(session, buffer_bytes=128 << 10, subbuf_bytes=PAGE, buffer_percent=25)
    prefix = f"collectord-{session}"
    left = find_leftovers(tree.root, prefix)
    for instance in left:
        with ExitStack() as stack:
            Instance.adopt(tree, instance, stack)
    trace_probes.remove_orphans(tree, prefix, proc=PROC)
    assert left == ()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Probed:
    """Return a library with one function to be probed."""
    return probed_support.build(tmp_path_factory.mktemp("probed"))


@pytest.fixture(scope="session")
def library(built: Probed) -> Path:
    """Return the library's file."""
    return built.path


@pytest.fixture(scope="session")
def probed(built: Probed) -> ctypes.CDLL:
    """Return the library, loaded."""
    return built.loaded


@pytest.fixture(scope="session")
def place(built: Probed) -> str:
    """Return the function's offset in its file."""
    return built.place


def own_calls(extra: str = "") -> TraceEvent:
    """Count calls of getppid by this thread."""
    number = GETPPID[platform.machine()]
    own = f"id == {number} && common_pid == {threading.get_native_id()}"
    return TraceEvent(*SYS_ENTER, own + extra)


def call(times: int) -> None:
    """Make events of `own_calls`."""
    for _ in range(times):
        os.getppid()


def fill(instance: Instance, text: str) -> None:
    """Mark until a marker is refused; far more would overwrite."""
    for _ in range(500):
        instance.mark(text)


def drain(raw_fd: int, subbuf_bytes: int) -> list[bytes]:
    """Read sub-buffers until there is none."""
    pages = []
    while True:
        try:
            pages.append(os.read(raw_fd, subbuf_bytes))
        except BlockingIOError:
            return pages


def append(tree: Tracefs, definition: str) -> None:
    """Write a dynamic event's definition as a user would."""
    # Python's "a" seeks, which Linux 6.12 refuses here
    fd = os.open(tree.root / "dynamic_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, definition.encode())
    finally:
        os.close(fd)


@contextmanager
def owner(session: str, place: str) -> Iterator[subprocess.Popen[str]]:
    """Provide a process that has made the instance and marked it 100 times."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, session, place],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.mark.parametrize("subbuf_bytes", [PAGE, 4 * PAGE, 3 * PAGE - 5])
def test_settings_take_effect(
    tree: Tracefs, settings: InstanceSettings, subbuf_bytes: int
) -> None:
    """Sizes are rounded up and read back; the rest is as asked for; the end leaves nothing."""
    with ExitStack() as stack:
        wanted = replace(settings, subbuf_bytes=subbuf_bytes, overwrite=False)
        instance = Instance.create(tree, wanted, stack)
        found = instance.effective()
        assert found.subbuf_bytes == (PAGE if subbuf_bytes == PAGE else 4 * PAGE)
        assert found.buffer_bytes >= wanted.buffer_bytes
        assert found.buffer_bytes < wanted.buffer_bytes + 3 * found.subbuf_bytes
        assert (found.overwrite, found.buffer_percent, found.clock) == (False, 25, "mono")
        with pytest.raises(KernelError, match="recording is off"):
            instance.mark("early")
        instance.enable()
        assert instance.mark("in time") == len("in time")
        instance.disable()
        with pytest.raises(KernelError, match="recording is off"):
            instance.mark("late")
        assert find_live(tree.root, instance.name) == (instance.name,)
    assert not instance.path.exists()


def test_counts_of_the_kernel(
    tree: Tracefs, settings: InstanceSettings, require: Callable[[str], None]
) -> None:
    """Between enable and disable, and only there, events that pass the filter are counted."""
    require("raw_syscalls tracepoints")
    with ExitStack() as stack:
        instance = Instance.create(tree, settings, stack)
        rings = [instance.open_ring(cpu) for cpu in instance.cpus()]
        instance.choose([own_calls()])
        call(10)
        instance.enable()
        call(300)
        instance.disable()
        call(10)
        stats = [ring.stats() for ring in rings]
        assert sum(one.written for one in stats) == 300
        assert sum(one.entries for one in stats) == 300
        for one in stats:
            assert (one.oldest_event_ns is None) == (one.entries == 0)
            assert one.oldest_event_ns is None or 0 < one.oldest_event_ns <= one.now_ns
        for ring in rings:
            drain(ring.raw_fd, instance.effective().subbuf_bytes)
        after = [ring.stats() for ring in rings]
        assert sum(one.read_events for one in after) == 300
        assert [one.written for one in after] == [one.written for one in stats]


def test_the_rest_of_tracefs_is_untouched(
    tree: Tracefs, settings: InstanceSettings, place: str
) -> None:
    """The top level and other instances read the same before, during (probes aside) and after."""
    other = tree.root / "instances" / f"other-{os.getpid()}"

    def state() -> dict[str, bytes]:
        return {
            str(folder / leaf): (folder / leaf).read_bytes()
            for folder in (tree.root, other)
            for leaf in TOP_LEVEL
            if (folder / leaf).exists()
        }

    with ExitStack() as cleanup:
        other.mkdir()
        cleanup.callback(other.rmdir)
        before = state()
        with ExitStack() as stack:
            wanted = replace(
                settings,
                overwrite=False,
                subbuf_bytes=2 * PAGE,
                pids=(os.getpid(),),
                cpus=(0,),
                probes=(Probe(ProbeKind.UPROBE, "probed", place),),
            )
            instance = Instance.create(tree, wanted, stack)
            instance.open_ring(0)
            instance.choose([TraceEvent("sched", "sched_switch"), *instance.probe_events])
            instance.enable()
            during = state()
        probes = str(tree.root / "dynamic_events")
        assert during.pop(probes) != before[probes]
        assert during == {name: text for name, text in before.items() if name != probes}
        assert state() == before


@pytest.mark.parametrize("overwrite", [True, False])
def test_full_ring(tree: Tracefs, settings: InstanceSettings, *, overwrite: bool) -> None:
    """A full ring gives up the oldest, or refuses the newest and the marker's writer is told."""
    with ExitStack() as stack:
        cpu = min(os.sched_getaffinity(0))
        instance = Instance.create(
            tree, replace(settings, overwrite=overwrite, cpus=(cpu,)), stack
        )
        ring = instance.open_ring(cpu)
        instance.enable()
        text = "x" * 1000
        if overwrite:
            fill(instance, text)
            stats = ring.stats()
            assert stats.written == 500
            assert stats.overrun > 300
            assert stats.dropped == 0
            return
        with pytest.raises(KernelError, match="marker was not written into session"):
            fill(instance, text)
        stats = ring.stats()
        assert 90 < stats.entries < 200
        assert (stats.dropped, stats.overrun) == (1, 0)


def test_cpu_list(
    tree: Tracefs, settings: InstanceSettings, require: Callable[[str], None]
) -> None:
    """Only listed CPUs record; a marker is written there whichever CPU its writer runs on."""
    require("two CPUs")
    require("raw_syscalls tracepoints")
    before = os.sched_getaffinity(0)
    first, second = sorted(before)[:2]
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, before)
        instance = Instance.create(tree, replace(settings, cpus=(second,)), stack)
        assert instance.cpus() == (second,)
        rings = [instance.open_ring(cpu) for cpu in (first, second)]
        instance.choose([own_calls()])
        instance.enable()
        os.sched_setaffinity(0, {first})
        call(50)
        instance.mark("here")
        assert os.sched_getaffinity(0) == {first}
        os.sched_setaffinity(0, {second})
        call(7)
        assert [ring.stats().written for ring in rings] == [0, 8]


def test_processes_are_followed(
    tree: Tracefs, settings: InstanceSettings, require: Callable[[str], None]
) -> None:
    """Threads that run already, new ones and children are traced; other processes are not."""
    require("raw_syscalls tracepoints")
    wanted = threading.Event()
    counted = []

    def body() -> None:
        wanted.wait()
        call(20)

    def total() -> int:
        return sum(ring.stats().written for ring in rings)

    def threads() -> list[int]:
        return [int(task.name) for task in Path("/proc/self/task").iterdir()]

    spin = "import os\nwhile os.getppid() != 1: pass"
    other = subprocess.Popen([sys.executable, "-c", spin])
    with ExitStack() as stack:
        stack.enter_context(other)
        stack.callback(other.kill)
        running = threading.Thread(target=body)
        running.start()
        stack.callback(running.join)
        stack.callback(wanted.set)
        instance = Instance.create(tree, replace(settings, pids=(os.getpid(),)), stack)
        rings = [instance.open_ring(cpu) for cpu in instance.cpus()]
        assert instance.follow(threads) == len(threads())
        number = GETPPID[platform.machine()]
        instance.choose([TraceEvent(*SYS_ENTER, f"id == {number}")])
        instance.enable()
        wanted.set()
        running.join()
        counted.append(total())
        late = threading.Thread(target=body)
        late.start()
        late.join()
        counted.append(total())
        code = "import os\nfor _ in range(5): os.getppid()"
        subprocess.run([sys.executable, "-c", code], check=True)
        counted.append(total())
    assert counted == [20, 40, 45]


@pytest.mark.parametrize("others", [(), (1,), (1, 1 << 21), (1 << 21,)])
def test_threads_are_left_out(
    tree: Tracefs,
    settings: InstanceSettings,
    require: Callable[[str], None],
    others: tuple[int, ...],
) -> None:
    """A thread that is left out makes no events, its sibling does, between others' ids or not."""
    require("raw_syscalls tracepoints")
    number = GETPPID[platform.machine()]
    with ExitStack() as stack:
        instance = Instance.create(tree, settings, stack)
        rings = [instance.open_ring(cpu) for cpu in instance.cpus()]
        started, go = threading.Event(), threading.Event()

        def body() -> None:
            started.set()
            go.wait()
            call(9)

        sibling = threading.Thread(target=body)
        sibling.start()
        stack.callback(sibling.join)
        stack.callback(go.set)
        started.wait()
        either = f"common_pid == {os.getpid()} || common_pid == {sibling.native_id}"
        own = f"id == {number} && ({either})"
        instance.choose([TraceEvent(*SYS_ENTER, own, exclude_tids=(*others, os.getpid()))])
        instance.enable()
        call(30)
        go.set()
        sibling.join()
        assert sum(ring.stats().written for ring in rings) == 9


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nxt_pid == 1", r"Field not found, at character \d+; did you mean \"next_pid\"\?"),
        ("qqqqq == 1", r"Field not found.*its fields are .*prev_comm, prev_pid"),
        ("prev_pid = 1", "Invalid operator, at character 11$"),
        ("(prev_pid == 1", r"Too many '\('"),
        ("prev_comm == 'x", "Missing matching quote"),
        ("prev_pid == 1" + " && prev_pid == 1" * 300, "longer than 4095 bytes"),
    ],
)
def test_refused_filter(tree: Tracefs, settings: InstanceSettings, text: str, reason: str) -> None:
    """A bad filter gives the kernel's words, where they point to, and the nearest field."""
    with ExitStack() as stack:
        instance = Instance.create(tree, settings, stack)
        with pytest.raises(UsageError, match=reason) as caught:
            instance.choose([TraceEvent("sched", "sched_switch", text)])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (TraceEvent("sched", "sched_swich"), 'did you mean "sched:sched_switch"'),
        (TraceEvent("ftrace", "print"), "cannot be enabled"),
        (TraceEvent("../../../events/sched", "sched_switch"), "no tracepoint ../.."),
    ],
)
def test_unknown_event(
    tree: Tracefs, settings: InstanceSettings, event: TraceEvent, words: str
) -> None:
    """An event that is not there is told with the nearest name, one of ftrace's own as such."""
    with ExitStack() as stack:
        instance = Instance.create(tree, settings, stack)
        with pytest.raises(UnknownEvent, match=re.escape(words)):
            instance.choose([event])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda good: replace(good, subbuf_bytes=1 << 20), KernelError),
        (lambda good: replace(good, buffer_bytes=1 << 60), KernelError),
        (lambda good: replace(good, buffer_percent=101), KernelError),
        (lambda good: replace(good, cpus=(8000,)), NoSuchTarget),
        (lambda good: replace(good, probes=(UNPLACEABLE,)), UsageError),
    ],
)
def test_refused_setting_leaves_nothing(
    tree: Tracefs,
    settings: InstanceSettings,
    change: Callable[[InstanceSettings], InstanceSettings],
    error: type[Exception],
) -> None:
    """Whatever the kernel refuses while an instance is set up, nothing of it stays."""
    wanted = change(settings)
    with ExitStack() as stack, pytest.raises(error):
        Instance.create(tree, wanted, stack)
    assert not (tree.root / "instances" / f"collectord-{settings.session}").exists()
    assert (
        trace_probes.group_of(settings.session)
        not in tree.root.joinpath("dynamic_events").read_text()
    )


def test_left_by_a_kill(tree: Tracefs, settings: InstanceSettings, place: str) -> None:
    """The instance of a killed process is found, stopped, read to the last event, and removed."""
    name = f"collectord-{settings.session}"
    with owner(settings.session, place) as process:
        assert find_leftovers(tree.root, name) == ()
        with ExitStack() as stack, pytest.raises(KernelError, match=f"pid {process.pid}") as busy:
            Instance.adopt(tree, name, stack)
        assert busy.value.errno == errno.EBUSY
        with ExitStack() as stack, pytest.raises(KernelError, match="exists already") as exists:
            Instance.create(tree, settings, stack)
        assert f"pid {process.pid}" in exists.value.hint
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert find_leftovers(tree.root, name) == (name,)
        with ExitStack() as stack, pytest.raises(KernelError, match="left by a crash"):
            Instance.create(tree, settings, stack)
        assert find_leftovers(tree.root, name) == (name,)
        with ExitStack() as stack:
            instance = Instance.adopt(tree, name, stack)
            assert find_leftovers(tree.root, name) == ()
            assert (instance.session, instance.effective().clock) == (settings.session, "mono")
            assert {str(event) for event in instance.events} == {
                "sched:sched_process_hang",
                f"{trace_probes.group_of(settings.session)}:probed",
            }
            rings = [instance.open_ring(cpu) for cpu in instance.cpus()]
            written = sum(ring.stats().written for ring in rings)
            pages = [
                page
                for ring in rings
                for page in drain(ring.raw_fd, instance.effective().subbuf_bytes)
            ]
            text = b"".join(pages).decode("latin-1")
            assert written == 100
            assert sorted(re.findall(r"mark (\d{4}) of the owner", text)) == [
                f"{number:04d}" for number in range(100)
            ]
    assert find_leftovers(tree.root, name) == ()
    assert not (tree.root / "instances" / name).exists()
    assert settings.session.replace("-", "_") not in (tree.root / "dynamic_events").read_text()
    with ExitStack() as stack, pytest.raises(NoSuchTarget):
        Instance.adopt(tree, name, stack)


def test_busy_instance_names_its_reader(tree: Tracefs, settings: InstanceSettings) -> None:
    """An instance that somebody reads cannot be removed: who is said, and it is found later."""
    stack = ExitStack()
    instance = Instance.create(tree, settings, stack)
    # `exec` at once, so that no copy of this process's descriptors is left in it.
    with instance.path.joinpath("trace").open("rb") as trace:
        reader = subprocess.Popen(["sleep", "60"], stdin=trace)
    with reader:
        with pytest.raises(KernelError, match=rf"kept by sleep \(pid {reader.pid}\)") as caught:
            stack.close()
        reader.kill()
    assert caught.value.errno == errno.EBUSY
    assert find_leftovers(tree.root, instance.name) == (instance.name,)
    with ExitStack() as again:
        Instance.adopt(tree, instance.name, again)
    assert not instance.path.exists()


def test_resizing(tree: Tracefs, settings: InstanceSettings) -> None:
    """Growing keeps every event; while somebody has a ring mapped it is refused, with who."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    with ExitStack() as stack:
        cpu = min(os.sched_getaffinity(0))
        instance = Instance.create(tree, replace(settings, cpus=(cpu,)), stack)
        ring = instance.open_ring(cpu)
        instance.enable()
        for _ in range(200):
            instance.mark("before")
        before = instance.effective().buffer_bytes
        instance.resize(2 * before)
        assert instance.effective().buffer_bytes >= 2 * before
        assert ring.stats().entries == 200
        address = libc.mmap(None, PAGE, mmap.PROT_READ, mmap.MAP_SHARED, ring.raw_fd, 0)
        if address == ctypes.c_void_p(-1).value:
            assert ctypes.get_errno() == errno.ENODEV  # before 6.10
            return
        try:
            with pytest.raises(KernelError, match=rf"pid {os.getpid()}\b") as caught:
                instance.resize(before)
            assert caught.value.errno == errno.EBUSY
        finally:
            libc.munmap(address, PAGE)


def test_uprobe(
    tree: Tracefs, settings: InstanceSettings, place: str, probed: ctypes.CDLL
) -> None:
    """A probe of the session's own group counts each call that its filter lets pass, then goes."""
    probes = (
        Probe(ProbeKind.UPROBE, "call", place, "n=%di:s32" if PAGE == 4096 else ""),
        Probe(ProbeKind.URETPROBE, "back", place, "value=$retval:s32"),
    )
    group = trace_probes.group_of(settings.session)
    with ExitStack() as stack:
        instance = Instance.create(tree, replace(settings, probes=probes), stack)
        assert [str(event) for event in instance.probe_events] == [
            f"{group}:call",
            f"{group}:back",
        ]
        rings = [instance.open_ring(cpu) for cpu in instance.cpus()]
        back = replace(instance.probe_events[1], filter="value < 11")
        instance.choose([instance.probe_events[0], back])
        instance.enable()
        assert [probed.probed(number) for number in range(50)] == list(range(1, 51))
        instance.disable()
        assert sum(ring.stats().written for ring in rings) == 50 + 10
    assert group not in (tree.root / "dynamic_events").read_text()


def test_probe_that_cannot_be_placed(
    tree: Tracefs, settings: InstanceSettings, library: Path, place: str
) -> None:
    """The kernel's reason comes in one line with the word that it points at; nothing stays."""
    cases = {
        Probe(
            ProbeKind.UPROBE, "a", place, "x=%zz"
        ): r"Invalid register name, at character \d+: '%?zz'",
        Probe(ProbeKind.UPROBE, "b", f"{library}.gone:0x10"): "Failed to find the given file, at",
        Probe(ProbeKind.UPROBE, "c", "/etc:0x10"): "Not a regular file",
    }
    for probe, reason in cases.items():
        good = Probe(ProbeKind.UPROBE, "good", place)
        with ExitStack() as stack, pytest.raises(UsageError, match=reason) as caught:
            Instance.create(tree, replace(settings, probes=(good, probe)), stack)
        assert f"cannot place uprobe {probe.name} at" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert settings.session.replace("-", "_") not in (tree.root / "dynamic_events").read_text()


def test_probe_refused_when_enabled(
    tree: Tracefs, settings: InstanceSettings, tmp_path: Path
) -> None:
    """A place that the kernel looks at only when the event is enabled is told as the probe's."""
    source = tmp_path / "bytes.s"
    # No instruction starts with these in 64-bit mode.
    source.write_text(".text\n.globl bytes\n.balign 64\nbytes: .fill 64, 1, 0x06\n")
    shared = tmp_path / "bytes.so"
    plain = ("-shared", "-nostdlib", "-Wl,-z,noexecstack")  # which assembly asks for if untold
    subprocess.run(["gcc", *plain, "-o", shared, source], check=True)
    offset = shared.read_bytes().index(b"\x06" * 64)
    bad = Probe(ProbeKind.UPROBE, "bad", f"{shared}:{offset:#x}")
    with ExitStack() as stack:
        instance = Instance.create(tree, replace(settings, probes=(bad,)), stack)
        mapped = ctypes.CDLL(str(shared))  # the kernel looks when it is mapped somewhere
        instance.choose(instance.probe_events)
        with pytest.raises(UsageError, match=f"cannot place uprobe bad at {mapped._name}:"):
            instance.enable()


@pytest.mark.parametrize(
    ("probe", "text"),
    [
        (Probe(ProbeKind.KPROBE, "k", "do_exit"), "p:{}/try do_exit"),
        (Probe(ProbeKind.KRETPROBE, "k", "do_exit"), "r:{}/try do_exit"),
        (
            Probe(ProbeKind.EPROBE, "e", "sched.sched_switch", "pid=$next_pid", "next_pid > 1"),
            "e:{}/try sched.sched_switch",
        ),
    ],
)
def test_other_probes(tree: Tracefs, settings: InstanceSettings, probe: Probe, text: str) -> None:
    """Probes on the kernel and on events are made, or the kernel's lack of them is told."""
    group = f"try_{os.getpid()}"
    outcome: AbstractContextManager[object] = nullcontext()
    try:
        append(tree, text.format(group))
    except OSError:
        outcome = pytest.raises(
            MissingFeature, match=f"this kernel has no {probe.kind}s; .*CONFIG"
        )
    else:
        append(tree, f"-:{group}/try")
    with ExitStack() as stack, outcome:
        instance = Instance.create(tree, replace(settings, probes=(probe,)), stack)
        instance.choose(instance.probe_events)
        instance.enable()


def test_orphaned_probes(tree: Tracefs, settings: InstanceSettings, place: str) -> None:
    """Probes without an instance are removed, those of a session that runs are not."""
    live = replace(
        settings,
        session=f"{settings.session}-live",
        probes=(Probe(ProbeKind.UPROBE, "kept", place),),
    )
    orphans = trace_probes.TraceProbes(tree, f"{settings.session}-gone", proc=PROC)
    with ExitStack() as stack:
        stack.callback(orphans.remove)
        Instance.create(tree, live, stack)
        orphans.make([Probe(ProbeKind.UPROBE, "orphan", place)])
        trace_probes.remove_orphans(tree, f"collectord-{settings.session}", proc=PROC)
        text = (tree.root / "dynamic_events").read_text()
        assert f"{trace_probes.group_of(live.session)}/kept" in text
        assert f"{orphans.group}/orphan" not in text


def test_probe_that_others_use(tree: Tracefs, settings: InstanceSettings, place: str) -> None:
    """A probe that another instance has enabled cannot be removed; the others are."""
    probes = trace_probes.TraceProbes(tree, settings.session, proc=PROC)
    other = tree.root / "instances" / f"other-{os.getpid()}"
    with ExitStack() as stack:
        stack.callback(probes.remove)
        probes.make(Probe(ProbeKind.UPROBE, name, place) for name in ("one", "two"))
        other.mkdir()
        stack.callback(other.rmdir)
        (other / "events" / probes.group / "one" / "enable").write_text("1")
        with pytest.raises(
            KernelError, match=f"cannot remove probe {probes.group}/one "
        ) as caught:
            probes.remove()
        assert caught.value.errno == errno.EBUSY
        text = (tree.root / "dynamic_events").read_text()
        assert f"{probes.group}/one" in text
        assert f"{probes.group}/two" not in text
        (other / "events" / probes.group / "one" / "enable").write_text("0")
        probes.adopt()


@pytest.mark.parametrize("capability", ["-all", "+dac_override"])
def test_least_privilege(tree: Tracefs, settings: InstanceSettings, capability: str) -> None:
    """Another user needs CAP_DAC_OVERRIDE and is told so; with it alone everything works."""
    script = (
        "import sys\n"
        "from contextlib import ExitStack\n"
        "from pathlib import Path\n"
        "from collectord.errors import MissingPrivilege\n"
        "from collectord.kernel.tracefs.instance import Instance\n"
        "from collectord.kernel.values.instance_settings import InstanceSettings\n"
        "from collectord.kernel.values.instance_settings import TraceEvent\n"
        "from collectord.kernel.tracefs.mount import Tracefs\n"
        "try:\n"
        "    with ExitStack() as stack:\n"
        f"        settings = InstanceSettings({settings.session!r}, 1 << 16, 1 << 12)\n"
        f"        instance = Instance.create(Tracefs(Path({str(tree.root)!r})), settings, stack)\n"
        "        instance.open_ring(0)\n"
        "        instance.choose([TraceEvent('sched', 'sched_switch')])\n"
        "        instance.enable()\n"
        "    print('done')\n"
        "except MissingPrivilege as error:\n"
        "    print(error.need)\n"
    )
    ids = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    done = subprocess.run(
        [
            "setpriv",
            *ids,
            f"--inh-caps={capability}",
            f"--ambient-caps={capability}",
            sys.executable,
            "-c",
            script,
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ("done" if "override" in capability else NEED)
