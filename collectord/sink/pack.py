# SPDX-License-Identifier: Apache-2.0
"""Sink stage: give a sealed segment its compressed form.

The form is written beside the segment and compared with it byte for byte; then the manifest gets
the sums of both, and last the form gets the segment's name. A kill at any instant leaves one whole
file under that name, which the manifest describes either way.
"""

from __future__ import annotations

import os
import stat
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import CodecError, CollectordError, UnsafePath
from collectord.folders.folder import opened
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.sink.manifest import Manifest, Packed, decode, encode, successor
from collectord.sink.packing import contents_max_bytes, packing_for, packing_of, write_pieces
from collectord.sink.scan import mapped, xxh3
from collectord.sink.segment import (
    BLOCK_BYTES,
    group_files,
    read_other_manifest,
    session_folder,
    session_names,
    sink_errors,
)
from collectord.sink.segment_lock import is_left, lock, lock_new
from collectord.sink.segment_steps import run
from collectord.sink.sparse import stray_byte
from collectord.sink.sums import unsound

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from pathlib import Path

    from collectord.codec.packed import Piece, Pieces
    from collectord.folders.folder import Folder
    from collectord.sink.segment import SegmentPaths

# A form that saves less than this share is not worth its reading.
_GAIN: Final = 0.1


class Result(StrEnum):
    """The end of one attempt.

    PACKED: it has the form now, or had it; KEPT: it has none, or that saves too little; BUSY:
    somebody works on it; GONE: it is not there, or not sealed; UNSOUND: it is damaged; FAILED: a
    file could not be read or written.
    """

    PACKED = "packed"
    KEPT = "kept"
    BUSY = "busy"
    GONE = "gone"
    UNSOUND = "unsound"
    FAILED = "failed"


_REASONS: Final = {
    Result.KEPT: "compression would save too little",
    Result.BUSY: "another process works on it",
    Result.GONE: "it is deleted, or not sealed",
    Result.UNSOUND: "it does not match its checksums",
}


class Attempt(NamedTuple):
    """One attempt to compress a segment: how it ended, and why it is not compressed."""

    result: Result
    detail: str = ""

    @property
    def went_wrong(self) -> bool:
        """Whether somebody has to look at the segment, or at its disk."""
        return self.result in {Result.UNSOUND, Result.FAILED}


class Compressed(NamedTuple):
    """A segment after the attempt; its size on disk before and after."""

    path: Path
    attempt: Attempt
    before_bytes: int
    after_bytes: int

    def to_json(self) -> dict[str, str | int]:
        """Return the form in JSON output."""
        sizes = {"before_bytes": self.before_bytes, "after_bytes": self.after_bytes}
        return {"path": str(self.path), **self.attempt._asdict(), **sizes}


def compress(target: Path) -> Iterator[Compressed]:
    """Compress the sealed segments in a folder and its session folders, or one segment.

    Raises:
        SinkError: a folder cannot be read, or must not be written to.
    """
    only = "" if target.is_dir() else target.name
    root = target.parent if only else target
    with sink_errors("cannot write to the directory", root):
        opened_root = open_folder(root, Trust.WRITE)
    with opened_root:
        for name in [""] if only else session_names(opened_root):
            with session_folder(opened_root, name) as folder:
                for group in group_files(folder):
                    if group.sealed and only in ("", group.paths.name):
                        yield _compress(folder, group.paths)


def _compress(folder: Folder, paths: SegmentPaths) -> Compressed:
    before_bytes = _on_disk(folder, paths)
    made = attempt(folder, paths)
    return Compressed(paths.data, made, before_bytes, _on_disk(folder, paths))


def _on_disk(folder: Folder, paths: SegmentPaths) -> int:
    status = folder.stat(paths.data.name)
    return 0 if status is None else status.st_blocks * BLOCK_BYTES


def attempt(
    folder: Folder, paths: SegmentPaths, pace: Callable[[], object] = lambda: None
) -> Attempt:
    """Compress a sealed segment, as `pack_steps` does; nothing is raised."""
    try:
        result = run(pack_steps(folder, paths, pace))
    except (OSError, CollectordError) as error:
        return Attempt(Result.FAILED, str(error))
    return Attempt(result, _REASONS.get(result, ""))


def pack_steps(
    folder: Folder, paths: SegmentPaths, pace: Callable[[], object] = lambda: None
) -> Generator[str, None, Result]:
    """Compress a sealed segment, yielding after each step that a kill may follow.

    Args:
        folder: where it is.
        paths: its names.
        pace: called after each piece of work, to slow it down.

    Raises:
        OSError: a file cannot be read or written.
    """
    try:
        fd = folder.open(paths.data.name, write=True)
    except (FileNotFoundError, UnsafePath):
        return Result.GONE
    with opened(fd):
        if not lock(fd):
            return Result.BUSY
        raw = read_other_manifest(folder, paths.manifest)
        manifest = decode(raw, Manifest)
        if manifest is None or not folder.is_named(paths.data.name, fd):
            return Result.GONE
        new = _create(folder, paths) if packing_of(fd) is None else None
        if new is None:
            return Result.BUSY if packing_of(fd) is None else Result.PACKED
        with opened(new):
            try:
                packed = yield from _write(fd, new, manifest, pace)
                if isinstance(packed, Result):
                    return packed
                yield from _publish(folder, paths, successor(manifest, raw, packed=packed))
                yield from _rename(folder, paths, fd)
            finally:
                folder.discard(paths.packing.name)
    return Result.PACKED


