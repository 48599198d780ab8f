# SPDX-License-Identifier: Apache-2.0
"""Page rings on the running kernel: by each transport each event comes to a file once."""

from __future__ import annotations

import errno
import mmap
import os
import re
import select
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectord._native import _core
from collectord.codec.ftrace_page import Walk
from collectord.kernel.tracefs.instance import Instance
from collectord.kernel.tracefs.mount import Tracefs
from collectord.kernel.values.instance_settings import InstanceSettings
from tests.support.features import MissingFeature
from tests.support.patience import patient
from tests.support.sums import assert_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PAGE: Final = mmap.PAGESIZE
TRANSPORTS: Final = ("read", "mmap", "splice")
SIZES: Final = (PAGE, 64 << 10)
NEVER_NS: Final = 3600 * 10**9
WAIT_S: Final = patient(30)
EXTENT_BYTES: Final = 64 << 20
# A marker, as `Rig.write` makes it: which ring, and the how manieth.
MARK: Final = re.compile(rb"<(\d+):(\d{8})>")


class Rig:
    """An instance whose rings a core drains into files without a name."""

    def __init__(
        self,
        tree: Tracefs,
        stack: ExitStack,
        transport: str,
        subbuf_bytes: int,
        *,
        cpus: tuple[int, ...],
        buffer_bytes: int = 4 << 20,
        overwrite: bool = False,
        flush_ns: int = NEVER_NS,
        chunks: int = 16,
        limit_bytes: int = 1 << 40,
        extent_bytes: int = EXTENT_BYTES,
        held: bool = False,
    ) -> None:
        settings = InstanceSettings(
            f"page-rings-{os.getpid()}",
            buffer_bytes,
            subbuf_bytes,
            overwrite=overwrite,
            buffer_percent=25,
            cpus=cpus,
        )
        self.transport = transport
        self.limit_bytes = limit_bytes
        self.extent_bytes = extent_bytes
        self.next_when_missing = False
        self.missing = 0
        self.instance = Instance.create(tree, settings, stack)
        effective = self.instance.effective()
        self.subbuf_bytes = effective.subbuf_bytes
        self.subbufs = effective.subbufs
        self.ring_files = {cpu: self.instance.open_ring(cpu) for cpu in cpus}
        self.maps: dict[int, _core.PageMap] = {}
        if transport == "mmap":
            for cpu, ring in self.ring_files.items():
                self.maps[cpu] = mapped(ring.raw_fd)
                stack.callback(self.maps[cpu].close)
        self.core = _core.Core(chunks=chunks, chunk_bytes=1 << 20, flush_ns=flush_ns)
        stack.callback(self.core.stop)
        self.stream = self.core.add_stream(sideband_bytes=4096, subbuf_bytes=self.subbuf_bytes)
        self.rings = {
            cpu: self.core.add_page_ring(
                0,
                self.stream,
                self.ring_files[cpu].raw_fd,
                subbuf_bytes=self.subbuf_bytes,
                subbufs=self.subbufs,
                transport=transport,
                page_map=self.maps.get(cpu),
                held=held,
            )
            for cpu in cpus
        }
        self.written: dict[int, int] = dict.fromkeys(cpus, 0)
        self.files: dict[int, int] = {}
        self.closed: dict[int, _core.SegmentClosed] = {}
        self._stack = stack
        self._lock = threading.Lock()
        self._markers = {
            cpu: os.open(self.instance.path / "trace_marker", os.O_WRONLY) for cpu in cpus
        }
        for fd in self._markers.values():
            stack.callback(os.close, fd)
        self._prepare()
        self.core.start()
        self.instance.enable()

    def _prepare(self) -> None:
        token = len(self.files) + 1
        flags = os.O_TMPFILE | os.O_RDWR | os.O_DIRECT
        self.files[token] = os.open(tempfile.gettempdir(), flags, 0o600)
        self._stack.callback(os.close, self.files[token])
        self.stream.prepare_pages(
            token,
            self.files[token],
            offsets={
                ring.id: PAGE + place * self.extent_bytes
                for place, ring in enumerate(self.rings.values())
            },
            capacity_bytes=self.extent_bytes,
            limit_bytes=self.limit_bytes,
            step_bytes=1 << 20,
        )

    def write(self, cpu: int, count: int, padding: int = 0) -> None:
        """Mark `count` times from that CPU; a full ring refuses, and the marker is tried again."""
        os.sched_setaffinity(0, {cpu})
        tail = b"." * padding
        for _ in range(count):
            text = b"<%d:%08d>%s" % (cpu, self.written[cpu], tail)
            while True:
                try:
                    os.write(self._markers[cpu], text)
                    break
                except OSError as error:
                    if error.errno != errno.EBADF:
                        raise
                    self.core.request_flush()
                    os.sched_yield()
            self.written[cpu] += 1

    def serve(self, wait_s: float = WAIT_S) -> None:
        """Wait for a notice of the core and do what it asks."""
        if select.select([self.core.notify_fd], [], [], wait_s)[0]:
            with suppress(BlockingIOError):
                os.eventfd_read(self.core.notify_fd)
        for event in self.core.events():
            match event:
                case _core.SegmentWanted():
                    if not self.next_when_missing:
                        with suppress(BrokenPipeError):  # the stream was finished meanwhile
                            self._prepare()
                case _core.SpaceWanted(errno=errno.EXFULL) if self.next_when_missing:
                    self.missing += 1
                    self._prepare()
                case _core.SegmentClosed():
                    self.closed[event.token] = event
                case _:
                    raise AssertionError(event)

    def until(self, condition: Callable[[], bool]) -> None:
        """Serve until a condition holds."""
        end_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end_s, [ring.counters() for ring in self.rings.values()]
            self.serve(0.02)

    def flush(self) -> None:
        """Write the contents of all rings to the files."""
        generation = self.core.request_flush()
        self.until(lambda: self.stream.written_generation() >= generation)

    def finish(self) -> None:
        """Stop recording, drain, and close the last segment."""
        self.instance.disable()
        self.flush()
        self.stream.finish()
        self.until(lambda: any(closed.final for closed in self.closed.values()))

    def pages(self, cpu: int) -> Iterator[bytes]:
        """The ring's pages of all segments, each of which is checked against what was told."""
        place = list(self.rings).index(cpu)
        ring = self.rings[cpu].id
        for token, closed in sorted(self.closed.items()):
            tracks = {track: (size, sums) for track, size, sums in closed.tracks}
            size, sums = tracks[ring]
            offset = PAGE + place * self.extent_bytes
            data = read_back(self.files[token], offset, size)
            scan = _core.scan_pages(data, self.subbuf_bytes)
            assert (scan.fault, scan.end, scan.pages) == ("ok", size, size // self.subbuf_bytes)
            if self.transport != "splice":
                assert_sums(data, sums)
                assert {(ring, scan.events)} <= {(one[0], one[1]) for one in closed.rings}
            if size < self.extent_bytes:
                assert not any(read_back(self.files[token], offset + size, self.subbuf_bytes))
            for at in range(0, size, self.subbuf_bytes):
                yield data[at : at + self.subbuf_bytes]

    def marks(self, cpu: int) -> list[int]:
        """Return the marks made on the CPU, in the order of its ring; times never go back."""
        found = []
        last_ns = 0
        for page in self.pages(cpu):
            walk = Walk(page)
            for event in walk:
                assert last_ns <= event.timestamp_ns
                last_ns = event.timestamp_ns
                match = MARK.search(page, event.offset, event.offset + event.size_bytes)
                assert match
                assert int(match[1]) == cpu
                found.append(int(match[2]))
            assert walk.fault is None
        return found

    def check_complete(self) -> None:
        """Every marker is in the files, once and in order, and the counters say the same."""
        for cpu, ring in self.rings.items():
            assert self.marks(cpu) == list(range(self.written[cpu]))
            counters = ring.counters()
            assert counters.in_flight == counters.lost_disk_full == counters.lost_dropped == 0
            assert counters.samples == counters.stored
            assert self.ring_files[cpu].stats().read_events == self.written[cpu]
            assert not counters.torn_pages + counters.resets
            assert not counters.quarantined
            if counters.spliced_bytes == 0:
                assert counters.stored == self.written[cpu]


def read_back(fd: int, offset: int, size: int) -> bytes:
    """Bytes of a file that was opened for direct I/O; zeros behind its end."""
    readable = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    try:
        return os.pread(readable, size, offset).ljust(size, b"\0")
    finally:
        os.close(readable)


def mapped(raw_fd: int) -> _core.PageMap:
    """Return a ring, mapped; kernels before 6.10 cannot."""
    try:
        return _core.PageMap(raw_fd)
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        raise MissingFeature("mapped rings of tracefs") from error


@contextmanager
def restored_affinity() -> Iterator[ExitStack]:
    """Provide a stack at whose end this thread may run where it ran before."""
    before = os.sched_getaffinity(0)
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, before)
        yield stack


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closed at the end of the test."""
    with restored_affinity() as stack:
        yield stack


@pytest.fixture
def tree(tracefs: Path) -> Tracefs:
    """Return the kernel's tracefs."""
    return Tracefs(tracefs)


