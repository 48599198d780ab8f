# SPDX-License-Identifier: Apache-2.0
"""Sink stage: a trace.dat file on disk: its head, the tracks of its CPUs, and its end.

A track is what an extent holds from its beginning: whole sub-buffers, one after the other. The
extents are sparse, so behind a track there is a hole, or zeros that were never written.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import xxhash

from collectord._native import _core
from collectord.codec.trace_dat import FIRST_BYTES, head_bytes, parse_head
from collectord.errors import CodecError
from collectord.sink.manifest import Span
from collectord.sink.scan import mapped, xxh3
from collectord.sink.segment import BLOCK_BYTES, TRACE_DAT, write_all
from collectord.sink.sparse import punch
from collectord.sink.stored import Check, Finding, FinishedFile, Survey, Track

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping
    from pathlib import Path

    from collectord._native._core import PageScan
    from collectord.codec.trace_dat_head import Head, Metadata, Patch
    from collectord.sink.manifest import Manifest

# More than every format, every symbol and every name of a task that a kernel has.
_HEAD_MAX_BYTES: Final = 256 << 20
_PIECE_BYTES: Final = 1 << 20  # a multiple of every size that a sub-buffer may have
_PAGE_HEADER_BYTES: Final = 16
_NAME: Final = re.compile(rb"name: (\S+)\n")


def write_head(fd: int, head: Head, patches: Iterable[Patch]) -> None:
    """Make a file that is whole and claims nothing, wait for the disk, and free its cache.

    Raises:
        OSError: EFBIG if the filesystem does not take files of that length.
    """
    write_all(fd, head.image, 0)
    write_patches(fd, patches)
    os.ftruncate(fd, head.file_bytes)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def write_patches(fd: int, patches: Iterable[Patch]) -> None:
    """Write over parts of the head in place."""
    for patch in patches:
        write_all(fd, patch.data, patch.offset)


def read_head(fd: int) -> Head:
    """Read back the head as it is by now.

    Raises:
        CodecError: the file does not begin with a whole head.
    """
    needed_bytes = head_bytes(os.pread(fd, FIRST_BYTES, 0))
    if needed_bytes > _HEAD_MAX_BYTES:
        raise CodecError(f"a head of {needed_bytes} bytes", offset=0, reason="size")
    return parse_head(os.pread(fd, needed_bytes, 0))


def event_names(metadata: Metadata) -> tuple[str, ...]:
    """Give the events whose formats are known, as SYSTEM:NAME."""
    return tuple(
        f"{system}:{found[1].decode(errors='backslashreplace')}"
        for system, formats in metadata.events.items()
        for text in formats
        if (found := _NAME.match(text))
    )


def finish(
    fd: int, head: Head, tracks: Mapping[int, Track], patches: Iterable[Patch] = ()
) -> Generator[str, None, FinishedFile]:
    """Claim the tracks, give back the room that they did not need, wait for the disk.

    Nothing grows, so a full disk does not keep a file from its end. Yields after each step, and
    may be run again after any: the file is whole after each of them.

    Args:
        fd: the file.
        head: as it was built or read.
        tracks: by CPU; a CPU without one has no data.
        patches: of the head, beside the sizes.
    """
    sizes = {cpu: track.bytes for cpu, track in tracks.items() if track.bytes}
    write_patches(fd, [*patches, head.sizes_patch(sizes)])
    yield "head written"
    extents = [(extent, sizes.get(cpu, 0)) for cpu, extent in head.extents.items()]
    past = max((extent.offset + size for extent, size in extents if size), default=0)
    os.ftruncate(fd, max(past, len(head.image)))
    for extent, size in extents:
        if extent.offset < past:
            punch(fd, extent.offset + size, min(extent.offset + extent.capacity_bytes, past))
    yield "cut"
    os.fdatasync(fd)
    first = os.pread(fd, len(head.image), 0)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    yield "file synced"
    spans = [Span(part="head", offset=0, bytes=len(first), xxh3=xxh3(first))]
    for cpu in sizes:
        track = tracks[cpu]
        offset = head.extents[cpu].offset
        spans.append(Span(part="data", offset=offset, bytes=track.bytes, xxh3=track.xxh3))
    status = os.fstat(fd)
    return FinishedFile(
        bytes=status.st_size,
        allocated_bytes=status.st_blocks * BLOCK_BYTES,
        data_bytes=sum(sizes.values()),
        spans=tuple(sorted(spans, key=lambda span: span.offset)),
    )


class Recount:
    """Counts and hashes whole sub-buffers that come piece by piece.

    A page that cannot be walked counts for nothing; what follows it does.
    """

    def __init__(self, sub_buffer_bytes: int) -> None:
        self.sub_buffer_bytes = sub_buffer_bytes
        self._hash = xxhash.xxh3_64()
        self._bytes = self._samples = 0
        self.first_ns = self.last_ns = 0

    def take(self, piece: memoryview) -> None:
        """Go on with these sub-buffers."""
        self._hash.update(piece)
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
        """What came so far."""
        return Track(self._bytes, self._samples, self._hash.hexdigest())


def recount(file: Path, at: int, size_bytes: int, count: Recount) -> None:
    """Read a track once, around the page cache where the filesystem lets it.

    Raises:
        OSError: it cannot be read, or is shorter.
    """
    with _opened(file) as fd, mmap.mmap(-1, _PIECE_BYTES) as pages, memoryview(pages) as buffer:
        past = at + size_bytes
        while at < past:
            with buffer[: min(_PIECE_BYTES, past - at)] as piece:
                if os.preadv(fd, [piece], at) != len(piece):
                    raise OSError(errno.EIO, "shorter than its track", file)
                count.take(piece)
                at += len(piece)


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:  # a filesystem that knows no O_DIRECT
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def holds_data(fd: int, head: Head) -> bool:
    """A page that was written has a time; of a file that cannot be read nothing is known."""
    try:
        return any(
            os.pread(fd, _PAGE_HEADER_BYTES, extent.offset).strip(b"\0")
            for extent in head.extents.values()
        )
    except OSError:
        return True


def _fault(found: PageScan) -> str:
    return "" if found.fault == "ok" else found.fault


def widest(times: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """From the earliest first to the latest last time of tracks; those without an event have 0."""
    known = [pair for pair in times if pair[0]]
    return (
        min((first for first, _ in known), default=0),
        max((last for _, last in known), default=0),
    )


class TraceFile:
    """A trace.dat file, for repair and verify (`stored.StoredFile`).

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

    def survey(self) -> Survey:
        """Find the whole pages of each CPU, claimed or not, up to one that was never written."""
        step_bytes = self._head.sub_buffer_bytes
        tracks: dict[int, Track] = {}
        times, reasons = [(0, 0)], []
        cut_bytes = 0
        with mapped(self._fd, os.fstat(self._fd).st_size) as view:
            for cpu, extent in self._head.extents.items():
                with view[extent.offset : extent.offset + extent.capacity_bytes] as data:
                    found = _core.scan_pages(data, step_bytes)
                    if found.end:
                        with data[: found.end] as kept:
                            tracks[cpu] = Track(found.end, found.events, xxh3(kept))
                        times.append((found.first_ns, found.last_ns))
                torn_bytes = 0
                if _fault(found):
                    reasons.append(f"CPU {cpu}: {_fault(found)}")
                    torn_bytes = step_bytes
                cut_bytes += max(extent.size_bytes - found.end, torn_bytes)
        first_ns, last_ns = widest(times)
        return Survey(tracks, first_ns, last_ns, cut_bytes, ", ".join(reasons))

    def finish(self, found: Survey) -> Generator[str, None, FinishedFile]:
        """Claim the pages that are kept, and make holes behind them."""
        return finish(self._fd, self._head, found.tracks)

    def findings(self, view: memoryview, manifest: Manifest) -> Iterator[Finding]:
        """Compare the claims with the manifest, walk the pages and count the events."""
        extents = self._head.extents
        claimed = {(e.offset, e.size_bytes) for e in extents.values() if e.size_bytes}
        told = {(span.offset, span.bytes) for span in manifest.spans if span.part == "data"}
        if claimed != told:
            yield Finding(Check.HEAD, "its CPUs claim other data than its manifest tells of")
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
