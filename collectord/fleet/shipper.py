# SPDX-License-Identifier: Apache-2.0
"""Ships what is pending on a host, again and again, and notes what is done."""

from __future__ import annotations

import errno
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from collectord.errors import (
    CollectordError,
    SinkError,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    UnsafePath,
)
from collectord.fleet.pending_segments import Sealed, Unreadable, pending
from collectord.sink import ship_note
from collectord.sink.ship_note import ShipNote, StreamNote, form_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from collectord.fleet.incident_files import Incidents
    from collectord.fleet.pending_segments import Target
    from collectord.fleet.shipment import Shipment, Shipped
    from collectord.sink.segment import SegmentPaths

_LOG: Final = structlog.get_logger()
_UNREADABLE: Final = "unreadable"
_INCIDENTS_NOTED: Final = 1000
_FAILED: Final = "failed"
# A store that is away is asked again after a second, and after twice as long each time.
_AGAIN_S: Final = 1.0
_AGAIN_MAX_S: Final = 300.0


class Result(NamedTuple):
    """The result of a pass.

    Attributes:
        shipped: segments that are in the store now and were not noted before.
        failed: attempts that failed.
        away: the store does not answer, or refuses.
    """

    shipped: int = 0
    failed: int = 0
    away: bool = False


class Shipper:
    """Ships the segments of a host, and its incidents.

    Args:
        targets: what is shipped of each session.
        directory: of the note.
        shipment: puts one segment.
        incidents: of the host.
        stopped: whether to end.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        directory: Path,
        shipment: Shipment,
        incidents: Incidents,
        stopped: Callable[[], bool],
    ) -> None:
        self._targets = targets
        self._directory = directory
        self._shipment = shipment
        self._incidents = incidents
        self._stopped = stopped
        self._note = ship_note.read(directory) or ShipNote(written_ns=0)
        self._failures = 0
        self._shipped = 0

    def run(self, interval_s: float, wait: Callable[[float], object]) -> None:
        """Ship until it is to end.

        Args:
            interval_s: between two looks at what is pending.
            wait: sleeps so long, less if it is to end.

        Raises:
            SinkError: the note cannot be written.
        """
        while not self._stopped():
            result = self.ship_all()
            if result.shipped or not result.away:  # some of its answers are good
                self._failures = 0
            self._failures += result.away
            again_s = min(_AGAIN_S * 2 ** min(self._failures, 16), _AGAIN_MAX_S)
            wait(again_s if result.away else interval_s)

    def ship_all(self) -> Result:
        """Ship all that is pending, once. Raises SinkError if the note cannot be written."""
        before, failed = self._shipped, 0
        away = False
        if not self._note.written_ns:  # or retention would be held up by what cannot be noted
            self._write()
        for target in self._targets:
            if away or self._stopped():
                break
            try:
                self._ship_session(target)
            except CollectordError as error:
                away = isinstance(error, StoreUnavailable | StoreRefused)
                failed += 1
                self._fail(error, target.session)
        if not away and not self._stopped():
            try:
                self._ship_incidents()
            except CollectordError as error:
                away = isinstance(error, StoreUnavailable | StoreRefused)
                failed += 1
                self._fail(error, "")
        return Result(self._shipped - before, failed, away)

    def _fail(self, error: CollectordError, session: str) -> None:
        reason = error.reason if isinstance(error, StoreError) else _FAILED
        _LOG.error("not_shipped", session=session, reason=reason, error=str(error))
        self._write(reason)

    def _ship_session(self, target: Target) -> None:
        first: CollectordError | None = None
        stuck: set[str] = set()  # formats whose order would be broken
        for found in pending(target, self._note):
            form = form_of(found.paths[0])
            if self._stopped():
                break
            if form in stuck:
                continue
            if isinstance(found, Unreadable):
                self._pass_over(target, found)
                continue
            try:
                with_rows = self._incidents.is_wanted(target, found)
                if with_rows is None:  # an incident may yet come that it belongs to
                    stuck.add(form)
                    continue
                done = self._note.stream(target.directory, form)
                put = self._shipment.ship(target, found, done, with_rows=with_rows)
            except (StoreUnavailable, StoreRefused):
                raise
            except CollectordError as error:
                if isinstance(error, SinkError) and error.errno == errno.ENOENT:
                    continue  # retention has deleted it meanwhile, and has said so
                stuck.add(form)
                first = first or error
                continue
            self._done(target, found, put)
            self._shipped += 1
        if first is not None:
            raise first

    def _done(self, target: Target, segment: Sealed, put: Shipped) -> None:
        own = not put.taken
        before = self._stream(target, segment.paths[0])
        self._set(
            msgspec.structs.replace(
                before,
                key=put.previous.key,
                source=put.previous.source,
                sha256=put.previous.sha256,
                shipped=before.shipped + own,
                rows=before.rows + put.rows * own,
                bytes=before.bytes + put.bytes * own,
                passed_since=0,
            )
        )
        _LOG.info(
            "shipped" if own else "shipped_before",
            path=str(segment.paths[0].data),
            key=put.previous.key,
            rows=put.rows,
            bytes=put.bytes,
        )
        self._write()

    def _pass_over(self, target: Target, segment: Unreadable) -> None:
        before = self._stream(target, segment.paths[0])
        self._set(
            msgspec.structs.replace(
                before,
                passed_over=before.passed_over + 1,
                passed_since=before.passed_since + 1,
            )
        )
        _LOG.error("passed_over", path=str(segment.paths[0].data), error=segment.reason)
        self._write(_UNREADABLE)

    def _stream(self, target: Target, paths: SegmentPaths) -> StreamNote:
        """Return the note of a stream that ends with a segment."""
        form = form_of(paths)
        before = self._note.stream(target.directory, form)
        if before is None:
            return StreamNote(
                directory=str(target.directory),
                format=form,
                session=target.session,
                segment=paths.name,
                sequence=paths.sequence,
            )
        return msgspec.structs.replace(before, segment=paths.name, sequence=paths.sequence)

    def _set(self, stream: StreamNote) -> None:
        others = [
            one
            for one in self._note.streams
            if (one.directory, one.format) != (stream.directory, stream.format)
        ]
        self._note = msgspec.structs.replace(self._note, streams=(*others, stream))

    def _ship_incidents(self) -> None:
        for name in self._incidents.pending(self._note.incidents):
            if self._stopped():
                return
            self._incidents.ship(name)
            kept = (*self._note.incidents, name)[-_INCIDENTS_NOTED:]
            self._note = msgspec.structs.replace(self._note, incidents=kept)
            self._write()

    def _write(self, error: str = "") -> None:
        """Write the note, with one more error of a kind."""
        errors = Counter(self._note.errors)
        errors.update([error] if error else [])
        self._note = msgspec.structs.replace(
            self._note, written_ns=time.time_ns(), errors=dict(errors)
        )
        try:
            ship_note.write(self._directory, self._note)
        except (OSError, UnsafePath) as failure:
            raise SinkError(
                "cannot write the note of what was shipped",
                path=str(self._directory),
                errno=failure.errno or 0,
                hint="the unit has StateDirectory=collectord-ship",
            ) from failure
