# SPDX-License-Identifier: Apache-2.0
"""Recovery of block traces' records that a killed daemon had in staging memory.

The kernel keeps a block trace, but what was read of it is gone from there. The records carry their
CPU and a number, so they tell by themselves which of them are in the files already. A read that a
kill came into was announced in the trace's memory: what it got lies behind the records of the
chunk, and its last record may be cut there; the next daemon reads the rest of it.

As in `left_staging`, nothing is believed of the memory: each record is walked, and only segments
are written that the daemon left open.
"""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from collectord._native import _core
from collectord.codec.blktrace import IS_NOTE, MAGIC, RECORD
from collectord.codec.file_formats import BLKTRACE
from collectord.errors import CodecError, SinkError, UnsafePath
from collectord.folders.folder import opened, write_all
from collectord.kernel.values import kept_trace
from collectord.kernel.values.kept_rings import NOTE_BYTES
from collectord.recovery.left_file import LeftFile
from collectord.sink.blk_records import examine
from collectord.sink.manifest import Manifest, decode, encode
from collectord.sink.packing import unpacked
from collectord.sink.scan import mapped
from collectord.sink.segment import (
    MANIFEST,
    PARTIAL,
    group_files,
    read_other_manifest,
)
from collectord.sink.segment_lock import lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from collectord.folders.folder import Folder
    from collectord.recovery.left_staging import Chunk, Memory
    from collectord.sink.segment import SegmentPaths

_LOG: Final = structlog.get_logger()
_FORM: Final = f"{BLKTRACE}."
_WORD: Final = 8
_HALF: Final = kept_trace.NUMBER_MASK // 2


class _Record(NamedTuple):
    """A record, and its number; None: it is a note."""

    number: int | None
    data: bytes

    @property
    def time_ns(self) -> int:
        """The time at which the kernel wrote the record."""
        return int(RECORD.unpack_from(self.data)[2])


class _LastRead(NamedTuple):
    """A read that a kill came into.

    Attributes:
        records: those that it got and that nobody counted.
        cut: the start of the record behind them.
        end: where that ends in its chunk.
    """

    records: list[_Record]
    cut: bytes
    end: int


def _is_ahead(number: int, last: int) -> bool:
    """Whether a number is behind another one; they wrap."""
    return 0 < (number - last) & kept_trace.NUMBER_MASK <= _HALF


def _head(data: bytes, at: int) -> tuple[int, int | None, int] | None:
    """Return the CPU, number and length of a record; None: there is none."""
    if len(data) - at < RECORD.size:
        return None
    magic, number, *_, action, _, _, cpu, _, extra = RECORD.unpack_from(data, at)
    if magic != MAGIC:
        return None
    return cpu, None if action & IS_NOTE else number, RECORD.size + extra


def _walk(data: bytes) -> Iterator[tuple[int, _Record]]:
    """Yield the whole records up to the first bytes that are none, with their CPUs."""
    at = 0
    while (head := _head(data, at)) is not None:
        cpu, number, size = head
        if at + size > len(data):
            return
        yield cpu, _Record(number, data[at : at + size])
        at += size


