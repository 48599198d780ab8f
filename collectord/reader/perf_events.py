# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the samples of BPF programs, read back from a perf.data segment.

In a running segment only the part before the last FINISHED_ROUND is read: the writer wrote that
marker after everything before it. The bytes behind it may be half written. So the marker is
searched first, and the part before it is read once it has been seen.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec import perf_sideband
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_data import HEADER_BYTES, parse_header
from collectord.codec.perf_order import ALWAYS, TimeOrder, past_last_round
from collectord.codec.perf_record import decode_sample_id, header_at, identifier
from collectord.errors import CodecError, SinkError
from collectord.reader.bpf_events import NO_NOTE, bpf_events, read_note
from collectord.sink.perf_file import read_head
from collectord.sink.scan import mapped
from collectord.sink.segment import lock, sink_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectord.codec.perf_record import RecordHeader
    from collectord.reader.bpf_events import BpfEvent

_UNREADABLE: Final = "cannot read the segment"
_IDLE: Final = "<idle>"
_NAMELESS: Final = "<...>"
_BLOCK_BYTES: Final = 4 << 20
_OTHERS: Final = frozenset(
    map(int, (RecordType.COMM, RecordType.FORK, RecordType.LOST, RecordType.LOST_SAMPLES))
)


class Record(NamedTuple):
    """A sample that a program submitted: when, where, in which task."""

    time_ns: int
    cpu: int
    pid: int
    tid: int
    event: BpfEvent
    payload: bytes


class Loss(NamedTuple):
    """Events of any program that a CPU's ring lost before its next event."""

    time_ns: int
    cpu: int
    events: int


class Total(NamedTuple):
    """Events of one program that all rings lost in this segment, as counted by its seal."""

    event: BpfEvent
    events: int


class Damage(NamedTuple):
    """A part of the file, from `offset` on, without a valid record."""

    offset: int
    reason: str


Happening = Record | Loss | Total | Damage


