# SPDX-License-Identifier: Apache-2.0
"""Segments without rings: a sink fed with records as the native writer feeds it."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord._native._core import SegmentClosed
from collectord.codec import tracing_data
from collectord.codec.perf_attr import EventType, PerfEventAttr, RecordType, SampleType, SoftwareId
from collectord.codec.perf_data import AttrSection
from collectord.codec.perf_features import Features
from collectord.codec.perf_record import SampleId, frame
from collectord.codec.perf_sideband import Comm, encode
from collectord.codec.tracing_data import TracingData
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.model import ClockReading
from collectord.plan.sink_plan import RetentionPlan, SinkPlan
from collectord.sink import chain_log
from collectord.sink.base import Closing, Opening
from collectord.sink.eviction import evict
from collectord.sink.manifest import Identity, RingEntry
from collectord.sink.perf_data_sink import PerfDataSink
from collectord.sink.repair import repair_steps
from collectord.sink.segment import group_files
from collectord.sink.sums import sums_of
from tests.support.golden import GOLDEN
from tests.support.samples import Sample, encode_sample

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from collectord.sink.base import OpenSegment, SegmentInfo
    from collectord.sink.eviction import Eviction

PAGE_BYTES: Final = 4096
EVENT: Final = "syscalls:sys_enter_getppid"
EVENT_IDS: Final = (11, 12)
PID: Final = 4321
ROUND: Final = frame(RecordType.FINISHED_ROUND, 0, b"")
TIME_NS: Final = 1_000_000_000

_IDS: Final = SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME | SampleType.CPU
ATTR: Final = PerfEventAttr(
    type=EventType.TRACEPOINT,
    config=305,  # as the golden format says
    sample_period=1,
    sample_type=_IDS | SampleType.IP | SampleType.PERIOD | SampleType.RAW,
    sample_id_all=True,
)
_DUMMY: Final = PerfEventAttr(
    type=EventType.SOFTWARE,
    config=SoftwareId.DUMMY,
    sample_type=_IDS,
    sample_id_all=True,
    mmap2=True,
    comm=True,
    task=True,
)
ATTRS: Final = (
    AttrSection(ATTR, EVENT_IDS, EVENT),
    AttrSection(_DUMMY, (21, 22), "dummy:HG"),
)
IDENTITY: Final = Identity(
    host="host.example",
    boot_id="00000000-0000-0000-0000-000000000000",
    kernel="6.18.0",
    session="exec",
    source="perf",
    scope="system",
)
CLOCK: Final = ClockReading(
    monotonic_ns=TIME_NS, realtime_ns=TIME_NS, perf_ns=TIME_NS, bracket_ns=70
)
RINGS: Final = (
    RingEntry(ring=0, role="data", cpu=0, data_bytes=1 << 20, watermark_bytes=1 << 19),
    RingEntry(ring=1, role="sideband", cpu=0, data_bytes=1 << 16, watermark_bytes=1 << 15),
)
OPENING: Final = Opening(clock=CLOCK, rings=RINGS)
LEDGER: Final = {"basis": "exact", "produced": 10, "stored": 10, "lost": {}, "unaccounted": 0}


def golden_tracing_data() -> bytes:
    """Return the TRACING_DATA section of EVENT."""
    return tracing_data.build(
        TracingData(
            header_page=(GOLDEN / "header_page").read_bytes(),
            header_event=(GOLDEN / "header_event").read_bytes(),
            page_size_bytes=PAGE_BYTES,
            events={"syscalls": [(GOLDEN / "sys_enter_getppid.format").read_bytes()]},
        )
    )


def make_sink(directory: Path, **options: Any) -> PerfDataSink:  # noqa: ANN401 - of SinkPlan
    """Make a sink of one tracepoint and its sideband event; options are mostly the plan's."""
    extra = {name: options.pop(name) for name in ("make_room", "places") if name in options}
    return PerfDataSink(
        SinkPlan(format="perf.data", directory=str(directory), **options),
        IDENTITY,
        attrs=ATTRS,
        features=Features(hostname="host.example", osrelease="6.18.0", arch="x86_64"),
        tracing_data=golden_tracing_data(),
        **extra,
    )


def files_in(directory: Path) -> Iterator[Path]:
    """Yield what is in a folder, but for the list of what was sealed in it."""
    return (path for path in directory.iterdir() if path.name != chain_log.NAME)


def names_in(directory: Path) -> set[str]:
    """Return the names of what is in a folder, but for that list."""
    return {path.name for path in files_in(directory)}


def comm_record(comm: bytes = b"generator") -> bytes:
    """Return the name of the process that all samples are of, at time 0 as in a replay."""
    return encode(Comm(PID, PID, comm), _DUMMY, SampleId(pid=PID, tid=PID, id=21))


def sample_record(number: int) -> bytes:
    """Return one sample of EVENT, 1 us after the previous one."""
    raw = (305).to_bytes(2, "little") + bytes(2) + PID.to_bytes(4, "little") + bytes(8)
    return encode_sample(
        Sample(
            id=EVENT_IDS[number % 2],
            ip=0xFFFF_FFFF_8100_0000,
            pid=PID,
            tid=PID,
            time_ns=TIME_NS + number * 1000,
            cpu=number % 2,
            period=1,
            raw=raw,
        ),
        ATTR,
    )


