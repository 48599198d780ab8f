# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the parts of an open perf.data file around its data section."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from collectord._native import _core
from collectord.codec.aux_record import auxtrace_index, iter_pieces
from collectord.codec.file_formats import PERF_DATA
from collectord.codec.perf_attr import EventType, RecordType, SoftwareId, sample_time_offset
from collectord.codec.perf_data import (
    FIRST_BYTES,
    AttrSection,
    Head,
    build_tail,
    head_bytes,
    parse_feature_table,
    parse_head,
)
from collectord.codec.perf_features import Features, decode_auxtrace_index
from collectord.codec.perf_record import iter_records
from collectord.codec.perf_section import Feature
from collectord.errors import CodecError
from collectord.folders.folder import write_all
from collectord.sink.manifest import Span
from collectord.sink.perf_chunks import examine, padding
from collectord.sink.scan import mapped, read_first, scan, walk_unsealed, xxh3
from collectord.sink.segment import BLOCK_BYTES
from collectord.sink.stored_file import (
    Check,
    Finding,
    FinishedFile,
    Part,
    Shown,
    Survey,
    Track,
)
from collectord.sink.sums import data_span, listed, sums_of, unsound

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from collectord._native._core import Sum
    from collectord.sink.manifest import Manifest

_SHARED: Final = -1  # the one track of a survey: all CPUs write into one section


@dataclass(frozen=True, slots=True)
class DataSection:
    """The contents of a data section, once it is complete.

    Attributes:
        sums: checksums of what the writer wrote.
        appended: records that the close adds behind it.
        auxtrace_index: offsets of its AUXTRACE records in the file.
        features: further features that became known since the head was written.
    """

    sums: tuple[Sum, ...]
    appended: bytes
    first_ns: int
    last_ns: int
    auxtrace_index: tuple[int, ...] = ()
    features: Features = field(default_factory=Features)

    @property
    def written_bytes(self) -> int:
        """The length of what the writer wrote."""
        return sum(one.bytes for one in self.sums)


def write_head(fd: int, head: Head) -> None:
    """Write the part before the data, wait for the disk, and free its cache."""
    write_all(fd, head.image, 0)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def read_head(fd: int) -> Head:
    """Read back what `write_head` wrote, with the present header.

    Raises:
        CodecError: the file does not begin with a whole head.
    """
    return parse_head(read_first(fd, head_bytes(os.pread(fd, FIRST_BYTES, 0))))


def finish(
    fd: int, head: Head, data: DataSection, *, again: bool = False
) -> Generator[str, None, FinishedFile]:
    """Write the tail behind the data, cut the file there, write the header, wait for the disk.

    The file is in the page cache no longer then, unless it is read `again` soon.

    The tail goes into room that the writer has reserved for it: if the file were cut first,
    another file could take that room on a full disk.

    Yields after each step, and may be run again after any: the data are not touched, and the bytes
    behind them can never be taken for a record (a feature table's entry has record size 0).
    """
    end = head.write_offset + data.written_bytes
    data_bytes = data.written_bytes + len(data.appended)
    times = (data.first_ns, data.last_ns) if data.last_ns else None
    known = replace(data.features, sample_time=times, auxtrace_index=data.auxtrace_index)
    sections, header = build_tail(head, len(head.first_records) + data_bytes, known)
    tail = data.appended + sections
    write_all(fd, tail, end)
    yield "tail written"
    os.ftruncate(fd, end + len(tail))
    yield "cut"
    write_all(fd, header, 0)
    yield "header written"
    os.fdatasync(fd)
    if not again:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    yield "file synced"
    spans = (
        Span(
            part="head",
            offset=0,
            bytes=head.write_offset,
            xxh3=xxh3(header + head.image[len(header) :]),
        ),
        data_span(head.write_offset, data.sums),
        Span(part="tail", offset=end, bytes=len(tail), xxh3=xxh3(tail)),
    )
    status = os.fstat(fd)
    return FinishedFile(
        bytes=status.st_size,
        allocated_bytes=status.st_blocks * BLOCK_BYTES,
        data_bytes=data_bytes,
        spans=spans,
    )


def time_offset(attrs: Sequence[AttrSection]) -> int:
    """Return where samples carry their time: 0 if nowhere, or if the events differ in it.

    A dummy event writes no samples, so its own layout does not matter.
    """
    offsets = {sample_time_offset(section.attr) for section in attrs if not _is_dummy(section)}
    return offsets.pop() if len(offsets) == 1 else 0


def _is_dummy(section: AttrSection) -> bool:
    attr = section.attr
    return attr.type == EventType.SOFTWARE and attr.config == SoftwareId.DUMMY


def trace_by_area(data: memoryview) -> Mapping[tuple[int, int], int]:
    """Return the bytes of trace in a section, by the CPU and the thread of the AUX area."""
    found: Counter[tuple[int, int]] = Counter()
    with suppress(CodecError):  # damage is not cut out yet
        for piece in iter_pieces(data):
            found[piece.cpu, piece.tid] += piece.size
    return found


def holds_auxtrace(head: Head) -> bool:
    """Whether the file has the information that a decoder of AUX traces needs."""
    return any(h.type == RecordType.AUXTRACE_INFO for h in iter_records(head.first_records))


