# SPDX-License-Identifier: Apache-2.0
"""Sink stage: read back a segment's data section, for repair and verify."""

from __future__ import annotations

import mmap
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import xxhash

from collectord._native._core import scan_records
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import AUXTRACE_BYTES, HEADER, HEADER_BYTES, PAGE_BYTES
from collectord.errors import CodecError
from collectord.sink.stored_file import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from collectord.sink.stored_file import Part

KNOWN_TYPES: Final = frozenset(RecordType)
_PIECE_BYTES: Final = 64 << 20
_COPIED_BYTES: Final = 1 << 20  # a multiple of every possible sub-buffer size


class Hash(Protocol):
    """A running hash."""

    def update(self, data: memoryview, /) -> None:
        """Add these bytes."""

    def hexdigest(self) -> str:
        """Return the hash as text."""


class Scan(NamedTuple):
    """The result of a walk over a data section.

    Attributes:
        end: offset past the last whole record.
        last: offset of that record.
        samples: PERF_RECORD_SAMPLE records.
        first_ns, last_ns: lowest and highest sample time, 0 if there is none.
        reason: why the walk ended before the data did, "" if it did not.
        invalid: whether it met bytes that begin no record, rather than a record cut short.
        aux_pieces: pieces of AUX trace.
    """

    end: int
    last: int
    samples: int
    first_ns: int
    last_ns: int
    reason: str
    invalid: bool
    aux_pieces: int = 0


def scan(data: memoryview, time_offset: int) -> Scan:
    """Walk the records of a data section; `time_offset` is that of a sample's time, 0 for none."""
    found = scan_records(data, time_offset=time_offset)
    reason, invalid = _end_of_walk(data, found.end)
    return Scan(
        end=found.end,
        last=found.last,
        samples=found.samples,
        first_ns=found.first_ns,
        last_ns=found.last_ns,
        reason=reason,
        invalid=invalid,
        aux_pieces=found.aux_pieces,
    )


def _end_of_walk(data: memoryview, end: int) -> tuple[str, bool]:
    """Return why a walk ended there, and whether what is there is invalid; see `Scan`."""
    if end == len(data):
        return "", False
    if len(data) - end < HEADER_BYTES:
        return "a record header is cut short", False
    kind, _, size = HEADER.unpack_from(data, end)
    if size < HEADER_BYTES or size % 8 or (kind == RecordType.AUXTRACE and size != AUXTRACE_BYTES):
        return f"a record has size {size}", True
    if kind not in KNOWN_TYPES:
        return f"a record has type {kind}", True
    return "a record is cut short", False


def scan_torn(data: memoryview, time_offset: int) -> Scan:
    """Walk a data section whose writer died, without a record that was half written.

    Writers write whole pages, so a walk that ends inside a page met a write that was cut short. A
    last record that spans two pages may then lack its second part, though its header is whole; and
    an invalid record may have begun in the one before.
    """
    found = scan(data, time_offset)
    crosses = found.last // PAGE_BYTES < (found.end - 1) // PAGE_BYTES
    if found.end % PAGE_BYTES and (crosses or found.invalid):
        return scan(data[: found.last], time_offset)._replace(
            reason=found.reason, invalid=found.invalid
        )
    return found


def read_first(fd: int, size_bytes: int) -> bytes:
    """Read the beginning of a file, with a size that may come from damaged data.

    Raises:
        CodecError: the file is shorter; no memory is allocated in that case.
    """
    there_bytes = os.fstat(fd).st_size
    if there_bytes < size_bytes:
        raise CodecError("head cut short", offset=there_bytes, reason="short")
    return os.pread(fd, size_bytes, 0)


def walk_unsealed(
    fd: int, parts: Iterable[Part], walk: Callable[[bytes], tuple[int, Shown]]
) -> Shown:
    """Walk parts of a file that may be cut meanwhile, which would be fatal to a map of it.

    Args:
        fd: the file.
        parts: each begins with a record.
        walk: returns the size of the whole records at the beginning of a piece, and their events.
    """
    samples, times = 0, [(0, 0)]
    for part in parts:
        at, piece_bytes = part.offset, _COPIED_BYTES
        while at < part.end and piece_bytes <= _PIECE_BYTES:
            size, found = walk(os.pread(fd, min(piece_bytes, part.end - at), at))
            at += size
            samples += found.samples
            times.append((found.first_ns, found.last_ns))
            if not size:
                piece_bytes *= 2  # a record may be as long
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return Shown(samples, *widest(times))


def widest(times: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the earliest first and the latest last time of tracks; 0 stands for no event."""
    known = [pair for pair in times if pair[0]]
    return (
        min((first for first, _ in known), default=0),
        max((last for _, last in known), default=0),
    )


@contextmanager
def mapped(fd: int, size_bytes: int, *, again: bool = False) -> Iterator[memoryview]:
    """Map a whole file for one reading pass.

    Its pages leave the cache when the block ends, unless it is read `again` soon.
    """
    if not size_bytes:
        yield memoryview(b"")
        return
    with mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ) as pages:
        pages.madvise(mmap.MADV_SEQUENTIAL)
        with memoryview(pages) as view:
            yield view
    if not again:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def xxh3(data: memoryview | bytes) -> str:
    """Return the XXH3-64 as in manifests, 16 hex digits."""
    return digest(xxhash.xxh3_64(), data)


def digest(state: Hash, data: memoryview | bytes) -> str:
    """Return the hash in hex digits; it works in pieces, so that Ctrl-C ends it in time."""
    for at in range(0, len(data), _PIECE_BYTES):
        with memoryview(data)[at : at + _PIECE_BYTES] as piece:
            state.update(piece)
    return state.hexdigest()