class _Trace:
    """The memory of a trace, and the reads that a kill came into."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._cpus = kept_trace.cpus_of(os.fstat(fd).st_size)

    def ring(self, cpu: int) -> kept_trace.TraceRing | None:
        """Return the note of a CPU."""
        if not 0 <= cpu < self._cpus:
            return None
        return kept_trace.decode(os.pread(self._fd, NOTE_BYTES, kept_trace.note_at(cpu)))

    def under_way(self) -> Iterator[tuple[int, kept_trace.TraceRing]]:
        """Yield the CPUs whose files were being read."""
        for cpu in range(self._cpus):
            ring = self.ring(cpu)
            if ring is not None and ring.serial:
                yield cpu, ring

    def advance(self, cpu: int, records: Sequence[_Record], last: _LastRead | None) -> None:
        """Note what was read beyond the note. Raises OSError.

        Args:
            cpu: of the records.
            records: those that were taken, in their order.
            last: the read that a kill came into.
        """
        ring = self.ring(cpu)
        if ring is None:
            return
        new = [one.number for one in records if one.number is not None]
        new = [number for number in new if _is_ahead(number, ring.number)]
        if not new and last is None:
            return
        cut = last.cut if last is not None else self._carried(cpu, ring)
        turn = ring.turn + 1
        told = ring._replace(
            turn=turn,
            number=new[-1] if new else ring.number,
            events=ring.events + len(new),
            carried=len(cut),
        )
        read = self._word(kept_trace.read_at(self._cpus, cpu, ring.turn))
        if last is not None and (new or ring.carried != len(cut)):  # else the note has it
            read += last.end - ring.begin - ring.carried
        write_all(self._fd, cut, kept_trace.slot_at(self._cpus, cpu, turn))
        self._put(read, kept_trace.read_at(self._cpus, cpu, turn))
        write_all(self._fd, kept_trace.pair(told), kept_trace.pair_at(cpu, turn))
        self._put(turn, kept_trace.note_at(cpu))
        self._put(0, kept_trace.serial_at(cpu))

    def _carried(self, cpu: int, ring: kept_trace.TraceRing) -> bytes:
        size = min(ring.carried, kept_trace.SLOT_BYTES)
        return os.pread(self._fd, size, kept_trace.slot_at(self._cpus, cpu, ring.turn))

    def _word(self, at: int) -> int:
        return int.from_bytes(os.pread(self._fd, _WORD, at), "little")

    def _put(self, value: int, at: int) -> None:
        word = max(value, 0) & ((1 << 8 * _WORD) - 1)
        write_all(self._fd, word.to_bytes(_WORD, "little"), at)


class _Part(LeftFile):
    """A CPU's file of a set."""

    def __init__(self, folder: Folder, paths: SegmentPaths, fd: int) -> None:
        super().__init__(folder, paths, fd)
        self.size = os.fstat(fd).st_size

    @property
    def device(self) -> str:
        """The traced device."""
        return next(iter(self.manifest.events), "") if self.manifest is not None else ""

    def append(self, records: Sequence[_Record], last: int | None) -> None:
        """Append the records that are not in the file. Raises OSError.

        Args:
            records: the CPU's, in their order.
            last: the last number in the files before this one.
        """
        end = 0
        tail = b""
        if self.size:
            with mapped(self._fd, self.size) as view:
                end = examine(view).end
                with view[:end] as sound:
                    found = _core.scan_blktrace(sound).sequence
                last = last if found is None else found
                tail = bytes(view[max(0, end - (1 << 20)) : end])
        missing = _behind(records, last, tail)
        if not missing:
            return
        os.ftruncate(self._fd, end)
        write_all(self._fd, b"".join(one.data for one in missing), end)
        events = sum(one.number is not None for one in missing)
        _LOG.info("staging_written", path=str(self._paths.partial), samples=events)
        if self.manifest is not None:
            told = msgspec.structs.replace(self.manifest, staged=self.manifest.staged + events)
            self._folder.put(self._paths.open_manifest.name, encode(told))


def _behind(records: Sequence[_Record], last: int | None, tail: bytes) -> Sequence[_Record]:
    """Return the records that are not in a file yet.

    Args:
        records: some, in their order.
        last: the last number there; None: there is none.
        tail: the end of the file.
    """
    begin = 0
    if last is not None:
        for at, one in enumerate(records):
            if one.number is not None and not _is_ahead(one.number, last):
                begin = at + 1
    # Notes have no number: those behind it may be there too.
    end = begin
    while end < len(records) and records[end].number is None:
        end += 1
    for upto in range(end, begin, -1):
        if tail.endswith(b"".join(one.data for one in records[begin:upto])):
            return records[upto:]
    return records[begin:]


def write_left_blocks(memory: Memory, folder: Folder, traces: Mapping[str, int]) -> None:
    """Write what was in staging to the sets of files that a killed daemon left in a folder.

    What cannot be written is missing in their manifests, and so the trace's account counts it.

    Args:
        memory: the staging.
        folder: of a session.
        traces: the memory of traces that go on, by device.
    """
    try:
        with ExitStack() as stack:
            sets = _sets(folder, stack)
            for stream, key in memory.streams.items():
                of = next((one for one in sets if 0 in one and one[0].key == key), None)
                if of is not None:
                    own = [one for one in sets if 0 in one and one[0].run == of[0].run]
                    fd = traces.get(of[0].device)
                    trace = _Trace(fd) if fd is not None else None
                    _write(folder, own, memory, memory.chunks.get(stream, []), trace)
    except (SinkError, CodecError, OSError) as error:
        _LOG.error("staging_not_written", path=str(folder.path), error=str(error))


