# SPDX-License-Identifier: Apache-2.0
"""Sink stage: events of BPF programs and their samples, read back from a perf.data segment.

In a running segment only the part before the last FINISHED_ROUND is read: the writer wrote that
marker after everything before it. The bytes behind it may be half written. So the marker is
searched first, and the part before it is read once it has been seen.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec import bpf_struct, perf_sideband
from collectord.codec.perf_attr import EventType, RecordType, SoftwareId
from collectord.codec.perf_data import HEADER_BYTES, parse_header
from collectord.codec.perf_order import ALWAYS, TimeOrder, past_last_round
from collectord.codec.perf_record import RawSamples, decode_sample_id, header_at, identifier
from collectord.errors import CodecError, SinkError, UsageError
from collectord.folders.walk import open_folder
from collectord.model import Reason, Stage, loss_name
from collectord.sink.manifest import Manifest, OpenManifest, decode
from collectord.sink.perf_file import read_head
from collectord.sink.scan import mapped
from collectord.sink.segment import PARTIAL, SegmentPaths, lock, read_other_manifest, sink_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from collectord.codec.bpf_struct import Value
    from collectord.codec.perf_data import AttrSection, Head
    from collectord.codec.perf_record import RecordHeader
    from collectord.sink.manifest import EventLayout

_UNREADABLE: Final = "cannot read the segment"
_IDLE: Final = "<idle>"
_NAMELESS: Final = "<...>"
_BLOCK_BYTES: Final = 4 << 20
_OTHERS: Final = frozenset(
    map(int, (RecordType.COMM, RecordType.FORK, RecordType.LOST, RecordType.LOST_SAMPLES))
)
# The only field of an event without a layout.
DATA: Final = "data"
RING_FULL: Final = loss_name((Stage.KERNEL_RING, Reason.RING_FULL))


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
        self._at = self._end = head.write_offset
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
                header = parse_header(os.pread(self._fd, HEADER_BYTES, 0))
            except CodecError as error:
                raise SinkError(f"changed, {error.message}", path=str(self.path)) from error
            self.sealed = header.sealed
            end = header.data.offset + header.data.size
            self._end = end if self.sealed else self._settled(self._end)
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


@dataclass(frozen=True, slots=True, eq=False)
class BpfEvent:
    """An event in a file that a BPF program submits.

    Attributes:
        name: text that UTF-8 can encode.
        described: the layout of its samples, None if unknown.
        samples: decodes its samples.
        values: returns the fields of a payload by name. Raises CodecError.
    """

    name: str
    described: EventLayout | None
    samples: RawSamples
    values: Callable[[bytes], dict[str, Value]]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all fields, in their order."""
        if self.described is None:
            return (DATA,)
        return tuple(field.name for field in self.described.layout.fields)


class SegmentNote(NamedTuple):
    """The facts in the manifest beside a segment.

    Attributes:
        layouts: by the name of the event.
        run: of the stream.
        complete: the segment's own sink sealed it, so that all losses are known.
    """

    layouts: Mapping[str, EventLayout]
    run: str = ""
    complete: bool = False


NO_NOTE: Final = SegmentNote({})


def read_note(path: Path) -> SegmentNote | None:
    """Read the manifest of a segment, sealed or running; None without one. Raises OSError."""
    paths = SegmentPaths(path.parent, path.name.removesuffix(PARTIAL))
    # The open manifest first, except for a sealed file, which has its own: a running segment is
    # sealed before its open manifest goes, and a recording to one file may have an older manifest
    # beside it.
    opened = sealed = None
    with open_folder(path.parent) as folder:
        if path == paths.partial:
            opened = decode(read_other_manifest(folder, paths.open_manifest), OpenManifest)
        if opened is None:
            sealed = decode(read_other_manifest(folder, paths.manifest), Manifest)
    manifest = opened or sealed
    if manifest is None:
        return None
    complete = isinstance(manifest, Manifest) and manifest.complete
    return SegmentNote(manifest.layouts, manifest.run, complete)


def bpf_events(head: Head, note: SegmentNote, path: Path) -> dict[int, BpfEvent]:
    """Return the events of BPF programs by the ids of their samples.

    Raises:
        UsageError: there is no such event, or another program recorded it.
    """
    found: dict[int, BpfEvent] = {}
    for section in head.attrs:
        attr = section.attr
        if attr.type != EventType.SOFTWARE or attr.config != SoftwareId.BPF_OUTPUT:
            continue
        try:
            samples = RawSamples(attr)
        except CodecError as error:
            raise _perf_reads(f"{path} is by another program, {error.message}", path) from error
        found |= dict.fromkeys(section.ids, _event(section, samples, note))
    if not found:
        raise _perf_reads(f"{path} has no events of BPF programs", path)
    return found


def stage_losses(path: Path) -> dict[str, int] | None:
    """Return what was lost while a sealed segment was written, by `<stage>/<reason>`.

    A manifest has the ledger from the session's start to the seal, so the segment's own losses are
    the difference from the ledger of the segment before it in its run. The losses of its rings by
    event, which are in the file itself, are not included.

    Returns:
        None if the losses are unknown: it has no manifest, a repair sealed it, or there were
        losses and the segment before it is gone.

    Raises:
        SinkError: a manifest cannot be read.
    """
    manifest = sealed_manifest(SegmentPaths(path.parent, path.name).manifest)
    if manifest is None or not manifest.complete:
        return None
    until = _losses(manifest)
    if until is None:
        return None
    before = _losses_before(path.parent, manifest) if any(until.values()) else {}
    if before is None:
        return None
    lost = {stage: max(0, events - before.get(stage, 0)) for stage, events in until.items()}
    untold = lost.pop(RING_FULL, 0) - sum(manifest.lost_samples.values())
    return lost | {RING_FULL: untold} if untold > 0 else lost


def _losses_before(directory: Path, manifest: Manifest) -> Mapping[str, int] | None:
    """Return the run's losses up to the segment before this one; None if unknown."""
    seen: set[str] = set()
    at = manifest
    while at.previous is not None and at.previous.manifest not in seen:
        name = at.previous.manifest
        seen.add(name)
        earlier = sealed_manifest(directory / name) if "/" not in name else None
        if earlier is None:
            return None if manifest.stored_before else {}
        if earlier.run == manifest.run:
            return _losses(earlier)
        if not manifest.stored_before:
            return {}
        at = earlier
    return None if manifest.stored_before else {}


def _losses(manifest: Manifest) -> dict[str, int] | None:
    lost = manifest.ledger.get("lost")
    if not isinstance(lost, dict):
        return None
    if not all(isinstance(events, int) and events >= 0 for events in lost.values()):
        return None
    return lost


def _perf_reads(message: str, path: Path) -> UsageError:
    return UsageError(message, hint=f"`perf script -i {path}` reads it")


def _event(section: AttrSection, samples: RawSamples, note: SegmentNote) -> BpfEvent:
    name = section.name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    described = note.layouts.get(name)
    if described is not None:
        try:
            return BpfEvent(name, described, samples, bpf_struct.decoder(described.layout))
        except CodecError:  # `segments verify` reports it
            pass
    return BpfEvent(name, None, samples, lambda payload: {DATA: payload})


def sealed_manifest(path: Path) -> Manifest | None:
    """Read the manifest of a sealed segment; None without one. Raises SinkError."""
    telling = sink_errors("cannot read the manifest", path, reading=True)
    with telling, open_folder(path.parent) as folder:
        return decode(read_other_manifest(folder, path), Manifest)
