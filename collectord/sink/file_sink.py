# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the common base of all sinks of files: names, manifests, room, the seal."""

from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

import msgspec

from collectord.errors import SinkError
from collectord.folders.folder import reopen
from collectord.sink.base import GivenUp, OpenSegment, SegmentInfo, SoFar
from collectord.sink.current_link import CurrentLink
from collectord.sink.manifest import (
    Clocks,
    Identity,
    Manifest,
    OpenManifest,
    RingEntry,
    common_fields,
    encode,
    link,
    thin,
)
from collectord.sink.manifest_room import room_bytes
from collectord.sink.output_dir import OutputDir
from collectord.sink.segment import FULL, sink_errors
from collectord.sink.segment_steps import publish, remove, remove_beside, run
from collectord.sink.stored_totals import StoredTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from collectord._native._core import SegmentClosed
    from collectord.plan.sink_plan import SinkPlan
    from collectord.sink.base import Closing, Opening
    from collectord.sink.manifest import EventLayout
    from collectord.sink.stored_file import FinishedFile

NO_LAYOUTS: Final[Mapping[str, EventLayout]] = MappingProxyType({})
UNLIMITED_BYTES: Final = 1 << 62
# The space to begin a segment, requested when its creation met a full disk.
_BEGIN_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """The layout of a new data file; see `OpenSegment`.

    Attributes:
        lost_ids: the maximum number of events whose losses its manifest may list.
    """

    data_offset: int
    step_bytes: int
    offsets: Mapping[int, int] = field(default_factory=dict)
    capacity_bytes: int = 0
    tail_bytes: int = 0
    lost_ids: int = 0
    table: bytes = b""
    size_word: tuple[int, int] = (0, 0)


class Contents(NamedTuple):
    """The contents of a finished file, as in its manifest."""

    rings: tuple[RingEntry, ...]
    first_ns: int
    last_ns: int
    records: int | None
    samples: int
    replayed: int


