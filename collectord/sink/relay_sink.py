# SPDX-License-Identifier: Apache-2.0
"""Sink stage: segments that are sets of files, one for each CPU, as blktrace writes them.

- <UTC start>-<seq>.blktrace.0, .blktrace.1 ..: input of `blkparse -i <UTC start>-<seq>`
- <UTC start>-<seq>.relay.0 ..: bytes of a channel of unknown format

All files of a segment have the same name except for the number, and a manifest each. There is a
file for each number from 0 on, even without data: blkparse stops at the first missing one.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from collectord.errors import SinkError
from collectord.sink.base import GivenUp, SegmentInfo, SoFar
from collectord.sink.file_sink import Contents, FileSink, Place
from collectord.sink.manifest import with_counts
from collectord.sink.output_dir import FollowingOutputDir, OutputDir
from collectord.sink.relay_file import finish
from collectord.sink.segment import PASSING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from collectord._native._core import SegmentClosed
    from collectord.plan.sink_plan import SinkPlan
    from collectord.sink.base import Closing, Opening, OpenSegment
    from collectord.sink.manifest import Identity
    from collectord.sink.stored_file import FinishedFile


class _OneFile(FileSink):
    """The files with one number."""

    FORMAT = ""
    DIRECT = False

    def __init__(
        self,
        plan: SinkPlan,
        identity: Identity,
        *,
        form: str,
        channel: str,
        leader: OutputDir | None,
        make_room: Callable[[int], bool],
    ) -> None:
        self._ring: int | None = None
        self._sealed: dict[int, SegmentInfo] = {}
        output_dir = (
            OutputDir(plan, form) if leader is None else FollowingOutputDir(plan, form, leader)
        )
        super().__init__(
            plan,
            identity,
            events=(channel,),
            make_room=make_room,
            form=form,
            output_dir=output_dir,
        )

    @property
    def ring(self) -> int | None:
        """The core's id of the ring that is written here, None without one."""
        return self._ring

    def take_ring(self, ring: int) -> None:
        """Have a ring's data from the next segment on."""
        self._ring = ring

    @property
    def output_dir(self) -> OutputDir:
        """The directory of the files."""
        return self._output_dir

    def seal_once(
        self, segment: OpenSegment, closed: SegmentClosed, closing: Closing
    ) -> SegmentInfo:
        """Seal, or return the earlier result: a full disk may interrupt a set half-way."""
        if segment.token not in self._sealed:
            info = self.seal(segment, closed, closing)
            if info is None:
                raise ValueError(segment.paths)
            self._sealed[segment.token] = info
        return self._sealed[segment.token]

    def sealed(self, token: int) -> SegmentInfo | None:
        """Return the result of `seal_once`, None without one."""
        return self._sealed.get(token)

    def _held(self, segment: OpenSegment, closed: SegmentClosed) -> Mapping[int, int]:
        events = super()._held(segment, closed)
        return {ring: count for ring, count in events.items() if ring == self._ring}

    def forget_sealed(self, token: int) -> None:
        """Forget the result, once the whole set is sealed."""
        self._sealed.pop(token, None)

    def may_hold_data(self, segment: OpenSegment) -> bool:
        """Whether anything was written into the file."""
        return self._may_hold_data(segment)

    def leave(self, segment: OpenSegment) -> None:
        """Close a file as it is."""
        self._forget(segment)

    def _begin(self, token: int, fd: int) -> Place:
        del token, fd
        return Place(data_offset=0, step_bytes=0)

    def _finish(
        self, segment: OpenSegment, closed: SegmentClosed, closing: Closing
    ) -> Generator[str, None, tuple[FinishedFile, Contents]]:
        tracks = {ring: sums for ring, _, sums in closed.tracks}
        sums = tracks.get(-1 if self._ring is None else self._ring, ())
        file = yield from finish(segment.meta_fd, sums)
        counts = {ring: (samples, size) for ring, samples, size in closed.rings}
        samples = counts.get(-1 if self._ring is None else self._ring, (0, 0))[0]
        own = [entry for entry in closing.rings if entry.ring == self._ring]
        return file, Contents(
            rings=with_counts(own, counts),
            first_ns=closed.first_ns if samples else 0,
            last_ns=closed.last_ns if samples else 0,
            records=None,
            samples=samples,
            replayed=0,
        )

    def _is_void(self, closed: SegmentClosed, closing: Closing) -> bool:
        """Return False: the set decides."""
        del closed, closing
        return False

    def _is_empty(self, closed: SegmentClosed) -> bool:
        return not closed.records

    def _may_hold_data(self, segment: OpenSegment) -> bool:
        return bool(os.fstat(segment.meta_fd).st_size)


