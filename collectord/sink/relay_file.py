# SPDX-License-Identifier: Apache-2.0
"""Sink stage: one file of a relay segment: a CPU's records of blktrace, or a channel's bytes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord._native import _core
from collectord.codec.file_formats import BLKTRACE
from collectord.folders.folder import write_all
from collectord.sink.blk_records import examine, messages
from collectord.sink.scan import mapped, walk_unsealed
from collectord.sink.segment import BLOCK_BYTES
from collectord.sink.stored_file import Check, Finding, FinishedFile, Part, Shown, Survey, Track
from collectord.sink.sums import data_span, sums_of, unsound

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from collectord._native._core import Sum
    from collectord.sink.manifest import Manifest

_OK: Final = "ok"
_ALL: Final = -1  # the one track of a survey


def finish(fd: int, sums: Sequence[Sum]) -> Generator[str, None, FinishedFile]:
    """Cut a file to its data, wait for the disk and free its cache; yields after each step."""
    size = sum(one.bytes for one in sums)
    os.ftruncate(fd, size)
    yield "cut"
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    yield "file synced"
    status = os.fstat(fd)
    return FinishedFile(
        bytes=size,
        allocated_bytes=status.st_blocks * BLOCK_BYTES,
        data_bytes=size,
        spans=(data_span(0, sums),) if size else (),
    )


class RelayFile:
    """A file of a relay segment; see `StoredFile`. It has no head, and may be empty."""

    source = "relay"
    sparse = False
    data_offset = 0
    events: tuple[str, ...] = ()
    offsets: Mapping[int, int] = {}

    def __init__(self, fd: int, form: str) -> None:
        """Open a file of this format, `blktrace.N` or `relay.N`, by its descriptor."""
        self._fd = fd
        self.format = form
        self.data_bytes = os.fstat(fd).st_size
        self._walked = form.startswith(BLKTRACE)

    def survey(self, sealed: Manifest | None = None) -> Survey:
        """Find the sound records; bytes of an unknown format are all kept.

        Nothing shows what to cut out of such bytes, so a sealed file of them is left as it is.
        """
        size = self.data_bytes if sealed is None else min(self.data_bytes, sealed.bytes)
        if not size or (sealed is not None and not self._walked):
            return Survey()
        with mapped(self._fd, size) as view:
            if not self._walked:
                return Survey({_ALL: Track(size, size, sums_of(view))})
            spans = () if sealed is None else sealed.spans
            found = examine(view, (part for span in spans for part in unsound(view, span)))
            with view[: found.end] as kept:
                sums = () if found.cuts else sums_of(kept)
        return Survey(
            {_ALL: Track(found.end, found.events, sums)} if found.end else {},
            found.first_ns,
            found.last_ns,
            cuts=found.cuts,
            cut_bytes=size - found.end,
            reason=found.fault,
        )

    def shown(self) -> Shown:
        """Walk the records of the file, which needs no head to be read."""
        if not self._walked:
            return Shown(self.data_bytes, 0, 0)

        def walk(records: bytes) -> tuple[int, Shown]:
            found = _core.scan_blktrace(records)
            return found.end, Shown(found.events, found.first_ns, found.last_ns)

        return walk_unsealed(self._fd, [Part(0, self.data_bytes)], walk)

    def finish(self, found: Survey) -> Generator[str, None, FinishedFile]:
        """Cut out damage, and the bytes behind the last record that is kept."""
        track = found.tracks.get(_ALL, Track(0, 0, ()))
        sums = track.sums
        if found.cuts:
            with mapped(self._fd, track.bytes) as view:
                for at, said in [one for cut in found.cuts for one in messages(view, cut)]:
                    write_all(self._fd, said, at)
            os.fdatasync(self._fd)
            yield "damage cut out"
            with mapped(self._fd, track.bytes) as view:
                sums = sums_of(view)
        file = yield from finish(self._fd, sums)
        return replace(file, cuts=found.cuts)

    def findings(self, view: memoryview, manifest: Manifest) -> Iterator[Finding]:
        """Walk the records and count the events."""
        if not self._walked:
            if manifest.samples != len(view):
                detail = f"{len(view)} bytes, its manifest says {manifest.samples}"
                yield Finding(Check.COUNT, detail)
            return
        found = _core.scan_blktrace(view)
        if found.end != len(view):
            reason = found.fault if found.fault != _OK else "a record is cut short"
            yield Finding(Check.RECORDS, f"{reason} at byte {found.end}")
        if found.events != manifest.samples:
            detail = f"{found.events} events, its manifest says {manifest.samples}"
            yield Finding(Check.COUNT, detail)