class FileSink(ABC):
    """The files of one stream.

    `next_segment` may run beside a `seal`; the seals of one sink follow one another.
    """

    FORMAT: ClassVar[str]
    DIRECT: ClassVar[bool] = True  # data bypass the page cache if the filesystem allows it

    def __init__(
        self,
        plan: SinkPlan,
        identity: Identity,
        *,
        events: Sequence[str],
        layouts: Mapping[str, EventLayout] = NO_LAYOUTS,
        make_room: Callable[[int], bool] = lambda _need_bytes: False,
        form: str = "",
        output_dir: OutputDir | None = None,
    ) -> None:
        """Make the directory ready.

        Args:
            plan: says where the files go and when they end.
            identity: host and session of the files.
            events: names of the events, for the manifests.
            layouts: of the events that the format does not describe, by name, for the manifests.
            make_room: called with the bytes needed when the disk is full; True if some were freed.
            form: of files whose format includes a number; FORMAT for others.
            output_dir: where the files go, if the plan alone does not decide that.

        Raises:
            SinkError: the directory cannot be made, read or written.
        """
        self._plan = plan
        self._identity = identity
        self._events = tuple(events)
        self._layouts = dict(layouts)
        self._make_room = make_room
        self._lock = threading.Lock()
        self._open: dict[int, OpenSegment] = {}
        self._sealing = threading.Lock()
        self._run = uuid.uuid4().hex
        self._totals = StoredTotals()
        self._sealed_any = False
        self._clock: Literal["monotonic", "perf"] = "monotonic"
        self._form = form or self.FORMAT
        self._output_dir = output_dir or OutputDir(plan, self._form)
        self._link = CurrentLink(self._form)

    @property
    def so_far(self) -> SoFar:
        """The segments sealed so far, for a sink that continues them."""
        return SoFar(self._identity, self._run, self._totals.stored)

    def catch_up(self) -> None:
        """Continue behind segments that a repair has sealed. Raises SinkError."""
        self._output_dir.catch_up()

    # Defined by each format.

    @abstractmethod
    def _begin(self, token: int, fd: int) -> Place:
        """Write the part of the file before the data, and wait for the disk. Raises OSError."""

    @abstractmethod
    def _finish(
        self, segment: OpenSegment, closed: SegmentClosed, closing: Closing
    ) -> Generator[str, None, tuple[FinishedFile, Contents]]:
        """Finish the file and wait for the disk. May be run again after any step."""

    @abstractmethod
    def _is_empty(self, closed: SegmentClosed) -> bool:
        """Whether the segment got no data from any ring."""

    @abstractmethod
    def _may_hold_data(self, segment: OpenSegment) -> bool:
        """Whether anything was written into the segment, as far as the file shows."""

    # Common to all formats.

    def next_segment(self, token: int, opening: Opening) -> OpenSegment:
        """Create a file with its head written, and its open manifest.

        Raises:
            SinkError: nothing could be created, and nothing is left behind. If errno is ENOSPC or
                EDQUOT, `make_room` could not free anything either.
        """
        while True:
            try:
                segment = self._create(token, opening)
            except SinkError as error:
                if error.errno not in FULL or not self._make_room(_BEGIN_BYTES):
                    raise
            else:
                with self._lock:
                    self._open[token] = segment
                return segment

    def add_ring(self, ring: int, cpu: int) -> bool:
        """Take one more ring: the records of all share a place."""
        del ring, cpu
        return False

    def lead(self, segment: OpenSegment) -> None:
        """Let the link beside the segments lead to this one, unless it was sealed meanwhile.

        Raises:
            SinkError: the link cannot be made.
        """
        name = segment.paths.partial
        with self._lock, sink_errors("cannot link to the segment", name):
            if self._plan.single_file is None and segment.token in self._open:
                self._link.lead_to(segment.folder, name.name)

    def seal(
        self, segment: OpenSegment, closed: SegmentClosed, closing: Closing
    ) -> SegmentInfo | None:
        """Make a segment final.

        A segment that holds only replay is dropped, unless it is the first of this sink or the
        last of its stream: only the balance of the last one is final.

        Returns:
            None for a segment that was dropped.

        Raises:
            SinkError: the call may be repeated if its errno is in `PASSING`; otherwise the segment
                has to be given up.
        """
        with self._sealing, sink_errors("cannot seal the segment", segment.paths.partial):
            if not segment.folder.is_named(segment.paths.partial.name, segment.meta_fd):
                raise _no_file(segment)
            if self._is_void(closed, closing):
                self.discard(segment)
                return None
            while True:
                try:
                    info = run(self.seal_steps(segment, closed, closing))
                except OSError as error:
                    if error.errno not in FULL or not self._make_room(_BEGIN_BYTES):
                        raise
                else:
                    self._forget(segment)
                    return info

    def give_up(self, segment: OpenSegment, closed: SegmentClosed) -> GivenUp:
        """Close a segment that cannot be sealed. Its data stay for a repair, if they exist.

        Raises:
            SinkError: the file system does not answer, or the files beside the data cannot be
                deleted.
        """
        paths = segment.paths
        with self._sealing, sink_errors("cannot leave the segment", paths.partial):
            try:
                names = (paths.partial, paths.data)  # the last steps of a seal may have failed
                left = [p for p in names if segment.folder.is_named(p.name, segment.meta_fd)]
                events = self._held(segment, closed)
            finally:
                self._forget(segment)
            if left:
                return GivenUp(left=tuple(left), events=events)
            remove_beside(segment.folder, paths)
            if segment.folder.stat(paths.data.name) is None:
                segment.folder.discard(paths.manifest.name)  # renamed just before
        aux_bytes = {ring: size for ring, size, _ in closed.aux}
        return GivenUp(events=events, lost_events=events, lost_aux_bytes=aux_bytes)

    def _held(self, segment: OpenSegment, closed: SegmentClosed) -> Mapping[int, int]:
        """Return the number of events in a segment, by ring id."""
        del segment
        return {ring: samples for ring, samples, _ in closed.rings}

    def seal_steps(
        self, segment: OpenSegment, closed: SegmentClosed, closing: Closing
    ) -> Generator[str, None, SegmentInfo]:
        """Run the steps of `seal`; yields the name of each step that a kill may follow."""
        file, held = yield from self._finish(segment, closed, closing)
        opened = segment.manifest
        rings = self._totals.set_in(held.rings)
        ledger = closing.ledger
        if closing.recut is not None:
            ledger = closing.recut({entry.ring: entry.samples for entry in held.rings})
        manifest = Manifest(
            **common_fields(opened)
            | {
                "rings": rings,
                "stored_before": self._totals.stored,
                "clocks": Clocks(
                    open=opened.clocks.open, flushes=thin(closing.flushes), close=closing.clock
                ),
            },
            complete=True,
            recovered=closing.recovered,
            first_ns=held.first_ns,
            last_ns=held.last_ns,
            records=held.records,
            samples=held.samples,
            replayed=held.replayed,
            produced=ledger.get("produced"),
            ledger=ledger,
            lost_samples={str(key): n for key, n in closing.lost_samples.items() if n},
            bytes=file.bytes,
            allocated_bytes=file.allocated_bytes,
            data_bytes=file.data_bytes,
            spans=file.spans,
            build_ids=closing.build_ids,
            previous=self._output_dir.previous,
            snapshot=closing.snapshot,
            early=closed.early,
            balances=closing.balances,
        )
        encoded = encode(manifest)
        yield from publish(segment.folder, segment.paths, segment.paths, encoded)
        self._output_dir.previous = link(segment.paths.manifest.name, encoded)
        self._sealed_any = True
        self._totals.add(held.samples, rings)
        return SegmentInfo(segment.token, segment.paths.data, manifest)

    def flush(
        self,
        segment: OpenSegment,
        track_bytes: Mapping[int, int],
        stats: Mapping[int, str] | None = None,
    ) -> None:
        """Do nothing: readers see in the running file what the writer has written."""
        del segment, track_bytes, stats

    def discard(self, segment: OpenSegment) -> None:
        """Delete a segment that never received data, and close its fds.

        Raises:
            SinkError: a file cannot be deleted.
        """
        with sink_errors("cannot delete the segment", segment.paths.partial):
            remove(segment.folder, segment.paths)
        self._forget(segment)

    def close(self) -> None:
        """Discard segments without data; those with data are left for the repair.

        Directories that were made but not used are removed as well.

        Raises:
            SinkError: a file cannot be deleted.
        """
        with ExitStack() as stack:
            stack.callback(self._output_dir.close)
            if not self._sealed_any:
                stack.callback(self._output_dir.remove_made)
            for segment in self._open.copy().values():
                stack.callback(self._forget, segment)
                if not self._may_hold_data(segment):
                    stack.callback(self.discard, segment)

    def _create(self, token: int, opening: Opening) -> OpenSegment:
        started_ns = time.time_ns()
        self._totals.go_on(opening)
        with ExitStack() as stack:
            paths, meta_fd = self._output_dir.claim(started_ns)
            stack.callback(os.close, meta_fd)
            folder = self._output_dir.folder
            stack.callback(folder.discard, paths.partial.name)
            with sink_errors("cannot create a segment", paths.partial):
                place = self._begin(token, meta_fd)
                fd, direct = _open_data(meta_fd, direct=self.DIRECT)
                stack.callback(os.close, fd)
                manifest = OpenManifest(
                    **msgspec.structs.asdict(self._identity),
                    format=self._form,
                    segment=paths.name,
                    started_ns=started_ns,
                    direct=direct,
                    data_offset=place.data_offset,
                    events=self._events,
                    rings=self._totals.set_in(opening.rings),
                    clocks=Clocks(open=opening.clock),
                    run=opening.run or self._run,
                    stored_before=self._totals.stored,
                    layouts=self._layouts,
                    clock=self._clock,
                    gap=opening.gap,
                )
                folder.write_new(paths.open_manifest.name, encode(manifest))
                stack.callback(folder.discard, paths.open_manifest.name)
                room = room_bytes(
                    self._events,
                    self._layouts,
                    rings=len(opening.rings),
                    lost_ids=place.lost_ids,
                    segment_bytes=self._plan.segment_bytes,
                )
                folder.claim_room(paths.new_manifest.name, room)
                stack.callback(folder.discard, paths.new_manifest.name)
                folder.sync()
            stack.pop_all()
        return OpenSegment(
            token=token,
            fd=fd,
            meta_fd=meta_fd,
            data_offset=place.data_offset,
            limit_bytes=self._plan.segment_bytes or UNLIMITED_BYTES,
            step_bytes=place.step_bytes,
            folder=folder,
            paths=paths,
            manifest=manifest,
            offsets=place.offsets,
            capacity_bytes=place.capacity_bytes,
            tail_bytes=place.tail_bytes,
            table=place.table,
            size_word=place.size_word,
        )

    def _is_void(self, closed: SegmentClosed, closing: Closing) -> bool:
        if self._plan.single_file is not None or not self._sealed_any or closed.final:
            return False
        return self._is_empty(closed) and not any(closing.lost_samples.values())

    def _forget(self, segment: OpenSegment) -> None:
        with self._lock:
            if self._open.pop(segment.token, None) is not None:
                self._link.leave(segment.folder, segment.paths.partial.name)
                os.close(segment.fd)
                os.close(segment.meta_fd)


def _no_file(segment: OpenSegment) -> SinkError:
    return SinkError(
        "the segment is gone",
        path=str(segment.paths.partial),
        errno=errno.ENOENT,
        hint="it was deleted or renamed while it was written",
    )


def _open_data(fd: int, *, direct: bool) -> tuple[int, bool]:
    """Open a file again for data: without the page cache, or with it if that is refused."""
    try:
        if direct:
            return reopen(fd, os.O_WRONLY | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return reopen(fd, os.O_WRONLY), False
