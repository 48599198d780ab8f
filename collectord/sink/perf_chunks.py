# SPDX-License-Identifier: Apache-2.0
"""Sink stage: find the sound chunks of a perf.data file's data section, and cut out damage.

The section consists of chunks that begin and end at multiples of 4096 bytes. Each ends with a
padding record, whose end is a footer: magic, the chunk's offset in the file, and the XXH3-64 of
all bytes before the checksum (chunk.h of the core). A chunk is sound if that holds and its records
fit. The parts between sound chunks are cut out: they become records that every reader skips.

Files of older versions have no footers. There damage is visible only as an invalid record; reading
resumes at the next place where records lead to a chunk's end.
"""

from __future__ import annotations

import struct
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord._native._core import scan_records
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import (
    HEADER,
    HEADER_BYTES,
    PAGE_BYTES,
    RECORD_MAX_BYTES,
    iter_records,
)
from collectord.sink.scan import KNOWN_TYPES, scan, scan_torn, xxh3
from collectord.sink.stored_file import CUT, Part

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from collectord._native.values import RecordScan
    from collectord.sink.scan import Scan

_MAGIC: Final = int.from_bytes(b"CHNKEND1", "little")
_WORD: Final = 8
_FOOTER_BYTES: Final = 3 * _WORD
_WORDS: Final = PAGE_BYTES // _WORD
_NAMES: Final = frozenset(
    {
        *(RecordType.COMM, RecordType.FORK, RecordType.EXIT, RecordType.NAMESPACES),
        *(RecordType.MMAP, RecordType.MMAP2, RecordType.KSYMBOL, RecordType.BPF_EVENT),
        *(RecordType.CGROUP, RecordType.TEXT_POKE),
    }
)
# Longer than a record; most parts of this length have events alone.
_LOOK_BYTES: Final = 128 << 10
# The end of a chunk of an older version is searched this far.
_CHUNK_MAX_BYTES: Final = 16 << 20


class Kept(NamedTuple):
    """The part of a data section that can be kept; offsets count from its beginning.

    Attributes:
        end: the data behind it are given up.
        cuts: damage before it, to be made into padding.
        samples: events that are kept.
        first_ns, last_ns: lowest and highest time of an event, 0 if there is none.
        reason: why the kept data end there, "" if the data simply end.
        aux_pieces: pieces of AUX trace in it.
    """

    end: int
    cuts: tuple[Part, ...]
    samples: int
    first_ns: int
    last_ns: int
    reason: str
    aux_pieces: int = 0


class _Keeping:
    """Collects the kept parts, in the order of their offsets."""

    def __init__(self) -> None:
        self.end = self.samples = self.aux_pieces = 0
        self.cuts: list[Part] = []
        self._times: list[tuple[int, int]] = []
        self.reason = ""

    def keep(self, at: int, found: Scan) -> None:
        """Keep the records that a walk from `at` on has found."""
        if not found.end:
            return
        if at > self.end:
            self.cuts.append(Part(self.end, at - self.end))
        self.end = at + found.end
        self.samples += found.samples
        self.aux_pieces += found.aux_pieces
        if found.last_ns:
            self._times.append((found.first_ns, found.last_ns))

    def kept(self) -> Kept:
        first_ns = min((first for first, _ in self._times), default=0)
        last_ns = max((last for _, last in self._times), default=0)
        return Kept(
            self.end,
            tuple(self.cuts),
            self.samples,
            first_ns,
            last_ns,
            self.reason,
            self.aux_pieces,
        )


def examine(data: memoryview, base: int, time_offset: int, *, torn: bool) -> Kept:
    """Find the sound part.

    Args:
        data: the section, and what may be behind it.
        base: the section's offset in the file.
        time_offset: where samples carry their time.
        torn: a writer was killed, and may have left a part of the last chunk.
    """
    told = sorted(_footed_chunks(data, base), key=lambda part: (part.offset, -part.bytes))
    keeping = _Keeping()
    if not told:
        _look_without_footers(data, time_offset, keeping)
        return keeping.kept()
    for part in told:
        if part.offset < keeping.end:
            continue
        with data[part.offset : part.end] as chunk:
            found = scan(chunk, time_offset)
            if found.end == part.bytes and _is_as_told(chunk):
                keeping.keep(part.offset, found)
    if not torn:
        return keeping.kept()
    at = max((part.end for part in told if part.end > keeping.end), default=keeping.end)
    with data[at:] as rest:
        found = scan_torn(rest, time_offset)
    keeping.keep(at, found)
    keeping.reason = found.reason
    return keeping.kept()