class BpfSegment:
    """An open perf.data segment with events of BPF programs, sealed or not.

    Attributes:
        path: of the file, as it was opened.
        events: of BPF programs, in the file's order.
        run: of the stream that wrote it, "" if unknown.
        complete: its manifest has all losses.
        sealed: `poll` has seen the seal, so no more data will come.

    Raises:
        UsageError: it has no such event, or another program wrote it.
        SinkError: it cannot be read, or its head is damaged.
    """

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path
        with sink_errors(_UNREADABLE, path, reading=True):
            try:
                head = read_head(fd)
            except CodecError as error:
                raise SinkError(
                    f"it does not have the layout of a segment, {error.message}",
                    path=str(path),
                    hint="`perf script` may still read it",
                ) from error
            note = read_note(path) or NO_NOTE
        self._attrs = {number: section.attr for section in head.attrs for number in section.ids}
        self._events = bpf_events(head, note, path)
        self.events = tuple(dict.fromkeys(self._events.values()))
        self.run = note.run
        self.complete = note.complete
        self.sealed = False
        self._order = TimeOrder(self._attrs, frozenset(self._events), _OTHERS)
        self._at = self._end = head.data_offset
        self._due_ns = -1
        self._comms: dict[int, str] = {}
        self._totals: Counter[BpfEvent] = Counter()

    def comm(self, tid: int) -> str:
        """Return a task's name at the time of the last item from `by_time` or `read_new`."""
        return self._comms.get(tid, _NAMELESS) if tid else _IDLE

    @property
    def deleted(self) -> bool:
        """Whether its name was removed: it never held an event, or made room for others."""
        return not os.fstat(self._fd).st_nlink

    def is_abandoned(self) -> bool:
        """Whether nobody writes it any more, and the last poll saw no seal."""
        if self.sealed or not lock(self._fd):
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def by_time(self) -> Iterator[Happening]:
        """Yield what happened, in the order of time. Raises as `read_new`."""
        self.poll()
        yield from self.read_new(everything=True)

    def poll(self) -> bool:
        """Note what the writer has added since the last poll; return False if nothing was.

        Raises:
            SinkError: the segment cannot be read.
        """
        if self.sealed:
            return False
        before = self._end
        with sink_errors(_UNREADABLE, self.path, reading=True):
            try:
                data = parse_header(os.pread(self._fd, HEADER_BYTES, 0)).data
            except CodecError as error:
                raise SinkError(f"changed, {error.message}", path=str(self.path)) from error
            self.sealed = data.size > 0
            self._end = data.offset + data.size if self.sealed else self._settled(self._end)
        return self.sealed or self._end > before

    @property
    def keeps(self) -> bool:
        """Whether records were kept back because later rounds may have older ones."""
        return self._order.waits

    def skip(self) -> None:
        """Skip the events that the last poll saw. Raises as `read_new`."""
        self._order.with_samples = False
        for _ in self.read_new(everything=True):
            pass
        self._order.with_samples = True

    def read_new(self, *, everything: bool) -> Iterator[Happening]:
        """Yield what the last poll saw and has not been yielded, in the order of time.

        Without `everything`, or the seal, the last rounds are kept back: later ones may be older.

        Raises:
            SinkError: the segment cannot be read any further.
        """
        with sink_errors(_UNREADABLE, self.path, reading=True):
            end = min(self._end, os.fstat(self._fd).st_size)
        with sink_errors(_UNREADABLE, self.path, reading=True), mapped(self._fd, end) as view:
            while self._at < end:
                stop = self._order.feed(view, self._at, end)
                self._at = stop.at
                if stop.reason:
                    self._at = self._order.resume(view, stop.at, end)
                    yield Damage(stop.at, stop.reason)
                if stop.is_round:
                    yield from self._take(view, self._due_ns)
                    self._due_ns = self._order.newest_ns
            if everything or self.sealed:
                yield from self._take(view, ALWAYS)
        if self.sealed:
            if end < self._end:
                yield Damage(end, f"the file ends before its data, which go to byte {self._end},")
                self._end = end
            yield from self._take_totals()

    def _take(self, view: memoryview, until_ns: int) -> Iterator[Happening]:
        for at in self._order.take(view, until_ns):
            header = header_at(view, at)
            try:
                if header.type == RecordType.SAMPLE:
                    event = self._events[identifier(view, header)]
                    pid, tid, time_ns, cpu, raw = event.samples.decode(view, at, header.size)
                    yield Record(time_ns, cpu, pid, tid, event, raw)
                else:
                    yield from self._follow(view, header)
            except CodecError as error:
                yield Damage(at, error.message)

    def _follow(self, view: memoryview, header: RecordHeader) -> Iterator[Loss]:
        """Process a record other than a sample."""
        number = identifier(view, header)
        attr = self._attrs[number]
        record = perf_sideband.decode(view, header, attr)
        if isinstance(record, perf_sideband.Comm):
            self._comms[record.tid] = record.comm.decode(errors="backslashreplace")
        elif isinstance(record, perf_sideband.Fork):
            self._comms[record.tid] = self._comms.get(record.ptid, _NAMELESS)
        elif number in self._events and isinstance(record, perf_sideband.Lost):
            sample_id = decode_sample_id(view, header, attr)
            yield Loss(sample_id.time_ns, sample_id.cpu, record.lost)
        elif number in self._events and isinstance(record, perf_sideband.LostSamples):
            self._totals[self._events[number]] += record.lost

    def _take_totals(self) -> Iterator[Total]:
        totals, self._totals = self._totals, Counter()
        for event, events in totals.items():
            yield Total(event, events)

    def _settled(self, at: int) -> int:
        """Return the end of the last round in the file behind `at`, a boundary of records."""
        settled = at
        while block := os.pread(self._fd, _BLOCK_BYTES, at):
            walked, past_round = past_last_round(block)
            if past_round:
                settled = at + past_round
            if not walked or len(block) < _BLOCK_BYTES:
                break
            at += walked
        return settled
