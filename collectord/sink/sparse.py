# SPDX-License-Identifier: Apache-2.0
"""Sink stage: holes in files: unused room becomes one, one between tracks is taken out.

A file whose CPUs have extents of their own is written with gaps of gigabytes between the tracks.
The gaps cost no space, but programs that read the whole file (gzip, scp, an upload) read zeros. If
the filesystem can take a gap out of a file (ext4, XFS), that moves no data; otherwise the data
behind the gap are copied within the file, which btrfs does by reference.

A gap that was taken out shows in the file's length: until the head has the new offsets, the old
offsets and the length together tell where the tracks are.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING, Final

from collectord._native._core import close_gap
from collectord.codec.trace_dat_head import Place
from collectord.folders.folder import write_all
from collectord.sink.segment import FULL

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

_PIECE_BYTES: Final = 1 << 20
# EINVAL: the filesystem's blocks are larger than the alignment of the tracks.
_CANNOT: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_STAMP_BYTES: Final = 8  # a written page begins with its time


def punch(fd: int, start: int, end: int) -> None:
    """Make a hole of the bytes from `start` to `end`; the file keeps its length.

    If the filesystem has no holes, the bytes written from `start` on become zeros.

    Args:
        fd: of the file, open for reading and writing.
        start: a multiple of the machine's page size.
        end: a multiple of it too, and not behind the file's end.

    Raises:
        OSError: the file cannot be changed.
    """
    if end <= start:
        return
    with mmap.mmap(fd, end - start, offset=start) as room:
        try:
            room.madvise(mmap.MADV_REMOVE)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            _clear(fd, start, end)


def _clear(fd: int, start: int, end: int) -> None:
    """Overwrite data with zeros, up to the first piece that was never written."""
    for at in range(start, end, _PIECE_BYTES):
        found = os.pread(fd, min(_PIECE_BYTES, end - at), at)
        if not found.strip(b"\0"):
            return
        write_all(fd, bytes(len(found)), at)


def stray_byte(fd: int, view: memoryview, start: int, end: int) -> int | None:
    """Return the offset of the first byte from `start` to `end` that is not 0, None if all are.

    Args:
        fd: the file, whose holes are skipped.
        view: its bytes.
        start: beginning of the range.
        end: end of the range.
    """
    for first, past in written(fd, start, end):
        for at in range(first, past, _PIECE_BYTES):
            with view[at : min(at + _PIECE_BYTES, past)] as piece:
                raw = bytes(piece)
            rest = raw.lstrip(b"\0")
            if rest:
                return at + len(raw) - len(rest)
    return None


def written(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that are not holes."""
    at = start
    while at < end:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # only a hole is left
                raise
            return
        past = min(os.lseek(fd, at, os.SEEK_HOLE), end)
        if at < past:
            yield at, past
        at = past


def past(places: Mapping[int, Place]) -> int:
    """Return the end of the last track; without a track, the offset of the first."""
    ends = [place.offset + place.bytes for place in places.values() if place.bytes]
    return max(ends, default=min(place.offset for place in places.values()))


def compacted(places: Mapping[int, Place]) -> dict[int, Place]:
    """Return the places of the tracks once there is no gap before any of them."""
    return _closed(places, len(_gaps(places)))


def located(fd: int, places: Mapping[int, Place]) -> dict[int, Place] | None:
    """Find tracks whose gaps were being closed.

    Args:
        fd: the file.
        places: the places in its head.

    Returns:
        the present places; None if no seal leaves a file of this length.
    """
    gaps = _gaps(places)
    left = os.fstat(fd).st_size - past(places)
    for count in range(len(gaps) + 1):
        if left == -sum(gaps[:count]):
            standing = _closed(places, count)
            return standing if _are_written(fd, standing) else None
    return None


def close_gaps(fd: int, places: Mapping[int, Place]) -> Generator[str, None, Mapping[int, Place]]:
    """Move the tracks together; yields after each change that a kill may follow.

    The file must end with its last track, and its head must have these places, on the disk too.

    Returns:
        the new places of the tracks: the old ones if the filesystem can neither take gaps out nor
        has room for copies. Copied data also stay at their old place, behind the new end.

    Raises:
        OSError: the file cannot be changed, or read.
    """
    target = compacted(places)
    untouched = True
    for gap, cpu in zip(_gaps(places), _written_cpus(places), strict=True):
        if not gap:
            continue
        try:
            close_gap(fd, target[cpu].offset, gap)
        except OSError as error:
            if error.errno not in _CANNOT or not untouched:
                raise
            return target if _copied(fd, places, target) else places
        untouched = False
        yield "gap closed"
    return target


def _written_cpus(places: Mapping[int, Place]) -> list[int]:
    return [cpu for cpu, place in places.items() if place.bytes]


def _gaps(places: Mapping[int, Place]) -> list[int]:
    """Return the size of the gap before each track."""
    end = min(place.offset for place in places.values())
    gaps = []
    for cpu in _written_cpus(places):
        gaps.append(places[cpu].offset - end)
        end = places[cpu].offset + places[cpu].bytes
    return gaps


def _closed(places: Mapping[int, Place], count: int) -> dict[int, Place]:
    """Return the places of the tracks once the gaps before the first `count` are closed."""
    gaps = iter(_gaps(places)[:count])
    end = min(place.offset for place in places.values())
    gone = 0
    found = {}
    for cpu, place in places.items():
        if place.bytes:
            gone += next(gaps, 0)
            end = place.offset - gone
        found[cpu] = Place(end, place.bytes)
        end += place.bytes
    return found


def _are_written(fd: int, places: Mapping[int, Place]) -> bool:
    """Whether a page begins where each track should."""
    return all(
        os.pread(fd, _STAMP_BYTES, place.offset).strip(b"\0")
        for place in places.values()
        if place.bytes
    )


def _copied(fd: int, places: Mapping[int, Place], target: Mapping[int, Place]) -> bool:
    """Copy the tracks to their new places, and wait for the disk; False if nothing has changed.

    No copy may overwrite what is copied later, or again after a kill.
    """
    moved = [cpu for cpu in _written_cpus(places) if places[cpu] != target[cpu]]
    if past(target) > min(places[cpu].offset for cpu in moved):
        return False
    try:
        for cpu in moved:
            _copy(fd, places[cpu], target[cpu].offset)
    except OSError as error:
        if error.errno not in FULL:
            raise
        punch(fd, target[moved[0]].offset, past(target))
        return False
    os.fdatasync(fd)
    return True


def _copy(fd: int, track: Place, to: int) -> None:
    at, end = track.offset, track.offset + track.bytes
    while at < end:
        try:
            copied = os.copy_file_range(fd, fd, end - at, at, to)
        except OSError as error:
            if error.errno in FULL:
                raise
            copied = 0  # not on this filesystem
        if not copied:
            piece = os.pread(fd, min(_PIECE_BYTES, end - at), at)
            if not piece:
                raise OSError(errno.EIO, "shorter than its track")
            write_all(fd, piece, to)
            copied = len(piece)
        at += copied
        to += copied
