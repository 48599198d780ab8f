# SPDX-License-Identifier: Apache-2.0
"""Sink stage: perf.data segments, rotated in a session's directory or as one named file.

Readers see in a running one what was written before the last flush: the core's writer updates
the header.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord.codec.file_formats import PERF_DATA
from collectord.codec.perf_data import NO_RECORDS, AttrSection, build_head, build_tail
from collectord.codec.perf_features import Features
from collectord.codec.perf_record import SampleId
from collectord.codec.perf_sideband import LostSamples
from collectord.codec.perf_sideband import encode as encode_record
from collectord.codec.perf_targets import encode_targets
from collectord.sink.file_sink import NO_LAYOUTS, Contents, FileSink, Place
from collectord.sink.manifest import with_counts
from collectord.sink.perf_file import DataSection, finish, write_head
from collectord.sink.segment import FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from collectord._native._core import SegmentClosed
    from collectord.codec.perf_targets import IdPlace
    from collectord.plan.sink_plan import SinkPlan
    from collectord.sink.base import Closing, OpenSegment
    from collectord.sink.manifest import EventLayout, Identity
    from collectord.sink.stored_file import FinishedFile

# Space that the writer allocates ahead: long extents, and little to give back at the close.
STEP_BYTES: Final = 16 << 20
# The disk is full, or the file has the largest size allowed for this process.
_NO_ROOM: Final = FULL | {errno.EFBIG}
# Room behind the data for features of the code that ran; if it is missing, they are left out.
_CODE_BYTES: Final = 128 << 10


class PerfDataSink(FileSink):
    """The perf.data files of one stream."""

    FORMAT = PERF_DATA

    def __init__(
        self,
        plan: SinkPlan,
        identity: Identity,
        *,
        attrs: Sequence[AttrSection],
        features: Features,
        tracing_data: bytes | None = None,
        places: Sequence[IdPlace] = (),
        aux_info: bytes | None = None,
        layouts: Mapping[str, EventLayout] = NO_LAYOUTS,
        make_room: Callable[[int], bool] = lambda _need_bytes: False,
    ) -> None:
        """Make the directory ready.

        Args:
            plan: says where the files go and when they end.
            identity: host and session of the files.
            attrs: the events with all their ids; a file with an unknown id is unreadable.
            features: feature sections that stay the same; the sample time is added at the seal.
            tracing_data: perf's TRACING_DATA section, required with tracepoints.
            places: the CPU and the thread of each id, where they are known.
            aux_info: records that decoders of AUX traces need before the trace.
            layouts: of the events that BPF programs submit, by name, for the manifests.
            make_room: called with the bytes needed when the disk is full; True if some were freed.

        Raises:
            SinkError: the directory cannot be made, read or written.
        """
        self._attrs = tuple(attrs)
        self._cpus = {place.id: place.cpu for place in places}
        first = (encode_targets(places) if places else b"") + (aux_info or b"")
        self._head = build_head(attrs, tracing_data, features=features, first_records=first)
        names = [section.name for section in attrs]
        super().__init__(plan, identity, events=names, layouts=layouts, make_room=make_room)
        if not all(section.attr.use_clockid for section in attrs):
            self._clock = "perf"

    def _begin(self, token: int, fd: int) -> Place:
        del token
        write_head(fd, self._head)
        step_bytes = min(STEP_BYTES, self._plan.segment_bytes or STEP_BYTES)
        return Place(
            self._head.write_offset,
            step_bytes,
            tail_bytes=self._tail_bytes() + _CODE_BYTES,
            lost_ids=sum(len(section.ids) for section in self._attrs),
            table=self._head.table,
            size_word=self._head.size_word,
        )

    def _tail_bytes(self) -> int:
        """Return the size of the part behind the data that readers need, without the AUX index."""
        every = {event_id: 1 for section in self._attrs for event_id in section.ids}
        losses = sum(map(len, self._loss_records(every)))
        features = Features(sample_time=(0, 0), auxtrace_index=(0,))
        return max(losses, len(NO_RECORDS)) + len(build_tail(self._head, 0, features).tail)

    def _finish(
        self, segment: OpenSegment, closed: SegmentClosed, closing: Closing
    ) -> Generator[str, None, tuple[FinishedFile, Contents]]:
        losses = self._loss_records(closing.lost_samples)
        data = DataSection(
            sums=closed.sums,
            # Readers take a file without data for one that was never completed.
            appended=b"".join(losses) or (b"" if closed.sums else NO_RECORDS),
            first_ns=closed.first_ns,
            last_ns=closed.last_ns,
            auxtrace_index=closed.aux_index,
            features=closing.features,
        )
        try:
            file = yield from finish(segment.meta_fd, self._head, data)
        except OSError as error:
            if error.errno not in _NO_ROOM or data.features == Features():
                raise
            # The room that the writer reserves is for the parts that readers need.
            data = replace(data, features=Features())
            file = yield from finish(segment.meta_fd, self._head, data)
        counts = {ring: (samples, size) for ring, samples, size in closed.rings}
        counts |= {ring: (0, size) for ring, size, _ in closed.aux}
        return file, Contents(
            rings=with_counts(closing.rings, counts),
            first_ns=closed.first_ns,
            last_ns=closed.last_ns,
            records=closed.records + closed.replayed + len(losses),
            samples=closed.samples,
            replayed=closed.replayed,
        )

    def _loss_records(self, lost_samples: Mapping[int, int]) -> list[bytes]:
        """Return LOST_SAMPLES records by id, of time 0: readers take these without a flush."""
        return [
            encode_record(LostSamples(count), section.attr, self._lost_at(event_id))
            for section in self._attrs
            for event_id in section.ids
            if (count := lost_samples.get(event_id, 0))
        ]

    def _lost_at(self, event_id: int) -> SampleId:
        return SampleId(id=event_id, cpu=self._cpus.get(event_id, -1) % (1 << 32))

    def _is_empty(self, closed: SegmentClosed) -> bool:
        return not closed.records and not any(size for _, size, _ in closed.aux)

    def _may_hold_data(self, segment: OpenSegment) -> bool:
        """Whether the first record's type is not 0; True for a file that cannot be read."""
        try:
            return bool(os.pread(segment.meta_fd, 1, segment.data_offset).strip(b"\0"))
        except OSError:
            return True
