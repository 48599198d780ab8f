# SPDX-License-Identifier: Apache-2.0
"""After a kill nothing that a ring still has is lost, and nothing of it comes twice."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from collectord.codec.ftrace_page import Walk
from collectord.errors import KernelError
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.tracefs.instance import Instance
from collectord.kernel.values.instance_settings import InstanceSettings, TraceEvent
from collectord.kernel.values.ring_stats import stats_text
from collectord.model import Basis
from collectord.recovery.ftrace_rings import salvage_leftovers
from collectord.recovery.left_pages import pages, pages_by_cpu
from collectord.sink.repair import repair
from tests.support import daemons, segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Start = Callable[..., subprocess.Popen[str]]

    from collectord.kernel.values.left_instance import LeftInstance
    from collectord.recovery.ftrace_rings import Salvaged

pytestmark = [pytest.mark.vm, pytest.mark.alone]  # also with Linux 6.12

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = os.sysconf("SC_PAGESIZE")
CPU: Final = min(os.sched_getaffinity(0))
# The clock of files lags by up to one.
TICK_NS: Final = 10_000_000
# Marks, reads or maps and marks again, as its arguments say; what it read goes to the last file.
OWNER: Final = """
import ctypes, fcntl, sys
from contextlib import ExitStack
from pathlib import Path
from collectord.kernel.tracefs.instance import Instance
from collectord.kernel.values.instance_settings import InstanceSettings
from collectord.kernel.values.instance_settings import TraceEvent
from collectord.kernel.tracefs.mount import Tracefs
import os
session, cpu, subbuf, out, size, *steps = sys.argv[1:]
number = 0
pages = []
with ExitStack() as stack:
    settings = InstanceSettings(session, int(size), int(subbuf), cpus=(int(cpu),))
    instance = Instance.create(Tracefs(Path("/sys/kernel/tracing")), settings, stack)
    ring = instance.open_ring(int(cpu))
    instance.choose([TraceEvent("sched", "sched_process_hang")])
    instance.enable()
    for step in steps:
        word, _, count = step.partition("=")
        if word == "mark":
            for _ in range(int(count)):
                instance.mark(f"<{number:05d}>")
                number += 1
        elif word == "read":
            pages += [os.read(ring.raw_fd, int(subbuf)) for _ in range(int(count))]
        elif word == "map":
            libc = ctypes.CDLL(None, use_errno=True)
            libc.mmap.restype = ctypes.c_void_p
            length = ctypes.c_size_t(int(subbuf))
            libc.mmap(None, length, 1, 1, ring.raw_fd, ctypes.c_long(0))
        elif word == "get":
            fcntl.ioctl(ring.raw_fd, 0x5220)
    Path(out).write_bytes(b"".join(pages))
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def session(request: pytest.FixtureRequest, kernel: LinuxKernel) -> Iterator[str]:
    """Provide a session's name; if its instance is there after the test, the test fails."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:30]
    session = f"{name}-{os.getpid()}"
    yield session
    left = [name for name in kernel.leftover_instances() if session in name]
    for name in left:
        with ExitStack() as cleanup:
            Instance.adopt(kernel.tracefs, name, cleanup)
    assert left == []


@pytest.fixture
def _mapped(require: Callable[[str], None]) -> None:
    require("mapped ftrace rings")


def killed(
    session: str,
    out: Path,
    *steps: str,
    subbuf_bytes: int = PAGE,
    buffer_bytes: int = 1 << 17,
) -> str:
    """A process that took these steps and was killed; returns the instance that it left."""
    with subprocess.Popen(
        [
            *(sys.executable, "-c", OWNER, session, str(CPU), str(subbuf_bytes), out),
            *(str(buffer_bytes), *steps),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
    return f"collectord-{session}"


def marks(pages: Iterable[bytes]) -> list[int]:
    """Numbers of the markers in pages, as their events are walked."""
    found = []
    for page in pages:
        for event in Walk(page):
            payload = page[event.offset :][: event.size_bytes]
            found += [int(number) for number in re.findall(rb"<(\d{5})>", payload)]
    return found


def adopt(kernel: LinuxKernel, name: str, stack: ExitStack) -> LeftInstance:
    """Take over an instance; the stack removes it."""
    left = kernel.adopt_instance(name)
    stack.callback(kernel.release_left, left.id, remove=True)
    return left


def hang_alone(kernel: LinuxKernel, left: LeftInstance) -> bool:
    """Whether the events of an instance are those that `OWNER` chose."""
    events = kernel.trace_metadata(left.id).events
    return {system: len(formats) for system, formats in events.items()} == {"sched": 1}


def take(left: LeftInstance, stored: bytes = b"", stored_events: int = 0) -> list[int]:
    """Return markers of the only CPU that has any."""
    assert list(left.rings) == [CPU]
    return marks(pages_by_cpu(left, {CPU: stored}, {CPU: stored_events})[CPU])


def in_segments(directory: Path) -> list[int]:
    """Markers in all sealed segments of a directory, in their order."""
    found: list[int] = []
    for path in sorted(directory.glob("*.trace.dat")):
        for ring in daemons.manifest(path)["rings"]:
            data = path.read_bytes()[ring["offset"] :][: ring["bytes"]]
            found += marks(data[at : at + PAGE] for at in range(0, len(data), PAGE))
    return found


def salvage_all(
    kernel: LinuxKernel,
    name: str,
    directory: Path,
    make_room: Callable[[int], bool] = lambda _need_bytes: False,
) -> tuple[list[Salvaged], list[str]]:
    """Salvage this one instance; returns what was and the log's events."""

    def place(instance: str, _session: str) -> Path | None:
        if instance != name:
            return None
        repair(directory)
        return directory

    with capture_logs() as log:
        done = salvage_leftovers(kernel, kernel.host(), place, lambda _directory: make_room)
    return done, [line["event"] for line in log]