@pytest.fixture
def cpus() -> tuple[int, ...]:
    """Return one or two CPUs."""
    return tuple(sorted(os.sched_getaffinity(0))[:2])


# The events of a step: the CPU by place, their number, what each has beside its own number.
EVENTS: Final = st.tuples(
    st.integers(0, 1),
    st.sampled_from([1, 3, 60, 150, 700]),
    st.sampled_from([0, 0, 40, 110, 700, 3000]),
)
STEPS: Final = st.lists(
    st.one_of(
        EVENTS,
        EVENTS,
        st.sampled_from(["flush", "ask", "rotate", "hold", "serve"]),
        st.just("flush"),
    ),
    min_size=30,
    max_size=60,
)


@pytest.mark.parametrize("subbuf_bytes", SIZES)
@pytest.mark.parametrize("transport", TRANSPORTS)
@given(steps=STEPS)
@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.vm
def test_nothing_is_skipped_or_repeated(
    tree: Tracefs,
    cpus: tuple[int, ...],
    transport: str,
    subbuf_bytes: int,
    steps: list[str | tuple[int, int, int]],
) -> None:
    """However writes, flushes, rotations and holds interleave, each event is stored once."""
    with restored_affinity() as stack:
        rig = Rig(tree, stack, transport, subbuf_bytes, cpus=cpus)
        for step in steps:
            match step:
                case "flush":
                    rig.flush()
                case "ask":
                    rig.core.request_flush()
                case "rotate":
                    rig.stream.rotate()
                case "serve":
                    rig.serve(0)
                case "hold":
                    held = rig.rings[cpus[0]]
                    held.hold(held=True)
                    rig.until(partial(getattr, held, "answered"))
                    before = held.counters().records
                    rig.write(cpus[0], 5)
                    rig.flush()
                    assert held.counters().records == before
                    held.hold(held=False)
                case (place, count, padding):
                    rig.write(cpus[int(place) % len(cpus)], count, padding)
        rig.finish()
        rig.check_complete()


