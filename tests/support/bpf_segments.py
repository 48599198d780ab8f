# SPDX-License-Identifier: Apache-2.0
"""Segments with events of BPF programs, fed with records as the native writer feeds them."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, Final

from collectord._native._core import SegmentClosed
from collectord.codec.bpf_struct import Layout, from_bcc
from collectord.codec.perf_attr import (
    EventType,
    PerfEventAttr,
    ReadFormat,
    RecordType,
    SampleType,
    SoftwareId,
)
from collectord.codec.perf_data import AttrSection
from collectord.codec.perf_features import Features
from collectord.codec.perf_record import SampleId, frame, iter_records
from collectord.codec.perf_sideband import Comm, Fork, Lost
from collectord.plan.sink_plan import SinkPlan
from collectord.programs.program_manifest import ColumnConfig
from collectord.sink.manifest import EventLayout
from collectord.sink.perf_data_sink import PerfDataSink
from collectord.sink.sums import sums_of
from tests.support import segments
from tests.support.samples import Sample, encode_sample
from tests.support.sideband import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from collectord.sink.base import OpenSegment

S_NS: Final = 1_000_000_000
_IDS: Final = SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME | SampleType.CPU
ATTR: Final = PerfEventAttr(
    type=EventType.SOFTWARE,
    config=SoftwareId.BPF_OUTPUT,
    sample_period=1,
    sample_type=_IDS | SampleType.IP | SampleType.PERIOD | SampleType.RAW,
    read_format=ReadFormat.ID | ReadFormat.LOST,
    sample_id_all=True,
)
DUMMY: Final = PerfEventAttr(
    type=EventType.SOFTWARE,
    config=SoftwareId.DUMMY,
    sample_type=_IDS,
    read_format=ReadFormat.ID | ReadFormat.LOST,
    sample_id_all=True,
    comm=True,
    task=True,
)
OPENS: Final = "opensnoop"
EXITS: Final = "exits"
DUMMY_ID: Final = 31
# Ids by event, one for each of two CPUs.
IDS: Final = {OPENS: (11, 12), EXITS: (21, 22)}
LAYOUTS: Final[dict[str, Layout]] = {
    OPENS: from_bcc(
        [
            "open",
            [
                ["pid", "unsigned int"],
                ["result", "int"],
                ["took", "unsigned long long"],
                ["comm", "char", [16]],
                ["path", "char", [32]],
                ["flags", "unsigned int"],
                ["__pad_end", "char", [4]],
            ],
            "struct_packed",
        ],
        72,
        OPENS,
    ),
    EXITS: from_bcc(
        ["exit", [["pid", "unsigned int"], ["code", "int"]], "struct_packed"], 8, EXITS
    ),
}
COLUMNS: Final = (
    ColumnConfig(field="pid", title="PID"),
    ColumnConfig(field="comm", title="COMM", show="text"),
    ColumnConfig(field="result", title="RESULT", show="errno"),
    ColumnConfig(field="took", title="TOOK", show="duration"),
    ColumnConfig(field="path", title="PATH", show="text"),
)
DESCRIBED: Final = {
    OPENS: EventLayout(program=OPENS, layout=LAYOUTS[OPENS], columns=COLUMNS),
    EXITS: EventLayout(program=EXITS, layout=LAYOUTS[EXITS]),
}


def make_sink(
    directory: Path,
    *,
    events: Sequence[str] = (OPENS, EXITS),
    layouts: Mapping[str, EventLayout] = DESCRIBED,
    **options: Any,  # noqa: ANN401 - of SinkPlan
) -> PerfDataSink:
    """Return a sink of the programs' events and their sideband; options are the plan's."""
    return PerfDataSink(
        SinkPlan(format="perf.data", directory=str(directory), **options),
        segments.IDENTITY,
        attrs=[
            *(AttrSection(ATTR, IDS[name], name) for name in events),
            AttrSection(DUMMY, (DUMMY_ID,), "dummy:HG"),
        ],
        features=Features(hostname="host.example", osrelease="6.18.0", arch="x86_64"),
        layouts={name: one for name, one in layouts.items() if name in events},
    )


def opened(
    pid: int, path: bytes = b"/etc/hosts", *, result: int = 3, took: int = 1500, flags: int = 0
) -> bytes:
    """Return a record as `opensnoop` submits it."""
    comm = b"task %d" % pid
    return struct.pack("<IiQ16s32sI4x", pid, result, took, comm, path, flags)


def exited(pid: int, code: int = 0) -> bytes:
    """Return a record as `exits` submits it."""
    return struct.pack("<Ii", pid, code)


def sample(
    time_ns: int, payload: bytes, *, event: str = OPENS, cpu: int = 0, tid: int = 500
) -> bytes:
    """Return a sample with what a program submitted."""
    return encode_sample(
        Sample(
            id=IDS[event][cpu], pid=tid, tid=tid, time_ns=time_ns, cpu=cpu, period=1, raw=payload
        ),
        ATTR,
    )


def comm(time_ns: int, tid: int, name: bytes) -> bytes:
    """Return a record of a thread's new name."""
    return encode(Comm(tid, tid, name), DUMMY, SampleId(tid, tid, time_ns, id=DUMMY_ID))