def test_all_that_nobody_read(kernel: LinuxKernel, session: str, tmp_path: Path) -> None:
    """A ring that was never read is given whole, with its counters, events and formats."""
    before_ns = time.time_ns()
    name = killed(session, tmp_path / "out", "mark=500")
    with ExitStack() as stack:
        assert name in kernel.leftover_instances()
        left = adopt(kernel, name, stack)
        assert name not in kernel.leftover_instances()
        assert (left.name, left.session) == (name, session)
        ring = left.rings[CPU]
        assert (ring.stats.entries, ring.stats.written, ring.handed) == (500, 500, None)
        assert hang_alone(kernel, left)
        assert -TICK_NS < left.created_ns - before_ns < time.time_ns() - before_ns
        assert 1 << 17 <= left.buffer_bytes < 1 << 18
        assert stats_text(CPU, ring.files.stats_fd).startswith(f"CPU: {CPU}\nentries: 500\n")
        assert take(left) == list(range(500))
        assert take(left) == []
    assert not (kernel.tracefs.root / "instances" / name).exists()


def test_events_of_a_gone_module(kernel: LinuxKernel, session: str, tmp_path: Path) -> None:
    """An event that is not there any more has no format, which is no reason to stop."""
    name = killed(session, tmp_path / "out", "mark=1")
    with ExitStack() as stack:
        instance = Instance.adopt(kernel.tracefs, name, stack)
        assert instance.events == (TraceEvent("sched", "sched_process_hang"),)
        instance.events += (TraceEvent("gone", "gone"),)
        assert list(instance.metadata().events) == ["sched"]


@pytest.mark.usefixtures("_mapped")
@pytest.mark.parametrize("pages", [1, 2])
@pytest.mark.parametrize("size", [PAGE, 4 * PAGE])
def test_a_page_that_was_handed_out(
    kernel: LinuxKernel, session: str, tmp_path: Path, pages: int, size: int
) -> None:
    """The part of it that is not in the files comes first, then the rest."""
    steps = ("mark=40", "read=1", "mark=9", "read=1", "mark=3")
    name = killed(session, tmp_path / "out", *steps, subbuf_bytes=size)
    with ExitStack() as stack:
        written = (tmp_path / "out").read_bytes()
        stored = [written[:size], written[size:]][:pages]
        assert marks(stored) == list(range((40, 49)[pages - 1]))
        left = adopt(kernel, name, stack)
        ring = left.rings[CPU]
        assert ring.handed is not None
        assert marks([ring.handed]) == list(range(49))
        assert ring.stats.entries == 3
        rest = take(left, stored[-1], len(marks(stored)))
    assert marks(stored) + rest == list(range(52))