def _footed_chunks(data: memoryview, base: int) -> Generator[Part]:
    """Yield the chunks described by footers, sound or not, from the end on."""
    size = len(data) // PAGE_BYTES * PAGE_BYTES
    with data[:size] as whole, whole.cast("Q") as words:
        magics, places = words[_WORDS - 3 :: _WORDS], words[_WORDS - 2 :: _WORDS]
        for behind, magic in enumerate(magics[::-1]):
            if magic == _MAGIC:
                page = len(magics) - 1 - behind
                start, end = places[page] - base, (page + 1) * PAGE_BYTES
                if 0 <= start < end and start % PAGE_BYTES == 0:
                    yield Part(start, end - start)


def _is_as_told(chunk: memoryview) -> bool:
    with chunk[:-_WORD] as hashed:
        return int(xxh3(hashed), 16) == int.from_bytes(chunk[-_WORD:], "little")


def sound_end(data: memoryview, base: int) -> int:
    """Return the end of the last sound chunk of a section, 0 if there is none; see `examine`."""
    with closing(_footed_chunks(data, base)) as told:
        for part in told:
            with data[part.offset : part.end] as chunk:
                if _is_as_told(chunk):
                    return part.end
    return 0


def names(data: memoryview) -> bytes:
    """Return the records of a sound section that tell of tasks and code, without its events."""
    found: list[bytes] = []
    for some, seen in _pieces(data):
        if seen.records > seen.samples:
            told = (one for one in iter_records(bytes(some[: seen.end])) if one.type in _NAMES)
            found += (bytes(some[one.offset : one.offset + one.size]) for one in told)
    return b"".join(found)


def has_events(data: memoryview) -> bool:
    """Whether a sound section has events; it is read up to the first one."""
    with closing(_pieces(data)) as pieces:
        return any(seen.samples for _, seen in pieces)


def _pieces(data: memoryview) -> Generator[tuple[memoryview, RecordScan]]:
    """Yield a section piece by piece, each with what its whole records are."""
    at = 0
    while at < len(data):
        with data[at : at + _LOOK_BYTES] as some:
            seen = scan_records(some)
            yield some, seen
        if not seen.end:
            break
        at += seen.end


def padded(records: bytes, offset: int, table: bytes, *, ends_round: bool = False) -> bytes:
    """Return records as a chunk, as the core writes it (`chunk__pad`).

    Args:
        records: whole ones.
        offset: of the chunk in the file.
        table: what the padding of a running file begins with; its first word is replaced.
        ends_round: a FINISHED_ROUND follows the records.
    """
    if ends_round:
        records += HEADER.pack(RecordType.FINISHED_ROUND, 0, HEADER_BYTES)
    least = max(len(table), HEADER_BYTES) + _FOOTER_BYTES
    size = least + -(len(records) + least) % PAGE_BYTES
    head = HEADER.pack(RecordType.FINISHED_INIT, 0, size) + table[HEADER_BYTES:]
    filled = records + head.ljust(size - _FOOTER_BYTES, b"\0")
    told = filled + struct.pack("<QQ", _MAGIC, offset)
    return told + int(xxh3(told), 16).to_bytes(_WORD, "little")


def _look_without_footers(data: memoryview, time_offset: int, keeping: _Keeping) -> None:
    at = 0
    while True:
        with data[at:] as rest:
            found = scan_torn(rest, time_offset)
        keeping.keep(at, found)
        fault = at + found.end
        keeping.reason = found.reason
        if not found.reason:
            return
        aligned = range(-(-(fault + 1) // PAGE_BYTES) * PAGE_BYTES, len(data), PAGE_BYTES)
        following = next((place for place in aligned if _begins_chunk(data, place)), None)
        if following is None:
            return
        at = following


def _begins_chunk(data: memoryview, start: int) -> bool:
    """Whether records lead from here to padding that ends at a possible chunk end."""
    at = start
    while at + HEADER_BYTES <= len(data) and at - start < _CHUNK_MAX_BYTES:
        kind, _, size = HEADER.unpack_from(data, at)
        if kind not in KNOWN_TYPES or size < HEADER_BYTES or size % _WORD or at + size > len(data):
            return False
        at += size
        if kind == RecordType.FINISHED_INIT and at % PAGE_BYTES == 0:
            return True
    return False


def padding(part: Part) -> Iterator[tuple[int, bytes]]:
    """Yield offsets and bytes to write so that readers skip a part; its other bytes may stay."""
    at, left = part.offset, part.bytes
    while left:
        size = min(left, RECORD_MAX_BYTES)
        head = HEADER.pack(RecordType.FINISHED_INIT, 0, size)
        yield at, (head + CUT)[:size]
        at += size
        left -= size
