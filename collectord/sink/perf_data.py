# SPDX-License-Identifier: Apache-2.0
"""Sink stage: perf.data segments, rotated in a session's directory or as one named file."""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_data import AttrSection, build_head
from collectord.codec.perf_record import SampleId, frame
from collectord.codec.perf_sideband import LostSamples
from collectord.codec.perf_sideband import encode as encode_record
from collectord.errors import SinkError
from collectord.sink import repair
from collectord.sink.base import Closing, Opening, OpenSegment, SegmentInfo
from collectord.sink.manifest import (
    Clocks,
    Identity,
    Link,
    Manifest,
    OpenManifest,
    RingEntry,
    common_fields,
    encode,
    is_manifest,
    link,
    thin,
)
from collectord.sink.perf_file import DataSection, finish, run, write_head
from collectord.sink.segment import (
    DIRECTORY_MODE,
    FILE_MODE,
    SegmentPaths,
    claim_room,
    group_files,
    lock,
    publish,
    remove,
    segment_name,
    sink_errors,
    sync_directory,
    write_durably,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from collectord._native._core import SegmentClosed
    from collectord.codec.perf_features import Features
    from collectord.plan.session import SinkPlan

FORMAT: Final = "perf.data"
# Space that the writer allocates ahead: long extents, and little to give back at the close.
STEP_BYTES: Final = 16 << 20
UNLIMITED_BYTES: Final = 1 << 62
# What a segment needs to begin with, asked for when its creation met a full disk.
_BEGIN_BYTES: Final = 1 << 20
# Room for a sealed manifest, some hundreds of rings in it; what it does not need it gives back.
_MANIFEST_BYTES: Final = 64 << 10
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_RECORDS: Final = frame(RecordType.FINISHED_ROUND, 0, b"")


class PerfDataSink:
    """The perf.data files of one stream.

    `next_segment` may run beside a `seal`; the seals of one sink follow one another.
    """

    def __init__(
        self,
        plan: SinkPlan,
        identity: Identity,
        *,
        attrs: Sequence[AttrSection],
        features: Features,
        tracing_data: bytes | None = None,
        make_room: Callable[[int], bool] = lambda _need_bytes: False,
    ) -> None:
        """Make the directory ready.

        Args:
            plan: where the files go and when they end.
            identity: whose they are.
            attrs: the events with all their ids; a file with an unknown id is unreadable.
            features: feature sections that stay the same; the sample time is added at the seal.
            tracing_data: perf's TRACING_DATA section, required with tracepoints.
            make_room: called with bytes wanted when the disk is full; True if some were freed.

        Raises:
            SinkError: the directory cannot be made, read or written.
        """
        self._plan = plan
        self._identity = identity
        self._attrs = tuple(attrs)
        self._make_room = make_room
        self._head = build_head(attrs, tracing_data, features=features)
        self._open: dict[int, OpenSegment] = {}
        self._sealing = threading.Lock()
        self._sealed_any = False
        self._sequence = 0
        self._previous: Link | None = None
        self._directory = Path(plan.directory)
        places = (self._directory, *self._directory.parents)
        with sink_errors("cannot make the directory", self._directory):
            self._made = [path for path in places if not path.exists()]
            self._directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        if not os.access(self._directory, os.W_OK | os.X_OK, effective_ids=True):
            with sink_errors("cannot write into the directory", self._directory):
                read_only = os.statvfs(self._directory).f_flag & os.ST_RDONLY
                code = errno.EROFS if read_only else errno.EACCES
                raise OSError(code, os.strerror(code))
        if plan.single_file is None:
            self._continue_directory()

    def next_segment(self, token: int, opening: Opening) -> OpenSegment:
        """Create a file with its head written, and its open manifest.

        Raises:
            SinkError: nothing could be created, and nothing is left behind. With errno ENOSPC or
                EDQUOT `make_room` had nothing left to give.
        """
        while True:
            try:
                segment = self._create(token, opening)
            except SinkError as error:
                if error.errno not in _FULL or not self._make_room(_BEGIN_BYTES):
                    raise
            else:
                self._open[token] = segment
                return segment

    def seal(
        self, segment: OpenSegment, closed: SegmentClosed, closing: Closing
    ) -> SegmentInfo | None:
        """Make a segment final.

        One that holds nothing but replay is dropped, unless it is the first of this sink or the
        last of its stream: only the last one's balance is final.

        Returns:
            None for a segment that was dropped.

        Raises:
            SinkError: as it is, the file can be repaired; with a full disk the call may be
                made again.
        """
        with self._sealing, sink_errors("cannot seal the segment", segment.paths.partial):
            if self._is_void(closed, closing):
                self.discard(segment)
                return None
            while True:
                try:
                    info = run(self.seal_steps(segment, closed, closing))
                except OSError as error:
                    if error.errno not in _FULL or not self._make_room(_BEGIN_BYTES):
                        raise
                else:
                    self._forget(segment)
                    return info

    def seal_steps(
        self, segment: OpenSegment, closed: SegmentClosed, closing: Closing
    ) -> Generator[str, None, SegmentInfo]:
        """Do what `seal` does, yielding the name of each step that a kill may follow."""
        lost = {str(key): count for key, count in closing.lost_samples.items() if count}
        losses = self._loss_records(closing)
        written_bytes = closed.end_offset - segment.data_offset
        data = DataSection(
            written_bytes=written_bytes,
            xxh3=f"{closed.xxh3:016x}",
            # A file without data is to readers one that was never completed.
            appended=b"".join(losses) or (b"" if written_bytes else _NO_RECORDS),
            first_ns=closed.first_ns,
            last_ns=closed.last_ns,
        )
        file = yield from finish(segment.meta_fd, self._head, data)
        opened = segment.manifest
        manifest = Manifest(
            **common_fields(opened)
            | {
                "rings": _with_counts(closing.rings, closed),
                "clocks": Clocks(
                    open=opened.clocks.open, flushes=thin(closing.flushes), close=closing.clock
                ),
            },
            complete=True,
            recovered=False,
            first_ns=closed.first_ns,
            last_ns=closed.last_ns,
            records=closed.records + closed.replayed + len(losses),
            samples=closed.samples,
            replayed=closed.replayed,
            produced=closing.ledger.get("produced"),
            ledger=closing.ledger,
            lost_samples=lost,
            bytes=file.bytes,
            allocated_bytes=file.allocated_bytes,
            data_bytes=file.data_bytes,
            spans=file.spans,
            build_ids=closing.build_ids,
            previous=self._previous,
        )
        encoded = encode(manifest)
        yield from publish(segment.paths, segment.paths, encoded)
        self._previous = link(segment.paths.manifest.name, encoded)
        self._sealed_any = True
        return SegmentInfo(segment.token, segment.paths.data, manifest)

    def discard(self, segment: OpenSegment) -> None:
        """Delete a segment that never received data, and close its fds.

        Raises:
            SinkError: a file cannot be deleted.
        """
        with sink_errors("cannot delete the segment", segment.paths.partial):
            remove(segment.paths)
        self._forget(segment)

    def close(self) -> None:
        """Discard segments that hold no data; those that do are left for the repair.

        Directories that were made for nothing go as well.

        Raises:
            SinkError: a file cannot be deleted.
        """
        with ExitStack() as stack:
            if not self._sealed_any:
                stack.callback(self._remove_made)
            for segment in self._open.copy().values():
                stack.callback(self._forget, segment)
                if not _may_hold_data(segment):
                    stack.callback(self.discard, segment)

    def _remove_made(self) -> None:
        """Leave no empty directory behind a recording that never was."""
        for directory in self._made:
            try:
                directory.rmdir()
            except OSError:  # it has an unsealed segment, or another program's files: it stays
                break

    def _continue_directory(self) -> None:
        """Number and chain on from what the directory holds."""
        for group in group_files(self._directory):
            self._sequence = max(self._sequence, group.paths.sequence)
            if group.sealed and group.paths.manifest.exists():
                name = group.paths.manifest
                with sink_errors("cannot read the manifest", name):
                    self._previous = link(name.name, name.read_bytes())

    def _create(self, token: int, opening: Opening) -> OpenSegment:
        started_ns = time.time_ns()
        with ExitStack() as stack:
            paths, meta_fd = self._claim(started_ns)
            stack.callback(os.close, meta_fd)
            stack.callback(remove, paths)
            with sink_errors("cannot create a segment", paths.partial):
                write_head(meta_fd, self._head)
                fd, direct = _open_data(paths.partial)
                stack.callback(os.close, fd)
                manifest = self._open_manifest(paths, started_ns, opening, direct=direct)
                write_durably(paths.open_manifest, encode(manifest))
                claim_room(paths.new_manifest, _MANIFEST_BYTES)
                sync_directory(paths.directory)
            stack.pop_all()
        limit_bytes = self._plan.segment_bytes or UNLIMITED_BYTES
        return OpenSegment(
            token=token,
            fd=fd,
            meta_fd=meta_fd,
            data_offset=self._head.data_offset,
            limit_bytes=limit_bytes,
            step_bytes=min(STEP_BYTES, limit_bytes),
            direct=direct,
            paths=paths,
            manifest=manifest,
        )

    def _claim(self, started_ns: int) -> tuple[SegmentPaths, int]:
        """Create and lock a data file under a name that nobody has."""
        while True:
            if self._plan.single_file is not None:
                paths = single_paths(Path(self._plan.single_file))
            else:
                self._sequence += 1
                name = segment_name(started_ns, self._sequence, FORMAT)
                paths = SegmentPaths(self._directory, name)
            with sink_errors("cannot create a segment", paths.partial):
                try:
                    fd = os.open(
                        paths.partial,
                        os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
                        FILE_MODE,
                    )
                except FileExistsError:
                    if self._plan.single_file is not None:
                        repair.make_way(paths)
                    continue
                # A repair may have found the file before the lock, and removed it as empty.
                if lock(fd) and os.fstat(fd).st_nlink:
                    return paths, fd
                os.close(fd)

    def _open_manifest(
        self, paths: SegmentPaths, started_ns: int, opening: Opening, *, direct: bool
    ) -> OpenManifest:
        return OpenManifest(
            **msgspec.structs.asdict(self._identity),
            format=FORMAT,
            segment=paths.name,
            started_ns=started_ns,
            direct=direct,
            data_offset=self._head.data_offset,
            events=tuple(section.name for section in self._attrs),
            rings=opening.rings,
            clocks=Clocks(open=opening.clock),
        )

    def _loss_records(self, closing: Closing) -> list[bytes]:
        """LOST_SAMPLES per id. Time 0: readers take them at once, whatever was flushed before."""
        return [
            encode_record(LostSamples(count), section.attr, SampleId(id=event_id))
            for section in self._attrs
            for event_id in section.ids
            if (count := closing.lost_samples.get(event_id, 0))
        ]

    def _is_void(self, closed: SegmentClosed, closing: Closing) -> bool:
        if self._plan.single_file is not None or not self._sealed_any or closed.final:
            return False
        return not closed.records and not any(closing.lost_samples.values())

    def _forget(self, segment: OpenSegment) -> None:
        if self._open.pop(segment.token, None) is not None:
            os.close(segment.fd)
            os.close(segment.meta_fd)


def single_paths(file: Path) -> SegmentPaths:
    """Names of a recording to one file.

    Raises:
        SinkError: there is something else of that name. The seal replaces what it finds, and that
            must not be a directory, a device or a link that somebody relies on.
    """
    if file.is_symlink() or (file.exists() and not file.is_file()):
        code = errno.EISDIR if file.is_dir() else errno.EEXIST
        raise SinkError(
            "not a regular file", path=str(file), errno=code, hint="name a new or regular file"
        )
    paths = SegmentPaths(file.parent, file.name)
    manifest = paths.manifest
    if manifest.exists() and not (manifest.is_file() and is_manifest(manifest.read_bytes())):
        raise SinkError(
            "no manifest of ours, and not replaced by one",
            path=str(manifest),
            errno=errno.EEXIST,
            hint="the manifest's name is the file's with .json: choose another name",
        )
    return paths


def _open_data(path: Path) -> tuple[int, bool]:
    """Open for data: around the page cache, or through it where the filesystem wants that."""
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC), False


def _may_hold_data(segment: OpenSegment) -> bool:
    """The first record's type is never 0; of a file that cannot be read nothing is known."""
    try:
        return bool(os.pread(segment.meta_fd, 1, segment.data_offset).strip(b"\0"))
    except OSError:
        return True


def _with_counts(rings: Sequence[RingEntry], closed: SegmentClosed) -> tuple[RingEntry, ...]:
    counts = {ring: (samples, size) for ring, samples, size in closed.rings}
    return tuple(
        msgspec.structs.replace(entry, samples=samples, bytes=size)
        for entry in rings
        for samples, size in [counts.get(entry.ring, (0, 0))]
    )