@pytest.mark.usefixtures("_mapped")
def test_nothing_is_in_the_files(kernel: LinuxKernel, session: str, tmp_path: Path) -> None:
    """All events handed out and never stored are returned again."""
    name = killed(session, tmp_path / "out", "mark=40", "read=1")
    with ExitStack() as stack:
        assert take(adopt(kernel, name, stack)) == list(range(40))


@pytest.mark.usefixtures("_mapped")
@pytest.mark.parametrize("stored_events", [0, 30, 40, 49])
def test_the_last_page_was_deleted(
    kernel: LinuxKernel, session: str, tmp_path: Path, stored_events: int
) -> None:
    """If only the number of stored events is known, the other read ones are returned."""
    name = killed(session, tmp_path / "out", "mark=40", "read=1", "mark=9", "read=1", "mark=3")
    with ExitStack() as stack:
        found = take(adopt(kernel, name, stack), stored_events=stored_events)
    assert found == list(range(stored_events, 52))


def test_an_error_keeps_the_instance(kernel: LinuxKernel, session: str, tmp_path: Path) -> None:
    """A salvage that breaks off leaves what it did not take, with the formats, to the next one."""
    name = killed(session, tmp_path / "out", "mark=500")
    left = kernel.adopt_instance(name)
    taken = marks([next(pages(left, CPU))])
    kernel.release_left(left.id, remove=False)
    assert name in kernel.leftover_instances()
    with pytest.raises(KernelError, match="could not be salvaged") as caught:
        kernel.create_instance(InstanceSettings(session, 1 << 17, PAGE))
    assert caught.value.errno == errno.EEXIST
    assert "free some space" in caught.value.hint
    with ExitStack() as stack:
        left = adopt(kernel, name, stack)
        assert hang_alone(kernel, left)
        rest = take(left, stored_events=len(taken))
    assert taken + rest == list(range(500))


def test_a_full_disk_keeps_the_instance(kernel: LinuxKernel, session: str, tmp_path: Path) -> None:
    """The next start salvages the rest, each event once and all reported."""
    name = killed(session, tmp_path / "out", "mark=30000", buffer_bytes=1 << 21)
    stats = kernel.tracefs.root / "instances" / name / f"per_cpu/cpu{CPU}/stats"
    with segments.mounted("tmpfs", tmp_path / "disk", "size=64m") as disk:
        filler = disk / "filler"
        space = os.statvfs(disk)
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize)

        def make_room(need_bytes: int) -> bool:
            if "read events: 0\n" not in stats.read_text():
                return False
            os.truncate(filler, filler.stat().st_size - need_bytes)
            return True

        directory = disk / "segments"
        directory.mkdir()
        assert salvage_all(kernel, name, directory, make_room) == ([], ["instance_not_salvaged"])
        assert name in kernel.leftover_instances()
        repair(directory)
        begun = in_segments(directory)
        assert 0 < len(begun) < 30000
        filler.unlink()
        (salvaged,), log = salvage_all(kernel, name, directory)
        assert in_segments(directory) == list(range(30000))
    assert log == []
    ledger = salvaged.ledger
    assert (ledger.basis, ledger.produced, ledger.stored) == (Basis.EXACT, 30000, 30000)
    assert not any(ledger.lost.values())
    assert ledger.unaccounted == 0
    assert name not in kernel.leftover_instances()


def test_no_directory_keeps_the_instance(
    kernel: LinuxKernel, session: str, tmp_path: Path
) -> None:
    """If nothing can be written nothing is taken."""
    name = killed(session, tmp_path / "out", "mark=9")
    (tmp_path / "file").touch()
    with capture_logs() as log:
        done = salvage_leftovers(
            kernel,
            kernel.host(),
            lambda instance, _: tmp_path / "file/below" if instance == name else None,
            lambda _directory: lambda _need_bytes: False,
        )
    assert (done, [line["event"] for line in log]) == ([], ["instance_not_salvaged"])
    with ExitStack() as stack:
        assert take(adopt(kernel, name, stack)) == list(range(9))


