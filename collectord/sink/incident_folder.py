# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the incidents of a state directory, each a folder of its own.

incidents/.triggers                      how often each trigger fired, for the next daemon
incidents/<UTC time>-<trigger>/          one incident; of an alert with its fingerprint behind
    incident.json                        what it is, written last: without it, it is unfinished
    summary.txt                          the same for people, made from it
    <session>/<segment>                  the snapshot of each flight recorder, second names of
                                         the files in the session's own folder
    answers/<name>.txt                   what was asked of these
    flame.svg                            the load before it, drawn with the answer "flame"
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from collectord.errors import SinkError, UnsafePath, UsageError
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.model import INCIDENTS
from collectord.sink.alert import Alert  # noqa: TC001 - msgspec reads annotations
from collectord.sink.segment import (
    BESIDE_END,
    BLOCK_BYTES,
    DIRECTORY_MODE,
    MANIFEST,
    group_files,
    name_of_time,
    sink_errors,
)
from collectord.text.foreign import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from collectord.folders.folder import Folder

NOTE: Final = "incident.json"
SUMMARY: Final = "summary.txt"
ANSWERS: Final = "answers"
PICTURE: Final = "flame.svg"
LAST: Final = "last"
_COUNTS: Final = ".triggers"
_ID: Final = re.compile(
    r"\d{8}T\d{6}Z-[a-z0-9][a-z0-9_-]{0,31}(?:-[0-9a-f]{16})?(?:\.\d{1,4})?", re.ASCII
)
_NOTE_MAX_BYTES: Final = 4 << 20
_IDS_MAX: Final = 1000