@pytest.mark.parametrize("subbuf_bytes", SIZES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_rings_under_load(
    tree: Tracefs, stack: ExitStack, cpus: tuple[int, ...], transport: str, subbuf_bytes: int
) -> None:
    """Writers that never wait, a flush each millisecond and rotations lose and repeat nothing."""
    rig = Rig(
        tree,
        stack,
        transport,
        subbuf_bytes,
        cpus=cpus,
        flush_ns=1_000_000,
        limit_bytes=1 << 20,
    )
    writers = [threading.Thread(target=rig.write, args=(cpu, 50_000, 30)) for cpu in cpus]
    for writer in writers:
        writer.start()
        stack.callback(writer.join)
    while any(writer.is_alive() for writer in writers):
        rig.serve(0.05)
    rig.finish()
    assert len(rig.closed) > 1
    rig.check_complete()


@pytest.mark.vm
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_full_extents_wait_for_the_next_segment(
    tree: Tracefs, stack: ExitStack, cpus: tuple[int, ...], transport: str
) -> None:
    """A segment that comes late costs nothing: chunks, and then the rings, hold the backlog."""
    rig = Rig(tree, stack, transport, PAGE, cpus=cpus, chunks=2, extent_bytes=16 * PAGE)
    rig.next_when_missing = True
    writers = [threading.Thread(target=rig.write, args=(cpu, 20_000, 30)) for cpu in cpus]
    for writer in writers:
        writer.start()
        stack.callback(writer.join)
    while any(writer.is_alive() for writer in writers):
        rig.serve(0.05)
    rig.finish()
    assert rig.missing >= len(rig.closed) - 1 > 1
    rig.check_complete()


@pytest.mark.vm
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_partial_pages_are_merged(
    tree: Tracefs, stack: ExitStack, cpus: tuple[int, ...], transport: str
) -> None:
    """However often a sub-buffer is taken in pieces, the file has it as one page."""
    cpu = cpus[0]
    rig = Rig(tree, stack, transport, 64 << 10, cpus=(cpu,))
    token = 1
    for number in range(100):
        rig.write(cpu, 1)
        rig.flush()
        assert rig.stream.track_bytes() == (token, {rig.rings[cpu].id: rig.subbuf_bytes})
        assert rig.rings[cpu].counters().stored == number + 1
    rig.finish()
    rig.check_complete()
    assert rig.rings[cpu].counters().pages == 1
    assert rig.stream.track_bytes() == (0, {})


@pytest.mark.vm
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_watermark_wakes(
    tree: Tracefs, stack: ExitStack, cpus: tuple[int, ...], transport: str
) -> None:
    """A ring above its watermark is drained though no pass was asked for, again and again."""
    cpu = cpus[0]
    rig = Rig(tree, stack, transport, PAGE, cpus=(cpu,), buffer_bytes=256 << 10)

    def woken(times: int) -> bool:
        return rig.rings[cpu].counters().wakeups_watermark >= times

    for number in range(1, 6):
        rig.write(cpu, 100, 1000)
        rig.until(partial(woken, number))
        # Three such events are in a page, a quarter of the ring are 17 pages, and one is written.
        rig.until(lambda: rig.ring_files[cpu].stats().entries <= 3 * 18)
    assert rig.core.issued_generation() == 0
    rig.finish()
    rig.check_complete()


@pytest.mark.vm
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("subbuf_bytes", SIZES)
def test_overwritten_events_are_told(
    tree: Tracefs, stack: ExitStack, cpus: tuple[int, ...], transport: str, subbuf_bytes: int
) -> None:
    """The pages report the events overwritten while nobody read; the rest is there."""
    cpu = cpus[0]
    rig = Rig(
        tree,
        stack,
        transport,
        subbuf_bytes,
        cpus=(cpu,),
        buffer_bytes=512 << 10,
        overwrite=True,
        held=True,
    )
    rig.write(cpu, 20_000, 30)
    rig.flush()
    overrun = rig.ring_files[cpu].stats().overrun
    assert rig.ring_files[cpu].stats().read_events == 0
    assert overrun > 0
    rig.rings[cpu].hold(held=False)
    rig.flush()
    rig.write(cpu, 10)
    rig.finish()
    found = rig.marks(cpu)
    assert found == list(range(overrun, 20_010))
    scans = [_core.scan_pages(page, rig.subbuf_bytes) for page in rig.pages(cpu)]
    assert sum(scan.lost for scan in scans) == overrun


@pytest.mark.vm
def test_reset_while_mapped(tree: Tracefs, stack: ExitStack, cpus: tuple[int, ...]) -> None:
    """Somebody empties a mapped ring: that is counted, and what comes then is stored once."""
    cpu = cpus[0]
    rig = Rig(tree, stack, "mmap", PAGE, cpus=(cpu,))
    for resets, count in enumerate((3, 10), start=1):
        rig.write(cpu, 5)
        rig.flush()
        (rig.instance.path / "trace").write_bytes(b"")
        rig.write(cpu, count)
        rig.flush()
        assert rig.rings[cpu].counters().resets == resets
    rig.finish()
    assert rig.marks(cpu) == list(range(rig.written[cpu]))


@pytest.mark.vm
def test_mapping(tree: Tracefs, stack: ExitStack, cpus: tuple[int, ...]) -> None:
    """A mapped ring tells its layout and counts, and is not unmapped under a core."""
    cpu = cpus[0]
    rig = Rig(tree, stack, "mmap", PAGE, cpus=(cpu,))
    ring_map = rig.maps[cpu]
    assert (ring_map.subbuf_bytes, ring_map.subbufs) == (rig.subbuf_bytes, rig.subbufs + 1)
    rig.write(cpu, 7)
    rig.flush()
    assert ring_map.read == 7
    with pytest.raises(ValueError, match="running core drains"):
        ring_map.close()
    rig.until(lambda: rig.core.remove_ring(rig.rings[cpu]))
    ring_map.close()
    with pytest.raises(ValueError, match="not mapped"):
        _ = ring_map.read


@pytest.mark.vm
def test_mapping_is_refused(tree: Tracefs) -> None:
    """A file that is no ring cannot be mapped, with the kernel's error."""
    with (
        (tree.root / "trace_clock").open("rb") as other,
        pytest.raises(OSError, match="No such device") as caught,
    ):
        _core.PageMap(other.fileno())
    assert caught.value.errno == errno.ENODEV
    with pytest.raises(OSError, match="descriptor"):
        _core.PageMap(-1)


@pytest.mark.vm
def test_removed_ring_is_drained(tree: Tracefs, stack: ExitStack, cpus: tuple[int, ...]) -> None:
    """A ring that leaves the core is drained before; one that is held is left as it is."""
    rig = Rig(tree, stack, "read", PAGE, cpus=cpus)
    for cpu in cpus:
        rig.write(cpu, 300)
    rig.rings[cpus[-1]].hold(held=True)
    for cpu in cpus:
        rig.until(partial(rig.core.remove_ring, rig.rings[cpu]))
    assert rig.ring_files[cpus[-1]].stats().entries == 300
    if len(cpus) > 1:
        assert rig.rings[cpus[0]].counters().samples == 300
    rig.instance.disable()
    rig.stream.finish()
    rig.until(lambda: bool(rig.closed))
    assert rig.marks(cpus[0]) == (list(range(300)) if len(cpus) > 1 else [])