class RelaySink:
    """The segments of one relay stream. See `sink.base.Sink`.

    Args:
        plan: says where the files go and when they end.
        identity: host and session of the files.
        cpus: ring id to CPU; -1 is a channel with one file.
        channel: the channel's name, for the manifests.
        make_room: see `FileSink`.

    Raises:
        SinkError: the directory cannot be made, read or written.
    """

    def __init__(
        self,
        plan: SinkPlan,
        identity: Identity,
        *,
        cpus: Mapping[int, int],
        channel: str,
        make_room: Callable[[int], bool] = lambda _need_bytes: False,
    ) -> None:
        rings = {max(cpu, 0): ring for ring, cpu in cpus.items()}
        self._plan = plan
        self._identity = identity
        self._channel = channel
        self._make_room = make_room
        self._parts: list[_OneFile] = []
        self._sets: dict[int, list[tuple[_OneFile, OpenSegment]]] = {}
        self._sealed_any = False
        self._joined: dict[int, int] = {}  # rings without a part yet, by CPU
        self._add_parts(max(rings, default=0))
        for number, ring in rings.items():
            self._parts[number].take_ring(ring)

    def _add_parts(self, last: int) -> None:
        """Have a part for each number up to the last, whose files come with the next segment."""
        plan = self._plan
        for number in range(len(self._parts), last + 1):
            form = f"{plan.format}.{number}"
            single = f"{plan.single_file}.{form}" if plan.single_file is not None else None
            part = _OneFile(
                replace(plan, single_file=single),
                self._identity,
                form=form,
                channel=self._channel,
                leader=self._parts[0].output_dir if self._parts else None,
                make_room=self._make_room,
            )
            self._parts.append(part)

    @property
    def so_far(self) -> SoFar:
        """The segments sealed so far, in the run of the first file."""
        stored = sum(part.so_far.stored for part in self._parts)
        return self._parts[0].so_far._replace(stored=stored)

    def next_segment(self, token: int, opening: Opening) -> OpenSegment:
        """Create the files of a segment. Raises SinkError; nothing is left behind."""
        self._add_joined()
        while True:
            with ExitStack() as undo:
                made: list[tuple[_OneFile, OpenSegment]] = []
                try:
                    for part in self._parts:
                        own = tuple(e for e in opening.rings if e.ring == part.ring)
                        segment = part.next_segment(token, replace(opening, rings=own))
                        undo.callback(part.discard, segment)
                        made.append((part, segment))
                except SinkError as error:
                    # A follower's name is taken by the remains of another set.
                    if error.errno == errno.EEXIST and self._plan.single_file is None and made:
                        continue
                    raise
                undo.pop_all()
            break
        self._sets[token] = made
        files = {part.ring: segment.fd for part, segment in made if part.ring is not None}
        return replace(made[0][1], files=files)

    def add_ring(self, ring: int, cpu: int) -> bool:
        """Give a CPU that came online its file in later sets, and the CPUs before it theirs."""
        self._joined[cpu] = (
            ring  # the next set looks into the folder: the caller waits for no disk
        )
        return True

    def _add_joined(self) -> None:
        for cpu, ring in tuple(self._joined.items()):
            self._add_parts(cpu)
            self._parts[cpu].take_ring(ring)
            del self._joined[cpu]

    def catch_up(self) -> None:
        """Do nothing: all was sealed before."""

    def lead(self, segment: OpenSegment) -> None:
        """Do nothing: a set is read by the common part of its names, which a link has not."""

    def seal(
        self, segment: OpenSegment, closed: SegmentClosed, closing: Closing
    ) -> SegmentInfo | None:
        """Make all files final, or drop them all if they hold nothing. Raises SinkError."""
        made = self._sets[segment.token]
        single = self._plan.single_file is not None
        empty = not any(size for _, size, _ in closed.tracks)
        if empty and self._sealed_any and not single and not closed.final:
            self.discard(segment)
            return None
        infos, failures = [], []
        for part, one in made:
            try:
                infos.append(part.seal_once(one, closed, closing))
            except SinkError as error:
                failures.append(error)
        if failures:
            raise next((one for one in failures if one.errno in PASSING), failures[0])
        for part, _ in made:
            part.forget_sealed(segment.token)
        self._sealed_any = True
        del self._sets[segment.token]
        rings = tuple(entry for info in infos for entry in info.manifest.rings)
        first = infos[0]
        return SegmentInfo(
            segment.token,
            first.path,
            msgspec.structs.replace(
                first.manifest,
                rings=rings,
                samples=sum(info.manifest.samples for info in infos),
                stored_before=sum(info.manifest.stored_before for info in infos),
            ),
            more=tuple(info.path for info in infos[1:]),
        )

    def give_up(self, segment: OpenSegment, closed: SegmentClosed) -> GivenUp:
        """Close the unsealed files of a set; the others stay sealed. Raises SinkError."""
        made = self._sets.pop(segment.token)
        infos = tuple(filter(None, (part.sealed(segment.token) for part, _ in made)))
        ends = [
            part.give_up(one, closed) for part, one in made if part.sealed(segment.token) is None
        ]
        for part, _ in made:
            part.forget_sealed(segment.token)
        return GivenUp(
            left=tuple(path for end in ends for path in end.left),
            events=dict(item for end in ends for item in end.events.items()),
            lost_events=dict(item for end in ends for item in end.lost_events.items()),
            infos=infos,
        )

    def flush(
        self,
        segment: OpenSegment,
        track_bytes: Mapping[int, int],
        stats: Mapping[int, str] | None = None,
    ) -> None:
        """Do nothing: what is written can be read at once."""

    def discard(self, segment: OpenSegment) -> None:
        """Delete the files of a segment that never received data. Raises SinkError."""
        made = self._sets.pop(segment.token)
        with ExitStack() as stack:
            for part, one in made:
                stack.callback(part.discard, one)

    def close(self) -> None:
        """Discard segments of which no file holds data. Raises SinkError."""
        sets, self._sets = self._sets, {}
        with ExitStack() as stack:
            for part in self._parts:
                stack.callback(part.close)
            for made in sets.values():
                if any(part.may_hold_data(one) for part, one in made):
                    for part, one in made:
                        part.leave(one)  # for the repair, empty ones too