def fork(time_ns: int, parent: int, child: int) -> bytes:
    """Return a record of a thread's start."""
    record = Fork(child, parent, child, parent, time_ns)
    return encode(record, DUMMY, SampleId(parent, parent, time_ns, id=DUMMY_ID))


def lost(time_ns: int, events: int, *, event: str = OPENS, cpu: int = 0) -> bytes:
    """Return a record of a loss in a CPU's ring before the next event."""
    number = IDS[event][cpu]
    sample_id = SampleId(time_ns=time_ns, id=number, cpu=cpu)
    return encode(Lost(number, events), ATTR, sample_id)


def chunk(*records: bytes, ends_round: bool = False) -> bytes:
    """Return a chunk as the native core pads it."""
    whole = b"".join(records)
    if ends_round:
        whole += frame(RecordType.FINISHED_ROUND, 0, b"")
    gap = -len(whole) % segments.PAGE_BYTES
    return whole + (frame(RecordType.FINISHED_INIT, 0, bytes(gap - 8)) if gap else b"")


def write(
    directory: Path,
    *chunks: bytes,
    lost_samples: Mapping[int, int] | None = None,
    **options: Any,  # noqa: ANN401
) -> Path:
    """Return a sealed segment of these chunks."""
    sink = make_sink(directory, **options)
    segment = sink.next_segment(1, segments.OPENING)
    segments.write_data(segment, chunks)
    closing = segments.closing(lost_samples=lost_samples or {})
    info = sink.seal(segment, closed(segment, chunks), closing)
    assert info is not None
    return info.path


def closed(segment: OpenSegment, chunks: Sequence[bytes]) -> SegmentClosed:
    """Return the core's event for a closed segment with these chunks."""
    data = b"".join(chunks)
    samples = sum(header.type == RecordType.SAMPLE for header in iter_records(data))
    return SegmentClosed(
        stream=0,
        token=segment.token,
        end_offset=segment.data_offset + len(data),
        sums=sums_of(memoryview(data)),
        chunks=len(chunks),
        records=len(chunks),
        samples=samples,
        replayed=0,
        first_ns=S_NS,
        last_ns=S_NS,
        rings=((0, samples, len(data)),),
    )


class Writer:
    """A writer of one segment that works piece by piece like the native writer.

    Args:
        sink: of `make_sink`; by default one for `directory`.
    """

    def __init__(
        self,
        directory: Path,
        sink: PerfDataSink | None = None,
        token: int = 1,
        **options: Any,  # noqa: ANN401
    ) -> None:
        self.sink = sink if sink is not None else make_sink(directory, **options)
        self.segment = self.sink.next_segment(token, segments.OPENING)
        self._chunks: list[bytes] = []
        self._at = self.segment.data_offset

    @property
    def path(self) -> Path:
        """The file's name while it is written."""
        return self.segment.paths.partial

    def write(self, *chunks: bytes) -> None:
        """Append chunks."""
        for one in chunks:
            self.tear(one)
            self._chunks.append(one)
            self._at += len(one)

    def tear(self, piece: bytes) -> None:
        """Write a part of the next chunk to the file."""
        os.pwrite(self.segment.meta_fd, piece, self._at)

    def seal(self, *, final: bool = True, lost_samples: Mapping[int, int] | None = None) -> Path:
        """Seal the segment; returns the file's name."""
        told = closed(self.segment, self._chunks)._replace(final=final)
        closing = segments.closing(lost_samples=lost_samples or {})
        info = self.sink.seal(self.segment, told, closing)
        return info.path if info is not None else self.path
