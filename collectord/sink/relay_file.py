# SPDX-License-Identifier: Apache-2.0
"""Sink stage: one file of a relay segment: a CPU's records of blktrace, or a channel's bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from collectord._native import _core
from collectord.sink.scan import mapped
from collectord.sink.segment import BLKTRACE, BLOCK_BYTES
from collectord.sink.stored import Check, Finding, FinishedFile, Survey, Track
from collectord.sink.sums import data_span, sums_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from collectord._native._core import Sum
    from collectord.sink.manifest import Manifest

_OK: Final = "ok"


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
    """See `StoredFile`. Such a file has no head, and may be empty."""

    source = "relay"
    sparse = False
    data_offset = 0
    events: tuple[str, ...] = ()
    offsets: Mapping[int, int] = {}

    def __init__(self, fd: int, form: str) -> None:
        """Look at an open file of this format, `blktrace.N` or `relay.N`."""
        self._fd = fd
        self.format = form
        self.data_bytes = os.fstat(fd).st_size
        self._walked = form.startswith(BLKTRACE)

    def survey(self, sealed: Manifest | None = None) -> Survey:
        """Find the whole records; of bytes that nobody knows all are kept.

        Nothing tells where records begin behind damage, so a sealed file is left as it is.
        """
        if not self.data_bytes or sealed is not None:
            return Survey()
        with mapped(self._fd, self.data_bytes) as view:
            if not self._walked:
                track = Track(self.data_bytes, self.data_bytes, sums_of(view))
                return Survey({-1: track})
            found = _core.scan_blktrace(view)
            with view[: found.end] as kept:
                track = Track(found.end, found.events, sums_of(kept))
        return Survey(
            {-1: track} if found.end else {},
            found.first_ns,
            found.last_ns,
            cut_bytes=self.data_bytes - found.end,
            reason="" if found.fault == _OK else found.fault,
        )

    def finish(self, found: Survey) -> Generator[str, None, FinishedFile]:
        """Cut what is behind the last whole record."""
        track = found.tracks.get(-1, Track(0, 0, ()))
        return finish(self._fd, track.sums)

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