def test_an_instance_that_cannot_be_removed(
    kernel: LinuxKernel, session: str, tmp_path: Path
) -> None:
    """It is told once that it is still there, and once it is gone its balance, and once only."""
    name = killed(session, tmp_path / "out", "mark=300")
    directory = tmp_path / "segments"
    directory.mkdir()
    with (kernel.tracefs.root / "instances" / name / "trace").open("rb"):
        assert salvage_all(kernel, name, directory) == ([], ["instance_not_salvaged"])
    (salvaged,), log = salvage_all(kernel, name, directory)
    assert (salvaged.path, log) == (None, [])
    ledger = salvaged.ledger
    assert (ledger.basis, ledger.produced, ledger.stored) == (Basis.EXACT, 300, 300)
    assert in_segments(directory) == list(range(300))


@pytest.mark.usefixtures("_mapped")
def test_a_mapped_ring(kernel: LinuxKernel, session: str, tmp_path: Path) -> None:
    """The reader's page of a ring that was mapped is there after the kill, with the rest."""
    steps = ("map", "mark=40", "get", "mark=300")
    name = killed(session, tmp_path / "out", *steps)
    with ExitStack() as stack:
        left = adopt(kernel, name, stack)
        assert left.rings[CPU].stats.read_events == 40
        assert take(left) == list(range(340))


@pytest.mark.usefixtures("_mapped")
def test_looking_takes_nothing(kernel: LinuxKernel, session: str, tmp_path: Path) -> None:
    """Taking over and leaving a ring unread changes none of its counters."""
    steps = ("mark=40", "read=1", "mark=300")
    name = killed(session, tmp_path / "out", *steps)
    with ExitStack() as stack:
        left = adopt(kernel, name, stack)
        ring = left.rings[CPU]
        assert ring.files.stats().read_events == ring.stats.read_events == 40
        assert ring.files.stats().entries == 300


def test_a_recording_of_a_command_line(kernel: LinuxKernel, tmp_path: Path) -> None:
    """An instance that carries its process's number is told by the session's name."""
    session = f"record~{os.getpid()}"
    name = killed(session, tmp_path / "out", "mark=1")
    with ExitStack() as stack:
        assert adopt(kernel, name, stack).session == "record"
    assert name not in kernel.leftover_instances()


def test_one_that_runs_is_left_alone(kernel: LinuxKernel, session: str) -> None:
    """An instance whose process lives is no leftover and cannot be taken."""
    with ExitStack() as stack:
        running = kernel.create_instance(InstanceSettings(session, 1 << 17, PAGE))
        stack.callback(kernel.remove_instance, running.id)
        assert running.name not in kernel.leftover_instances()
        with ExitStack() as other, pytest.raises(KernelError, match="in use"):
            adopt(kernel, running.name, other)


def test_a_start_waits_for_anothers_salvage(
    kernel: LinuxKernel, session: str, tmp_path: Path, start_cli: Start
) -> None:
    """A daemon that is to have an instance of that name makes it when the old one is gone."""
    name = killed(session, tmp_path / "out", "mark=3")
    config = daemons.write_sessions(
        tmp_path,
        f"""
[[session]]
name = "{session}"

[[session.source]]
kind = "tracefs"
events = ["sched:sched_process_hang"]
""",
    )
    with ExitStack() as salvaging:
        adopt(kernel, name, salvaging)
        process = start_cli("run", "--config", config)
        assert process.stderr is not None
        assert "salvage_awaited" in process.stderr.readline()
    marked = kernel.tracefs.root / "instances" / name / "tracing_on"
    daemons.wait_for(lambda: marked.exists() and marked.read_text() == "1\n", "the session")
    process.terminate()
    log = process.communicate()[1]
    assert process.returncode == 0, log


def test_no_tracefs_no_leftovers(tmp_path: Path) -> None:
    """If tracefs is not mounted there are no leftovers, and nothing is mounted to find out."""
    (tmp_path / "kernel/tracing").mkdir(parents=True)
    kernel = LinuxKernel(sys=tmp_path)
    assert kernel.leftover_instances() == ()
    kernel.remove_orphan_probes()
    assert not kernel.tracefs.mounted