def unpack_steps(
    folder: Folder, paths: SegmentPaths, fd: int, manifest: Manifest, raw: bytes
) -> Generator[str, None, bool]:
    """Give a damaged segment back the form that it was recorded in, with zeros for what is lost.

    Yields after each step that a kill may follow.

    Args:
        folder: where it is.
        paths: its names.
        fd: the locked file.
        manifest: of it.
        raw: the bytes of the manifest.

    Returns:
        whether that was possible.

    Raises:
        OSError: a file cannot be read or written.
    """
    packing, new = packing_of(fd), _create(folder, paths)
    if packing is None or new is None:
        return False
    with opened(new):
        try:
            with mapped(fd, os.fstat(fd).st_size) as form:
                pieces = packing.unpack(form, lenient=True)
                write_pieces(new, pieces, contents_max_bytes(len(form)))
            if os.fstat(new).st_size != manifest.bytes:
                return False
            os.fsync(new)
            yield "uncompressed file synced"
            yield from _publish(folder, paths, successor(manifest, raw, packed=None))
            yield from _rename(folder, paths, fd)
        except CodecError:
            return False
        finally:
            folder.discard(paths.packing.name)
    return True


def remove_left(folder: Folder, paths: SegmentPaths) -> None:
    """Delete what a killed process left of a compressed form. Raises OSError, UnsafePath."""
    try:
        fd = folder.open(paths.packing.name)
    except FileNotFoundError:
        return
    with opened(fd):
        if is_left(fd) and folder.is_named(paths.packing.name, fd):
            folder.discard(paths.packing.name)


def _create(folder: Folder, paths: SegmentPaths) -> int | None:
    """Create the new file, locked; None if another process writes it."""
    remove_left(folder, paths)
    try:
        fd = folder.create(paths.packing.name)
    except FileExistsError:
        return None
    if lock_new(fd):
        return fd
    os.close(fd)
    return None


def _write(
    fd: int, new: int, manifest: Manifest, pace: Callable[[], object]
) -> Generator[str, None, Packed | Result]:
    """Write the new file and read it back; return its sums, or why it is not to be."""
    before, packing = os.fstat(fd), packing_for(manifest.format)
    with mapped(fd, before.st_size) as view:
        spans = manifest.spans
        if before.st_size != manifest.bytes or any(any(unsound(view, span)) for span in spans):
            return Result.UNSOUND
        try:
            write_pieces(new, _paced(packing.pack(view), pace))
        except CodecError:
            return Result.KEPT
        yield "compressed"
        os.fchmod(new, stat.S_IMODE(before.st_mode))
        os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.fsync(new)
        yield "compressed file synced"
        after = os.fstat(new)
        if not _is_worth(before, after):
            return Result.KEPT
        with mapped(new, after.st_size) as form:
            if not _is_same(fd, view, _paced(packing.unpack(form), pace)):
                return Result.KEPT
            return Packed(
                bytes=after.st_size,
                allocated_bytes=after.st_blocks * BLOCK_BYTES,
                xxh3=xxh3(form),
            )


def _is_worth(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether a form saves enough, and can be read again."""
    if before.st_size > contents_max_bytes(after.st_size):
        return False
    return after.st_blocks <= (1 - _GAIN) * before.st_blocks


def _paced(pieces: Pieces, pace: Callable[[], object]) -> Pieces:
    for piece in pieces:
        yield piece
        pace()


def _is_same(fd: int, view: memoryview, pieces: Iterable[Piece]) -> bool:
    """Whether the pieces are the file, with holes where they leave something out."""
    ends = []
    for offset, data in pieces:
        end = offset + len(data)
        if end > len(view) or view[offset:end] != data:
            return False
        ends.append((offset, end))
    at = 0
    for offset, end in (*sorted(ends), (len(view), len(view))):
        if offset > at and stray_byte(fd, view, at, offset) is not None:
            return False
        at = max(at, end)
    return max((end for _, end in ends), default=0) == len(view)


def _publish(folder: Folder, paths: SegmentPaths, manifest: Manifest) -> Iterator[str]:
    """Replace the manifest by one that has its time: retention goes by that."""
    status = folder.stat(paths.manifest.name)
    if status is None:
        return
    folder.write_claimed(paths.new_manifest.name, encode(manifest))
    times = (status.st_atime_ns, status.st_mtime_ns)
    os.utime(paths.new_manifest.name, ns=times, dir_fd=folder.fd, follow_symlinks=False)
    yield "manifest written"
    folder.rename(paths.new_manifest.name, paths.manifest.name)
    yield "manifest renamed"


def _rename(folder: Folder, paths: SegmentPaths, fd: int) -> Iterator[str]:
    """Give the new file the segment's name, unless retention has deleted the segment meanwhile."""
    if not folder.is_named(paths.data.name, fd):
        folder.discard(paths.manifest.name)
        return
    folder.rename(paths.packing.name, paths.data.name)
    yield "segment renamed"
    folder.sync()
    yield "directory synced"
