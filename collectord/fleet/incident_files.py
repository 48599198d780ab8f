# SPDX-License-Identifier: Apache-2.0
"""The incidents of a host: their files in a store, and the segments that belong to one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from collectord.errors import NotStored, StoreConflict
from collectord.fleet.store_keys import IncidentKey
from collectord.sink.incident_folder import ANSWERS, NOTE, SUMMARY, IncidentFolder
from collectord.text.foreign import encode_json
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from collectord.fleet.pace import Pace
    from collectord.fleet.pending_segments import Sealed, Target
    from collectord.fleet.store import Keeps
    from collectord.sink.incident_folder import IncidentNote

# An incident has the records of so long before and after it.
AROUND_NS: Final = 60 * NS_PER_SECOND
# Its answers are given within this time.
SETTLED_NS: Final = 300 * NS_PER_SECOND
_FILE_MAX_BYTES: Final = 8 << 20


class Incidents:
    """The incidents below a state directory.

    Args:
        root: the state directory.
        store: where their files go; None: nowhere.
        host: name of the host in keys, "" for that in their notes.
        redacted: only what they are is put, and no name of a process.
        pace: is kept after each file.
        now_ns: reads UTC.
    """

    def __init__(
        self,
        root: Path,
        store: Keeps | None,
        host: str,
        pace: Pace,
        *,
        redacted: bool,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._folder = IncidentFolder(root)
        self._store = store
        self._host = host
        self._redacted = redacted
        self._pace = pace
        self._now_ns = now_ns
        self._notes: list[IncidentNote] | None = None

    def look(self) -> None:
        """Read the notes of all incidents. Raises SinkError."""
        self._notes = [one.note for one in self._folder.kept() if one.note is not None]

    def is_wanted(self, target: Target, segment: Sealed) -> bool | None:
        """Whether a segment's rows are shipped; None if an incident may still need them.

        Raises SinkError.
        """
        if not target.by_incident:
            return True
        if self._notes is None:
            self.look()
        names = {f"{target.session}/{paths.name}" for paths in segment.paths}
        times = segment.times
        for note in self._notes or ():
            if not names.isdisjoint(note.files):
                return True
            begin_ns, end_ns = note.fired_ns - AROUND_NS, note.taken_ns + AROUND_NS
            if times is not None and times[0] <= end_ns and begin_ns <= times[1]:
                return True
        closed = segment.manifest.clocks.close or segment.manifest.clocks.open
        last_ns = max(times[1] if times is not None else 0, closed.realtime_ns)
        return None if self._now_ns() < last_ns + SETTLED_NS else False

    def pending(self, noted: Collection[str]) -> Iterator[str]:
        """Yield the incidents to put: those whose answers are there. Raises SinkError."""
        if self._store is None:
            return
        self.look()
        for note in self._notes or ():
            if note.id not in noted and note.taken_ns + SETTLED_NS <= self._now_ns():
                yield note.id

    def ship(self, name: str) -> None:
        """Put the files of an incident, its note last. Segments are put with their sessions.

        Raises:
            StoreError: the store fails.
            SinkError: it cannot be read, or is gone.
        """
        for file, data in self.contents(name):
            self._put(name, file, data)

    def contents(self, name: str) -> Iterator[tuple[str, bytes]]:
        """Yield {name, bytes} of each file that is put, the note last. Raises SinkError."""
        note = self._folder.find(name).note
        if note is None:
            return
        if self._redacted:
            note = msgspec.structs.replace(
                note,
                reason="",
                alerts=tuple(
                    msgspec.structs.replace(one, labels={}, annotations={}) for one in note.alerts
                ),
                also=(),
                snapshots=(),
                problems=(),
                moment={},
                answers=(),
            )
        else:
            for file, _ in self._folder.files(name):
                if file == SUMMARY or file.startswith(f"{ANSWERS}/"):
                    yield file, self._folder.read(name, file, _FILE_MAX_BYTES)
        yield NOTE, encode_json(note) + b"\n"

    def _put(self, name: str, file: str, data: bytes) -> None:
        if self._store is None:
            return
        note = next(one for one in self._notes or () if one.id == name)
        key = IncidentKey(self._host or note.hostname, name, file).key
        is_new = self._store.put_new(key, data)
        self._pace.keep(len(data))
        info = self._store.head(key)
        if info is None:
            raise NotStored(f"{key} is not there, although the store took it", key=key)
        if not is_new and file == NOTE and self._store.get(key, _FILE_MAX_BYTES) != data:
            raise StoreConflict(f"{key} is of another incident", key=key)