def chunk(records: bytes) -> bytes:
    """Return the records behind which a round ends, padded as the native core pads a chunk."""
    whole = records + ROUND
    gap = -len(whole) % PAGE_BYTES
    return whole + (frame(RecordType.FINISHED_INIT, 0, bytes(gap - 8)) if gap else b"")


def sample_chunks(samples: int, per_chunk: int = 100) -> list[bytes]:
    """Return chunks with a COMM and so many samples."""
    chunks = []
    for first in range(0, samples, per_chunk):
        numbers = range(first, min(first + per_chunk, samples))
        replay = b"" if first else comm_record()
        chunks.append(chunk(replay + b"".join(map(sample_record, numbers))))
    return chunks or [chunk(comm_record())]


def write_data(segment: OpenSegment, chunks: Sequence[bytes], ahead_bytes: int = 1 << 16) -> int:
    """Write chunks as the native writer does, into space allocated ahead; give the end offset."""
    os.posix_fallocate(segment.fd, segment.data_offset, ahead_bytes + sum(map(len, chunks)))
    at = segment.data_offset
    for piece in chunks:
        with mmap.mmap(-1, len(piece)) as aligned:
            aligned[:] = piece
            with memoryview(aligned) as view:
                assert os.pwrite(segment.fd, view, at) == len(piece)
        at += len(piece)
    return at


def closed(segment: OpenSegment, chunks: Sequence[bytes], samples: int) -> SegmentClosed:
    """Return the core's event for a segment with one replayed COMM and so many samples."""
    data = b"".join(chunks)
    return SegmentClosed(
        stream=0,
        token=segment.token,
        end_offset=segment.data_offset + len(data),
        sums=sums_of(memoryview(data)),
        chunks=len(chunks),
        records=samples,
        samples=samples,
        replayed=1,
        first_ns=TIME_NS if samples else 0,
        last_ns=TIME_NS + (samples - 1) * 1000 if samples else 0,
        rings=((0, samples, len(data)),),
    )


def fill(segment: OpenSegment, samples: int = 250) -> SegmentClosed:
    """Write a COMM and so many samples into the segment."""
    chunks = sample_chunks(samples)
    write_data(segment, chunks)
    return closed(segment, chunks, samples)


def closing(**values: Any) -> Closing:  # noqa: ANN401 - of Closing
    """Return what is known at a close."""
    return replace(Closing(clock=CLOCK, rings=RINGS, ledger=LEDGER), **values)


def write_segment(sink: PerfDataSink, token: int = 1, samples: int = 250) -> SegmentInfo:
    """Create, fill and seal one segment."""
    segment = sink.next_segment(token, OPENING)
    info = sink.seal(segment, fill(segment, samples), closing())
    assert info is not None
    return info


def killed(work: Callable[[], object]) -> None:
    """Run `work` in a child that is then killed, with all its fds open."""
    pid = os.fork()
    if not pid:
        try:
            work()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "the child failed before it was killed"
    assert os.WTERMSIG(status) == signal.SIGKILL


def orphan(directory: Path, samples: int = 250, **options: Any) -> Path:  # noqa: ANN401
    """Leave a segment whose writer was killed before it sealed it; give its partial file."""
    before = set(directory.glob("*.partial"))
    killed(lambda: fill(make_sink(directory, **options).next_segment(1, OPENING), samples))
    (left,) = {path for path in directory.glob("*.data.partial") if path not in before} or {
        Path(str(options["single_file"]) + ".partial")
    }
    return left


@contextmanager
def mounted(kind: str, directory: Path, options: str = "") -> Iterator[Path]:
    """Mount a memory filesystem on `directory`."""
    directory.mkdir()
    words = ["-o", options] if options else []
    subprocess.run(["mount", "-t", kind, *words, "none", directory], check=True)
    try:
        yield directory
    finally:
        gc.collect()  # an error that was caught may hold the files of its frames until then
        subprocess.run(["umount", directory], check=True)


def fill_disk(directory: Path) -> Path:
    """Leave no free block on a small filesystem; returns the file that has them all."""
    filler = directory / "filler"
    space = os.statvfs(directory)
    filler.write_bytes(bytes(space.f_bavail * space.f_frsize))
    assert os.statvfs(directory).f_bavail == 0
    return filler


class Room:
    """Evicts below a state directory when a sink asks for room.

    Attributes:
        evicted: what has been deleted, in order.
    """

    def __init__(self, state: Path) -> None:
        self.evicted: list[Eviction] = []
        self._state = state

    def make(self, need_bytes: int) -> bool:
        """Stand in for a sink's `make_room`."""
        gone = evict(self._state, RetentionPlan(), 0, need_bytes)
        self.evicted.extend(gone)
        return bool(gone)


def walk_to(steps: Generator[str, None, object], last: str) -> None:
    """Do the steps of a seal or a repair up to one, and omit the others."""
    for step in steps:
        if step == last:
            return


def interrupt_repair(directory: Path, step: str) -> None:
    """Repair the one segment of a folder up to a step, in a process that is killed there."""

    def interrupted() -> None:
        folder = open_folder(directory, Trust.WRITE)
        (group,) = group_files(folder)
        walk_to(repair_steps(folder, group), step)

    killed(interrupted)