class AnswerNote(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of an incident.

    Attributes:
        name: such as "why-io" or "slow-io".
        file: its text, a path in the incident.
        problem: why there is none, "" if there is one.
    """

    name: str
    file: str
    problem: str = ""


class IncidentNote(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of incident.json.

    Attributes:
        id: name of the folder.
        trigger: its name; "manual" and "signal" for requests.
        kind: of the trigger.
        reason: what was met, or what the user has said.
        fired_ns: UTC.
        taken_ns: UTC of the snapshots, after the trigger's delay.
        alerts: those of Alertmanager that it is of; the id has the first one's fingerprint.
        also: triggers that fired while the incident was being made, with their reasons.
        suppressed: times that this trigger was not followed since its last incident, by cause.
        snapshots: as in the answer of /v1/snapshot.
        files: the files of the snapshots, paths in the incident.
        problems: what is missing, in words.
        moment: load, pressure and processes.
    """

    schema: int = 1
    id: str
    trigger: str
    kind: str
    reason: str
    hostname: str
    boot_id: str
    release: str
    fired_ns: int
    taken_ns: int
    alerts: tuple[Alert, ...] = ()
    also: tuple[str, ...] = ()
    suppressed: dict[str, int] = {}
    snapshots: tuple[dict[str, Any], ...] = ()
    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    moment: dict[str, Any] = {}
    answers: tuple[AnswerNote, ...] = ()


class Kept(NamedTuple):
    """An incident that is on the disk.

    Attributes:
        note: None for one that is unfinished, or whose note cannot be read.
        bytes: its space on the disk; a file that a session has too counts half.
    """

    id: str
    bytes: int
    note: IncidentNote | None


class Linked(NamedTuple):
    """The files that an incident has, and what is missing, in words."""

    files: tuple[str, ...]
    problems: tuple[str, ...]


class IncidentFolder:
    """The incidents below a state directory. Calls may come from any thread.

    Args:
        root: the state directory.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / INCIDENTS

    # The daemon calls these. All raise SinkError.

    def begin(self, fired_ns: int, trigger: str, alerts: Sequence[Alert] = ()) -> str:
        """Make the folder of an incident; return its name."""
        behind = f"-{alerts[0].fingerprint}" if alerts else ""
        stem = f"{name_of_time(fired_ns)}-{trigger}{behind}"
        with self._opened(make=True) as folder:
            for number in count(1):
                name = stem if number == 1 else f"{stem}.{number}"
                with suppress(FileExistsError):
                    folder.make_folder(name, DIRECTORY_MODE).close()
                    folder.sync()
                    return name
                if number == _IDS_MAX:
                    raise SinkError(
                        "there are too many incidents of this second", path=str(self.path)
                    )
        raise AssertionError

    def link(self, name: str, session: str, segments: Iterable[str]) -> Linked:
        """Give the files of a snapshot a second name in an incident.

        Args:
            name: of the incident.
            session: whose snapshot it is.
            segments: paths of its segments.
        """
        files: list[str] = []
        problems: list[str] = []
        by_folder: dict[Path, set[str]] = {}
        for path in map(Path, segments):
            by_folder.setdefault(path.parent, set()).add(path.name)
        with self._opened() as folder, folder.enter(name) as incident:
            for directory, wanted in by_folder.items():
                try:
                    with open_folder(directory) as source, _own(incident, session) as own:
                        for file in _files_of(source, wanted):
                            source.link(file, own)
                            files.append(f"{session}/{file}")
                except (OSError, UnsafePath) as error:
                    problems.append(_not_linked(directory, wanted, error))
        return Linked(tuple(files), tuple(problems))

    def put(self, note: IncidentNote) -> None:
        """Write or replace the note of an incident."""
        with self._opened() as folder, folder.enter(note.id) as incident:
            incident.put(NOTE, encode_json(note))

    def create(self, name: str, file: str) -> int:
        """Create a file of an incident, or empty the one that is there; return its descriptor.

        Args:
            name: of the incident.
            file: SUMMARY, or a name in the folder ANSWERS behind that and a slash.
        """
        above, _, last = file.rpartition("/")
        with self._opened() as folder, folder.enter(name) as incident:
            if not above:
                return incident.replace(last)
            with _own(incident, above) as own:
                return own.replace(last)

    def read_counts(self) -> bytes:
        """Return what `put_counts` has written, empty if there is nothing."""
        try:
            with self._opened() as folder:
                return folder.read(_COUNTS, _NOTE_MAX_BYTES)
        except SinkError as error:
            if error.errno != errno.ENOENT:
                raise
            return b""

    def put_counts(self, data: bytes) -> None:
        """Write how often each trigger fired."""
        with self._opened(make=True) as folder:
            folder.put(_COUNTS, data)

    def evict(
        self,
        *,
        keep: int,
        most_bytes: int,
        age_ns: int,
        now_ns: int,
        short: bool = False,
    ) -> tuple[list[str], list[Kept]]:
        """Delete the oldest incidents until the limits hold; return their names, and the others.

        The newest one always stays.

        Args:
            keep: the most that are kept.
            most_bytes: the most that they take, 0 for no limit.
            age_ns: of the oldest, 0 for no limit.
            now_ns: UTC.
            short: the disk has too little free space: one more goes.
        """
        kept = self.kept()
        used_bytes, left = sum(one.bytes for one in kept), len(kept)
        gone: list[str] = []
        stay: list[Kept] = []
        for one in kept[:-1]:
            old = age_ns and one.note is not None and now_ns - one.note.fired_ns > age_ns
            over = left > keep or (most_bytes and used_bytes > most_bytes)
            if not (old or over or (short and not gone)):
                stay.append(one)
                continue
            with self._opened() as folder:
                _delete(folder, one.id)
            used_bytes -= one.bytes
            left -= 1
            gone.append(one.id)
        return gone, stay + kept[-1:]

    # Others read by these. All raise SinkError.

    def kept(self) -> list[Kept]:
        """Return all incidents, oldest first."""
        try:
            with self._opened() as folder:
                names = [name for name, _, is_folder in folder.entries() if is_folder]
                return [_kept(folder, name) for name in names if _ID.fullmatch(name)]
        except SinkError as error:
            if error.errno != errno.ENOENT:
                raise
            return []

    def find(self, name: str) -> Kept:
        """Return the incident of this name, or the last finished one for LAST.

        A fingerprint of an alert is a name of the last incident that is of it.

        Raises:
            UsageError: there is none.
        """
        kept = self.kept()
        if name == LAST:
            kept = [one for one in kept if one.note is not None]
            if not kept:
                raise UsageError(
                    f"there is no incident in {self.path}",
                    hint="`collectord incident trigger` makes one",
                )
            return kept[-1]
        for one in reversed(kept):
            alerts = one.note.alerts if one.note is not None else ()
            if one.id == name or name in {alert.fingerprint for alert in alerts}:
                return one
        hint = "`collectord incident list` shows those that are kept"
        raise UsageError(f"no incident {name!r}", hint=hint)

    def read(self, name: str, file: str, limit_bytes: int) -> bytes:
        """Return a file of an incident. Raises UnsafePath if it has more than `limit_bytes`."""
        above, _, last = file.rpartition("/")
        with self._opened() as folder, folder.enter(name) as incident:
            if not above:
                return incident.read(last, limit_bytes)
            with incident.enter(above) as own:
                return own.read(last, limit_bytes)

    def files(self, name: str) -> Iterator[tuple[str, int]]:
        """Yield each file of an incident: its path there, and a descriptor, open so long."""
        with self._opened() as folder, folder.enter(name) as incident:
            for below, own in _folders(incident):
                with own:
                    for entry in own.entries():
                        if entry.is_file and not entry.name.startswith("."):
                            fd = own.open(entry.name)
                            try:
                                yield f"{below}{entry.name}", fd
                            finally:
                                os.close(fd)

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[Folder]:
        mode = DIRECTORY_MODE if make else None
        with (
            sink_errors("cannot use the folder of incidents", self.path),
            open_folder(self.path, Trust.WRITE, make_mode=mode) as folder,
        ):
            yield folder


def _own(incident: Folder, name: str) -> Folder:
    """Return a folder in an incident, which is made if it does not exist."""
    try:
        return incident.make_folder(name, DIRECTORY_MODE)
    except FileExistsError:
        return incident.enter(name)


def _files_of(source: Folder, wanted: Collection[str]) -> Iterator[str]:
    """Yield the names of sealed segments, of their manifests and of what is kept beside them."""
    for group in group_files(source):
        if group.paths.name in wanted:
            for suffix in sorted(group.suffixes):
                if suffix in {"", MANIFEST} or suffix.endswith(BESIDE_END):
                    yield group.paths.name + suffix


def _not_linked(directory: Path, wanted: Collection[str], error: Exception) -> str:
    names = ", ".join(sorted(wanted))
    if isinstance(error, OSError) and error.errno == errno.EXDEV:
        return f"{names} is on another file system: it is in {directory} alone"
    return f"{names} of {directory} is not in the incident: {error}"


def _kept(folder: Folder, name: str) -> Kept:
    size_bytes = 0
    note = None
    with suppress(OSError, UnsafePath), folder.enter(name) as incident:
        for _, own in _folders(incident):
            with own:
                for entry in own.entries():
                    status = own.stat(entry.name) if entry.is_file else None
                    if status is not None:
                        size_bytes += status.st_blocks * BLOCK_BYTES // max(status.st_nlink, 1)
        with suppress(msgspec.MsgspecError):
            note = decode_json(incident.read(NOTE, _NOTE_MAX_BYTES), IncidentNote)
    return Kept(name, size_bytes, note if note is not None and note.id == name else None)


def _folders(incident: Folder) -> Iterator[tuple[str, Folder]]:
    """Yield an incident's folder and those in it, with what precedes the names in each."""
    yield "", incident.enter(".")
    for entry in incident.entries():
        if entry.is_folder:
            yield f"{entry.name}/", incident.enter(entry.name)


def _delete(folder: Folder, name: str) -> None:
    """Delete an incident, its note first: what a kill leaves is unfinished."""
    with folder.enter(name) as incident:
        incident.give_up(NOTE)
        for entry in incident.entries():
            if not entry.is_folder:
                incident.give_up(entry.name)
                continue
            with incident.enter(entry.name) as own:
                for inner in own.entries():
                    own.give_up(inner.name)
            incident.remove_folder(entry.name)
    folder.remove_folder(name)
