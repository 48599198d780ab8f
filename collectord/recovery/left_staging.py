# SPDX-License-Identifier: Apache-2.0
"""Recovery of staging memory: a killed daemon's chunks are written to the segments that it left.

The opener has kept the memory. Whoever wrote it was killed at any instant, or was compromised: its
numbers are compared with what the folders hold, each chunk is read once and walked, and only
segments are written that the daemon left open in its own folders. This may be killed as well, and
run again: where a chunk goes is noted in the memory before it is written.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from collectord.codec.file_formats import PERF_DATA
from collectord.codec.perf_record import PAGE_BYTES
from collectord.errors import CodecError, SinkError, UnsafePath
from collectord.folders.folder import opened, write_all
from collectord.kernel.values.kept_rings import NOTE_BYTES, STATE_BYTES
from collectord.kernel.values.kept_staging import (
    CHUNK_MAX_BYTES,
    CHUNK_NOTE_BYTES,
    STREAM_NOTE_BYTES,
    staging_bytes,
)
from collectord.model import STREAMS_MAX
from collectord.recovery.left_file import LeftFile
from collectord.sink.earlier_run import last_segment
from collectord.sink.manifest import encode
from collectord.sink.perf_chunks import has_events, names, padded, sound_end
from collectord.sink.perf_file import read_head, time_offset
from collectord.sink.scan import mapped, scan
from collectord.sink.segment import MANIFEST, PARTIAL, group_files
from collectord.sink.segment_lock import lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from collectord.folders.folder import Folder
    from collectord.kernel.values.kept_staging import LeftStaging
    from collectord.sink.segment import SegmentPaths

_LOG: Final = structlog.get_logger()
_CHUNK_NOTE: Final = struct.Struct("<5Q")  # struct chunk_note of the core: serial, stream,
_FILE_AT: Final = 3 * 8  # used, and from here on file and offset
_STREAM_NOTE: Final = struct.Struct("<3Q")
_RING_NOTE: Final = struct.Struct("<7Q")
_PLACE_BITS: Final = 22
_WORD: Final = 8
_ROUND: Final = 1
_TAIL_BYTES: Final = 64 << 10  # more than a repair writes behind the data
# More rings than a session can have.
_NOTES_MAX_BYTES: Final = 16 << 20


class Chunk(NamedTuple):
    """A chunk that was not free; its records are read when they are written.

    Attributes:
        number: its place in the memory.
        serial: of its use; later ones are higher.
        stream: whose chunk it is.
        used: bytes of whole records.
        file: inode of the file that it was written to; 0: that was not decided.
        at: its offset there, and 1 if a round's end goes with it.
    """

    number: int
    serial: int
    stream: int
    used: int
    file: int
    at: int


class Memory:
    """The notes in a killed daemon's staging memory.

    Args:
        left: the memory.

    Attributes:
        chunks: those that may hold records, by stream, in the order of their use.
        streams: the device and inode of the last file that each stream got, by its number.
    """

    def __init__(self, left: LeftStaging) -> None:
        self._left = left
        self.chunks: dict[int, list[Chunk]] = defaultdict(list)
        self.streams: dict[int, tuple[int, int]] = {}
        count, size = left.chunks, left.chunk_bytes
        whole = staging_bytes(count, size)
        if not 0 < size <= CHUNK_MAX_BYTES or os.fstat(left.memory).st_size < whole:
            return
        taken = _places(left.notes)
        notes = os.pread(left.memory, whole - count * size, count * size)
        for number in range(count):
            note = _CHUNK_NOTE.unpack_from(notes, number * CHUNK_NOTE_BYTES)
            serial, stream, used, file, at = note
            used = max(used, taken.get(serial, 0))
            if serial and used <= size:
                self.chunks[stream].append(Chunk(number, serial, stream, used, file, at))
        for place in range(STREAMS_MAX):
            at = count * CHUNK_NOTE_BYTES + place * STREAM_NOTE_BYTES
            stream, device, file = _STREAM_NOTE.unpack_from(notes, at)
            if stream:
                self.streams[stream - 1] = device, file
        for chunks in self.chunks.values():
            chunks.sort(key=lambda chunk: chunk.serial)

    def records(self, chunk: Chunk, until: int | None = None) -> bytes:
        """Return a copy of a chunk's records, which nobody changes any more.

        Args:
            chunk: the chunk.
            until: end with what is behind them up to here.
        """
        size = chunk.used if until is None else min(until, self._left.chunk_bytes)
        return os.pread(self._left.memory, size, chunk.number * self._left.chunk_bytes)

    def aim(self, chunk: Chunk, file: int, at: int) -> None:
        """Note where a chunk is about to be written, for whoever comes after a kill."""
        place = self._left.chunks * self._left.chunk_bytes
        place += chunk.number * CHUNK_NOTE_BYTES + _FILE_AT
        for value, offset in ((at, _WORD), (file, 0)):
            os.pwrite(self._left.memory, value.to_bytes(_WORD, "little"), place + offset)


def _places(notes: Iterable[int]) -> Mapping[int, int]:
    """Return how far chunks are filled by what the rings' notes say, by the chunks' serials.

    A ring's note is written before its chunk's, in one step with the ring's position.
    """
    found: dict[int, int] = {}
    for fd in notes:
        size = min(os.fstat(fd).st_size, _NOTES_MAX_BYTES)
        data = os.pread(fd, size, 0)
        for at in range(STATE_BYTES, len(data) - NOTE_BYTES + 1, NOTE_BYTES):
            turn, *_, even, odd = _RING_NOTE.unpack_from(data, at)
            place = odd if turn & 1 else even
            serial, words = place >> _PLACE_BITS, place & ((1 << _PLACE_BITS) - 1)
            found[serial] = max(found.get(serial, 0), words * _WORD)
    return found


class _Orphan(LeftFile):
    """A segment into which chunks are written."""

    def __init__(self, folder: Folder, paths: SegmentPaths, fd: int) -> None:
        super().__init__(folder, paths, fd)
        self._head = head = read_head(fd)
        self._time_offset = time_offset(head.attrs)
        self._start = head.write_offset
        self._samples = 0

    def has_same_rings(self, other: _Orphan) -> bool:
        """Whether another segment is of the same rings: it knows the names of their tasks."""
        if self.manifest is None or other.manifest is None:
            return False
        # Ids of events are never used again while a host runs.
        return (self.manifest.boot_id, self._head.attrs) == (
            other.manifest.boot_id,
            other._head.attrs,
        )

    def holds_data(self) -> bool:
        """Whether the segment has data behind its head."""
        return bool(os.pread(self._fd, 1, self._start).strip(b"\0"))

    def write_aimed(self, memory: Memory, chunks: Iterable[Chunk]) -> list[Chunk]:
        """Write chunks where they were to be written; return those for which that cannot be.

        They follow one another behind what is in the file. Raises OSError.
        """
        left = []
        size = max(os.fstat(self._fd).st_size, self._start)
        end, behind = self._start, size + -size % PAGE_BYTES
        for chunk in sorted(chunks, key=lambda one: one.at):
            at = chunk.at & ~_ROUND
            if at % PAGE_BYTES or not end <= at <= behind:
                left.append(chunk)
                continue
            end = at + self._write(memory, chunk, at)
            behind = max(behind, end)
        return left

    def append(self, memory: Memory, chunks: Iterable[Chunk]) -> None:
        """Write chunks behind the last sound one. Raises OSError."""
        size = os.fstat(self._fd).st_size
        with mapped(self._fd, size, again=True) as view, view[self._start :] as data:
            end = sound_end(data, self._start)
            with data[:end] as sound:
                is_begun = has_events(sound)
        at = self._start + end
        # The rest of the file is half of something that is in no chunk, as a replay.
        os.ftruncate(self._fd, at)
        # The replay is in several chunks: some may be missing.
        if not is_begun and (named := self._names()):
            replay = padded(named, at, self._head.table)
            self._put(replay, at)
            at += len(replay)
        for chunk in chunks:
            aimed = chunk._replace(file=self.key[1], at=at)
            memory.aim(aimed, aimed.file, at)
            at += self._write(memory, aimed, at)

    def _names(self) -> bytes:
        """Return what the segment before it knows of tasks and code, in place of a replay."""
        try:
            with last_segment(self._folder) as last:
                before, own = last.manifest, self.manifest
                if before is None or own is None or before.boot_id != own.boot_id:
                    return b""
                if read_head(last.fd).attrs == self._head.attrs:
                    return names(last.records)
        except (CodecError, SinkError, OSError) as error:
            _LOG.warning("names_not_loaded", path=str(self._paths.partial), error=str(error))
        return b""

    def _write(self, memory: Memory, chunk: Chunk, at: int) -> int:
        """Write a chunk, unless it is there; return its length. 0: it holds no sound records."""
        records = memory.records(chunk)
        found = scan(memoryview(records), self._time_offset)
        if found.end != chunk.used:
            _LOG.warning("chunk_not_written", path=str(self._paths.partial), reason=found.reason)
            return 0
        data = padded(records, at, self._head.table, ends_round=bool(chunk.at & _ROUND))
        if os.pread(self._fd, len(data), at) != data:
            self._put(data, at)
            self._samples += found.samples
        return len(data)

    def _put(self, data: bytes, at: int) -> None:
        # A write for which a full disk has no room is not even begun: the segment can still be
        # sealed.
        os.posix_fallocate(self._fd, at, len(data) + _TAIL_BYTES)
        write_all(self._fd, data, at)

    def note_staged(self) -> None:
        """Note in its manifest what was written here. Raises OSError."""
        if self.manifest is None or not self._samples:
            return
        _LOG.info("staging_written", path=str(self._paths.partial), samples=self._samples)
        staged = self.manifest.staged + self._samples
        told = msgspec.structs.replace(self.manifest, staged=staged)
        self._folder.put(self._paths.open_manifest.name, encode(told))


def write_left(memory: Memory, folder: Folder) -> None:
    """Write what was in staging to the unsealed segments of a folder, for those who wrote there.

    What cannot be written is missing in their manifests, and so the rings' account counts it.
    """
    try:
        with _orphans(folder) as orphans:
            runs = {orphan.key: orphan.run for orphan in orphans}
            for stream, key in memory.streams.items():
                chunks = [one for one in memory.chunks.get(stream, ()) if _holds_records(one)]
                if key in runs and chunks:
                    _write(_of_run(orphans, runs[key]), memory, chunks)
    except (SinkError, OSError) as error:
        _LOG.error("staging_not_written", path=str(folder.path), error=str(error))


def _holds_records(chunk: Chunk) -> bool:
    """Whether a chunk may hold records of perf."""
    return chunk.used > 0 and not chunk.used % _WORD


def _of_run(orphans: list[_Orphan], run: str) -> list[_Orphan]:
    """Return the segments of a run, of which there is one, behind the last one before them.

    A daemon drains what another one left before that one's segment is sealed: what it has taken by
    then goes there. While a session takes the place of another, both have segments in the folder,
    of different rings.
    """
    first = next(n for n, one in enumerate(orphans) if one.run == run)
    own = [one for one in orphans if one.run == run]
    before = [one for one in orphans[:first] if one.has_same_rings(own[0]) and one.holds_data()]
    return [*before[-1:], *own]


def _write(orphans: list[_Orphan], memory: Memory, chunks: list[Chunk]) -> None:
    """Write the chunks of a stream to these segments."""
    try:
        aimed = {chunk for chunk in chunks if chunk.file}
        loose = set(chunks) - aimed
        last = orphans[0]  # the newest that has data
        for orphan in orphans:
            own = {chunk for chunk in aimed if chunk.file == orphan.key[1]}
            aimed -= own
            if own:
                loose.update(orphan.write_aimed(memory, own))
            if own or orphan.holds_data():
                last = orphan
        loose |= aimed  # their segment is sealed: they were to go to the next one
        if loose:
            last.append(memory, sorted(loose, key=lambda chunk: chunk.serial))
    finally:
        for orphan in orphans:
            orphan.note_staged()


@contextmanager
def _orphans(folder: Folder) -> Iterator[list[_Orphan]]:
    """Yield the perf segments that nobody writes any more, oldest first. Raises SinkError."""
    with ExitStack() as stack:
        found = []
        for group in group_files(folder):
            paths = group.paths
            if paths.format != PERF_DATA or PARTIAL not in group.suffixes:
                continue
            if MANIFEST in group.suffixes:  # all of it was written
                continue
            # It was cut short while it was created, is no file, or somebody has repaired it.
            with suppress(CodecError, UnsafePath, FileNotFoundError):
                fd = stack.enter_context(opened(folder.open(paths.partial.name, write=True)))
                if lock(fd) and folder.is_named(paths.partial.name, fd):
                    found.append(_Orphan(folder, paths, fd))
        yield found
