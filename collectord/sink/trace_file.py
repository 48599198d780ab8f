# SPDX-License-Identifier: Apache-2.0
"""Sink stage: a trace.dat file on disk: its head, the tracks of its CPUs, and its end.

A track is the data of an extent from its beginning: whole sub-buffers, one after the other. While
the file is written the extents are sparse, so behind a track there is a hole, or zeros that were
never written; in a sealed file the tracks follow each other.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord._native import _core
from collectord.codec.file_formats import TRACE_DAT
from collectord.codec.ftrace_page import PAGE_HEADER_BYTES
from collectord.codec.trace_dat import FIRST_BYTES, head_bytes, parse_head
from collectord.codec.trace_dat_head import Place
from collectord.errors import CodecError
from collectord.folders.folder import opened, reopen, write_all
from collectord.sink.manifest import Span
from collectord.sink.scan import mapped, read_first, walk_unsealed, widest, xxh3
from collectord.sink.segment import BLOCK_BYTES
from collectord.sink.sparse import close_gaps, compacted, located, past, punch
from collectord.sink.stored_file import (
    Check,
    Finding,
    FinishedFile,
    Part,
    Shown,
    Survey,
    Track,
)
from collectord.sink.sums import Sums, data_span, sums_of, unsound
from collectord.sink.trace_pages import empty_pages, examine

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from collectord._native._core import PageScan
    from collectord.codec.trace_dat_head import Head, Metadata, Patch
    from collectord.sink.manifest import Manifest

# More than all formats, symbols and task names of any kernel take.
_HEAD_MAX_BYTES: Final = 256 << 20
_PIECE_BYTES: Final = 1 << 20  # a multiple of every possible sub-buffer size
_NAME: Final = re.compile(rb"name: (\S+)\n")


def write_head(fd: int, head: Head, patches: Iterable[Patch]) -> None:
    """Write a file that is whole and claims no data, wait for the disk, and free its cache.

    Raises:
        OSError: EFBIG if the filesystem does not allow files of that length.
    """
    write_all(fd, head.image, 0)
    write_patches(fd, patches)
    os.ftruncate(fd, head.file_bytes)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def write_patches(fd: int, patches: Iterable[Patch]) -> None:
    """Overwrite parts of the head in place."""
    for patch in patches:
        write_all(fd, patch.data, patch.offset)


def read_head(fd: int) -> Head:
    """Read back the present head.

    Raises:
        CodecError: the file does not begin with a whole head.
    """
    needed_bytes = head_bytes(os.pread(fd, FIRST_BYTES, 0))
    if needed_bytes > _HEAD_MAX_BYTES:
        raise CodecError(f"a head of {needed_bytes} bytes", offset=0, reason="size")
    return parse_head(read_first(fd, needed_bytes))


def event_names(metadata: Metadata) -> tuple[str, ...]:
    """Return the names of the events whose formats are known, as SYSTEM:NAME."""
    return tuple(
        f"{system}:{found[1].decode(errors='backslashreplace')}"
        for system, formats in metadata.events.items()
        for text in formats
        if (found := _NAME.match(text))
    )


def standing(fd: int, head: Head) -> dict[int, Place] | None:
    """Return the places of the tracks of a file whose seal had begun: by then its claims are true.

    None: the file is still as a writer left it.
    """
    if os.fstat(fd).st_size >= head.file_bytes:
        return None
    return located(fd, {cpu: Place(e.offset, e.size_bytes) for cpu, e in head.extents.items()})


def finish(
    fd: int,
    head: Head,
    tracks: Mapping[int, Track],
    patches: Iterable[Patch] = (),
    *,
    places: Mapping[int, Place] | None = None,
) -> Generator[str, None, FinishedFile]:
    """Claim the tracks, move them together, give back all other room, wait for the disk.

    A full disk does not prevent the file from being finished: without room for copies the tracks
    stay where they are, with holes between them. Yields after each step, and may be run again
    after any, with the head and the places of that time. The file is whole after each step except
    those that close gaps; `standing` then finds the tracks.

    Args:
        fd: the file.
        head: as it was built or read.
        tracks: by CPU; a CPU without one has no data.
        patches: of the head, beside the places and sizes.
        places: the places of the tracks, if they are not those in the head.
    """
    extents = head.extents
    at = {cpu: places[cpu].offset if places else extent.offset for cpu, extent in extents.items()}
    claimed = {
        cpu: Place(offset, tracks[cpu].bytes if cpu in tracks else 0) for cpu, offset in at.items()
    }
    write_patches(fd, [*patches, head.places_patch(claimed)])
    os.fdatasync(fd)
    yield "head written"
    os.ftruncate(fd, past(claimed))
    yield "cut"
    moved = yield from close_gaps(fd, claimed)
    os.fdatasync(fd)
    if moved == compacted(claimed):
        write_patches(fd, [head.places_patch(moved), head.end_patch(past(moved))])
        os.fdatasync(fd)
        yield "head moved"
        if os.fstat(fd).st_size > past(moved):  # they were copied
            os.ftruncate(fd, past(moved))
            os.fdatasync(fd)
    else:
        for cpu, extent in extents.items():
            end = min(extent.offset + extent.capacity_bytes, past(moved))
            punch(fd, extent.offset + moved[cpu].bytes, end)
        os.fdatasync(fd)
    first = os.pread(fd, len(head.image), 0)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    yield "file synced"
    spans = [Span(part="head", offset=0, bytes=len(first), xxh3=xxh3(first))]
    spans += [
        data_span(place.offset, tracks[cpu].sums) for cpu, place in moved.items() if place.bytes
    ]
    status = os.fstat(fd)
    return FinishedFile(
        bytes=status.st_size,
        allocated_bytes=status.st_blocks * BLOCK_BYTES,
        data_bytes=sum(place.bytes for place in moved.values()),
        spans=tuple(sorted(spans, key=lambda span: span.offset)),
        offsets={cpu: place.offset for cpu, place in moved.items()},
    )


class Recount:
    """Counts and hashes whole sub-buffers that arrive in pieces.

    A page that cannot be walked is not counted; the pages behind it are.
    """

    def __init__(self, sub_buffer_bytes: int) -> None:
        self.sub_buffer_bytes = sub_buffer_bytes
        self._sums = Sums()
        self._bytes = self._samples = 0
        self.first_ns = self.last_ns = 0

    def take(self, piece: memoryview) -> None:
        """Add these sub-buffers."""
        self._sums.take(piece)
        self._bytes += len(piece)
        at = 0
        while at < len(piece):
            with piece[at:] as rest:
                found = _core.scan_pages(rest, self.sub_buffer_bytes)
            self._samples += found.events
            times = (self.first_ns, self.last_ns), (found.first_ns, found.last_ns)
            self.first_ns, self.last_ns = widest(times)
            at += found.end + self.sub_buffer_bytes

    @property
    def track(self) -> Track:
        """The data so far."""
        return Track(self._bytes, self._samples, self._sums.all)


def recount(fd: int, at: int, size_bytes: int, count: Recount) -> None:
    """Read a track of an open file once, without the page cache if the filesystem allows it.

    Raises:
        OSError: it cannot be read, or is shorter.
    """
    with (
        opened(_past_cache(fd)) as direct_fd,
        mmap.mmap(-1, _PIECE_BYTES) as pages,
        memoryview(pages) as buffer,
    ):
        past = at + size_bytes
        while at < past:
            with buffer[: min(_PIECE_BYTES, past - at)] as piece:
                if os.preadv(direct_fd, [piece], at) != len(piece):
                    raise OSError(errno.EIO, "shorter than its track")
                count.take(piece)
                at += len(piece)


def _past_cache(fd: int) -> int:
    """Open the file again, to be read without the page cache where its file system can."""
    try:
        return reopen(fd, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return reopen(fd, os.O_RDONLY)


def holds_data(fd: int, head: Head) -> bool:
    """Whether any page was written, which has a time; True for a file that cannot be read."""
    try:
        return any(
            os.pread(fd, PAGE_HEADER_BYTES, extent.offset).strip(b"\0")
            for extent in head.extents.values()
        )
    except OSError:
        return True


def _fault(found: PageScan) -> str:
    return "" if found.fault == "ok" else found.fault


def _unsound(view: memoryview, sealed: Manifest) -> list[Part] | None:
    """Return the parts that do not match their checksums; None if no chunk has one of its own."""
    data = [span for span in sealed.spans if span.part == "data"]
    if not all(span.chunks for span in data):
        return None
    return [part for span in data for part in unsound(view, span)]


class TraceFile:
    """A trace.dat file, for repair and verify (`stored_file.StoredFile`).

    Raises:
        CodecError: the file does not begin with a whole head.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._head = read_head(fd)
        self.format = TRACE_DAT
        self.source = "tracefs"
        self.sparse = True
        self.data_offset = len(self._head.image)
        self.data_bytes = sum(extent.size_bytes for extent in self._head.extents.values())
        self.events = event_names(self._head.metadata)
        extents = self._head.extents.items()
        self.offsets: Mapping[int, int] = {cpu: extent.offset for cpu, extent in extents}
        self._places: Mapping[int, Place] | None = None

    def survey(self, sealed: Manifest | None = None) -> Survey:
        """Find the sound pages of each CPU, claimed or not, up to what was never written."""
        step_bytes = self._head.sub_buffer_bytes
        self._places = standing(self._fd, self._head)
        tracks: dict[int, Track] = {}
        times, reasons = [(0, 0)], []
        cuts: list[Part] = []
        cut_bytes = 0
        with mapped(self._fd, os.fstat(self._fd).st_size) as view:
            bad = None if sealed is None else _unsound(view, sealed)
            for cpu, extent in self._head.extents.items():
                place = Place(extent.offset, extent.capacity_bytes)
                if self._places is not None:
                    place = self._places[cpu]
                found = examine(self._fd, view, place, step_bytes, bad)
                if found.bytes:
                    with view[place.offset : place.offset + found.bytes] as kept:
                        sums = () if found.cuts else sums_of(kept)
                    tracks[cpu] = Track(found.bytes, found.samples, sums)
                    times.append((found.first_ns, found.last_ns))
                cuts += found.cuts
                torn_bytes = 0
                if found.fault:
                    reasons.append(f"CPU {cpu}: {found.fault}")
                    torn_bytes = 0 if found.cuts else step_bytes
                cut_bytes += max(extent.size_bytes - found.bytes, torn_bytes)
        first_ns, last_ns = widest(times)
        return Survey(tracks, first_ns, last_ns, tuple(cuts), cut_bytes, ", ".join(reasons))

    def shown(self) -> Shown | None:
        """Walk the pages that the head claims; None once a seal moves them."""

        def walk(pages: bytes) -> tuple[int, Shown]:
            found = _core.scan_pages(pages, self._head.sub_buffer_bytes)
            return found.end, Shown(found.events, found.first_ns, found.last_ns)

        extents = self._head.extents.values()
        found = walk_unsealed(self._fd, (Part(e.offset, e.size_bytes) for e in extents), walk)
        # A seal cuts the file before it moves anything.
        return found if os.fstat(self._fd).st_size >= self._head.file_bytes else None

    def finish(self, found: Survey) -> Generator[str, None, FinishedFile]:
        """Cut out damage, claim the pages that are kept, and move them together."""
        tracks = found.tracks
        extents = self._head.extents
        before = self._places or {c: Place(e.offset, 0) for c, e in extents.items()}
        if found.cuts:
            with mapped(self._fd, os.fstat(self._fd).st_size) as view:
                for cut in found.cuts:
                    for at, page in empty_pages(view, cut, self._head.sub_buffer_bytes):
                        write_all(self._fd, page, at)
            os.fdatasync(self._fd)
            yield "damage cut out"
            tracks = self._summed(tracks, before)
        file = yield from finish(self._fd, self._head, tracks, places=self._places)
        cuts = [
            Part(cut.offset - before[cpu].offset + file.offsets[cpu], cut.bytes)
            for cpu, track in tracks.items()
            for cut in found.cuts
            if 0 <= cut.offset - before[cpu].offset < track.bytes
        ]
        self.offsets = file.offsets
        return replace(file, cuts=tuple(sorted(cuts)))

    def _summed(
        self, tracks: Mapping[int, Track], places: Mapping[int, Place]
    ) -> dict[int, Track]:
        """Compute the checksums of the present data."""
        with mapped(self._fd, os.fstat(self._fd).st_size) as view:
            summed = {}
            for cpu, track in tracks.items():
                offset = places[cpu].offset
                with view[offset : offset + track.bytes] as kept:
                    summed[cpu] = track._replace(sums=sums_of(kept))
            return summed

    def findings(self, view: memoryview, manifest: Manifest) -> Iterator[Finding]:
        """Compare the claims with the manifest, walk the pages and count the events."""
        extents = self._head.extents
        claimed = {(e.offset, e.size_bytes) for e in extents.values() if e.size_bytes}
        told = {(span.offset, span.bytes) for span in manifest.spans if span.part == "data"}
        if claimed != told:
            yield Finding(Check.HEAD, "the data of its CPUs are not those of its manifest")
            return
        samples = 0
        for cpu, extent in extents.items():
            with view[extent.offset : extent.offset + extent.size_bytes] as data:
                found = _core.scan_pages(data, self._head.sub_buffer_bytes)
            samples += found.events
            if found.end != extent.size_bytes:
                reason = _fault(found) or "an empty page"
                where = f"at byte {extent.offset + found.end}, of CPU {cpu}"
                yield Finding(Check.RECORDS, f"{reason} {where}")
        if samples != manifest.samples:
            detail = f"{samples} events, its manifest says {manifest.samples}"
            yield Finding(Check.COUNT, detail)