class PerfFile:
    """A perf.data file, for repair and verify (`stored_file.StoredFile`).

    Raises:
        CodecError: the file does not begin with a whole head.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._head = read_head(fd)
        self._has_aux = holds_auxtrace(self._head)
        self._sealed: Manifest | None = None
        self.format = PERF_DATA
        self.source = "perf"
        self.sparse = False
        self.data_offset = self._head.write_offset
        in_head = len(self._head.first_records)
        header = self._head.header
        self.data_bytes = max(header.data.size - in_head, 0) if header.sealed else 0
        self.events = tuple(section.name for section in self._head.attrs)
        self.offsets: Mapping[int, int] = {}

    def survey(self, sealed: Manifest | None = None) -> Survey:
        """Find the sound chunks, and the whole records of the last one."""
        size_bytes = os.fstat(self._fd).st_size
        start, end, written = self.data_offset, size_bytes, 0
        if sealed is not None:
            written = sum(span.bytes for span in sealed.spans if span.part == "data")
            end = min(start + written, size_bytes)
        # The next session reads the names of an orphan as well: its disk may be slow.
        mapping = mapped(self._fd, size_bytes, again=sealed is None)
        with mapping as view, view[start : max(start, end)] as data:
            found = examine(data, start, time_offset(self._head.attrs), torn=sealed is None)
            with data[: found.end] as kept:
                sums = () if found.cuts else sums_of(kept)
                traced = sealed is None and found.aux_pieces
                areas = trace_by_area(kept) if traced else {}
        cuts = [Part(start + cut.offset, cut.bytes) for cut in found.cuts]
        size = found.end
        if sealed is not None and end == start + written and size < written:
            # The part behind the data stays, so the data must keep their length.
            cuts.append(Part(start + size, written - size))
            size, sums = written, ()
        self._sealed = sealed
        return Survey(
            tracks={_SHARED: Track(size, found.samples, sums)},
            first_ns=found.first_ns,
            last_ns=found.last_ns,
            cuts=tuple(cuts),
            cut_bytes=max(end - start - size, 0),
            reason=found.reason,
            areas=areas,
        )

    def shown(self) -> Shown:
        """Walk the records that the header shows."""
        at = time_offset(self._head.attrs)

        def walk(records: bytes) -> tuple[int, Shown]:
            found = _core.scan_records(records, time_offset=at)
            return found.end, Shown(found.samples, found.first_ns, found.last_ns)

        data, start = self._head.header.data, self.data_offset
        return walk_unsealed(self._fd, [Part(start, data.offset + data.size - start)], walk)

    def finish(self, found: Survey) -> Generator[str, None, FinishedFile]:
        """Cut out damage, and finish the file behind what is kept."""
        track = found.tracks[_SHARED]
        sums = track.sums
        if found.cuts:
            for cut in found.cuts:
                for at, head in padding(cut):
                    write_all(self._fd, head, at)
            os.fdatasync(self._fd)
            yield "damage cut out"
            end = self.data_offset + track.bytes
            with mapped(self._fd, end) as view, view[self.data_offset :] as kept:
                sums = sums_of(kept)
        standing = self._standing(data_span(self.data_offset, sums), found.cuts)
        if standing is not None:
            return standing
        data = DataSection(
            sums=sums,
            appended=b"",
            first_ns=found.first_ns,
            last_ns=found.last_ns,
            auxtrace_index=self._auxtrace_index(track.bytes),
        )
        file = yield from finish(self._fd, self._head, data, again=self._sealed is None)
        return replace(file, cuts=found.cuts)

    def _standing(self, data: Span, cuts: tuple[Part, ...]) -> FinishedFile | None:
        """Return the file if the part behind its data is as sealed and still valid, else None."""
        if self._sealed is None or self._has_aux:
            return None
        status = os.fstat(self._fd)
        head, *_, tail = self._sealed.spans
        if (tail.part, tail.offset) != ("tail", data.offset + data.bytes):
            return None
        with mapped(self._fd, status.st_size) as view:
            if status.st_size != self._sealed.bytes or any(unsound(view, tail)):
                return None
        return FinishedFile(
            bytes=status.st_size,
            allocated_bytes=status.st_blocks * BLOCK_BYTES,
            data_bytes=self.data_bytes,
            spans=(listed(head), data, listed(tail)),
            cuts=cuts,
        )

    def _auxtrace_index(self, size_bytes: int) -> tuple[int, ...]:
        """Find the AUXTRACE records in what is kept; only a file with AUX information has any."""
        if not self._has_aux:
            return ()
        end = self.data_offset + size_bytes
        with mapped(self._fd, end) as view, view[self.data_offset :] as data:
            return tuple(self.data_offset + at for at in auxtrace_index(data))

    def findings(self, view: memoryview, manifest: Manifest) -> Iterator[Finding]:
        """Walk the records and count the samples."""
        start = manifest.data_offset
        with view[start : start + manifest.data_bytes] as data:
            found = scan(data, time_offset(self._head.attrs))
        if found.reason:
            yield Finding(Check.RECORDS, f"{found.reason} at byte {start + found.end}")
        if self._has_aux:
            yield from self._index_findings(view, manifest)
        if found.samples != manifest.samples:
            detail = f"{found.samples} samples, its manifest says {manifest.samples}"
            yield Finding(Check.COUNT, detail)

    def _index_findings(self, view: memoryview, manifest: Manifest) -> Iterator[Finding]:
        """Compare the index of AUXTRACE records with the records."""
        start = manifest.data_offset
        with view[start : start + manifest.data_bytes] as data:
            found = [start + at for at in auxtrace_index(data)]
        with view[start + manifest.data_bytes :] as table:
            try:
                sections = parse_feature_table(bytes(table), self._head.header, len(view))
                section = sections.get(Feature.AUXTRACE)
                raw = b"" if section is None else bytes(view[section.offset :][: section.size])
                listed = list(decode_auxtrace_index(raw)) if raw else []
            except CodecError as error:
                yield Finding(Check.HEAD, f"its feature table: {error.message}")
                return
        if listed != found:
            detail = f"{len(listed)} AUXTRACE records in the index, {len(found)} in the data"
            yield Finding(Check.RECORDS, detail)