def _sets(folder: Folder, stack: ExitStack) -> list[dict[int, _Part]]:
    """Return the sets that nobody writes any more, oldest first. Raises SinkError."""
    found: dict[str, dict[int, _Part]] = defaultdict(dict)
    for group in group_files(folder):
        paths = group.paths
        if not paths.format.startswith(_FORM) or PARTIAL not in group.suffixes:
            continue
        if MANIFEST in group.suffixes:  # all of it was written
            continue
        with suppress(UnsafePath, FileNotFoundError):
            fd = stack.enter_context(opened(folder.open(paths.partial.name, write=True)))
            if lock(fd) and folder.is_named(paths.partial.name, fd):
                number = int(paths.format.removeprefix(_FORM))
                found[paths.set_name][number] = _Part(folder, paths, fd)
    return [found[name] for name in sorted(found)]


def _write(
    folder: Folder,
    sets: Sequence[Mapping[int, _Part]],
    memory: Memory,
    chunks: Iterable[Chunk],
    trace: _Trace | None,
) -> None:
    """Write the chunks of a stream to the sets of a run, and note what the trace lacks of them."""
    by_serial = {chunk.serial: chunk for chunk in chunks}
    taken: dict[int, list[_Record]] = defaultdict(list)
    for chunk in by_serial.values():  # they are in the order of their use
        for cpu, record in _walk(memory.records(chunk)):
            taken[cpu].append(record)
    last: dict[int, _LastRead] = {}
    for cpu, ring in trace.under_way() if trace is not None else ():
        into = by_serial.get(ring.serial)
        if into is not None and ring.begin <= into.used <= ring.end:
            data = memory.records(into, ring.end)
            last[cpu] = _read_last(data, into.used, cpu, ring.number, taken[cpu])
            taken[cpu] += last[cpu].records
    for cpu, records in taken.items():
        parts = [one[cpu] for one in sets if cpu in one]
        if not parts:
            continue
        part = next((one for one in reversed(parts) if one.size), parts[0])
        part.append(records, _last_sealed(folder, cpu, part.run))
        if trace is not None:
            trace.advance(cpu, records, last.get(cpu))


def _read_last(data: bytes, at: int, cpu: int, last: int, before: Sequence[_Record]) -> _LastRead:
    """Return what an uncounted read got.

    Behind what it got are old bytes: they are of an earlier time, and their numbers are not ahead.

    Args:
        data: ends where the room ended that the read had.
        at: where it went.
        cpu: whose file was read.
        last: the last number that is noted.
        before: the records before it.
    """
    last = next((one.number for one in reversed(before) if one.number is not None), last)
    time_ns = before[-1].time_ns if before else 0
    found: list[_Record] = []
    while (head := _head(data, at)) is not None:
        owner, number, size = head
        record = _Record(number, data[at : at + size])
        is_new = _is_ahead(number, last) if number is not None else record.time_ns >= time_ns
        if owner != cpu or not is_new:
            return _LastRead(found, b"", at)
        if at + size > len(data):
            return _LastRead(found, data[at:], len(data))
        found.append(record)
        last = last if number is None else number
        time_ns = max(time_ns, record.time_ns)
        at += size
    # The room's end was zeroed before: what begins there like a record is one.
    rest = data[at:]
    is_cut = 0 < len(rest) < RECORD.size and rest[0] == MAGIC & 0xFF
    return _LastRead(found, rest, len(data)) if is_cut else _LastRead(found, b"", at)


def _last_sealed(folder: Folder, cpu: int, run: str) -> int | None:
    """Return the last number in a CPU's sealed files of a run; None if there is none."""
    for group in reversed(group_files(folder)):
        paths = group.paths
        if paths.format != f"{_FORM}{cpu}" or not group.sealed:
            continue
        manifest = decode(read_other_manifest(folder, paths.manifest), Manifest)
        if manifest is None or manifest.run != run or not manifest.samples:
            continue
        with opened(folder.open(paths.data.name)) as fd, unpacked(fd) as plain:
            size = os.fstat(plain).st_size
            with mapped(plain, size) as view:
                return _core.scan_blktrace(view).sequence
    return None
