# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the note of the shipper: which segments it has put into the store.

The shipper writes it, into a folder of its own, and the daemon's retention and metrics read it.
What it says can only let retention delete what its limits would delete without a shipper: so
nothing is lost by believing it, and its size and its numbers are limited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from collectord.errors import UnsafePath
from collectord.folders.walk import open_folder
from collectord.sink.chain_log import Sha256  # noqa: TC001 - msgspec reads annotations
from collectord.sink.manifest import Count, FileName, TimeNs  # noqa: TC001 - msgspec reads them
from collectord.text.foreign import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from collectord.sink.segment import SegmentPaths

NAME: Final = "shipped.json"
_MAX_BYTES: Final = 4 << 20
_STREAMS_MAX: Final = 4096

Word = Annotated[str, msgspec.Meta(max_length=256)]
Long = Annotated[str, msgspec.Meta(max_length=4096)]


class StreamNote(msgspec.Struct, frozen=True, kw_only=True):
    """How far the segments of one format in a folder are done: shipped, or passed over.

    Attributes:
        directory: the folder.
        format: of the segments; of a set of files, without the number.
        session: whose segments they are.
        segment: name of the last one that is done.
        sequence: its number.
        key, source, sha256: of the commit that was put last, "" if there is none.
        shipped, rows, bytes: segments, rows and bytes that were put, since the note was begun.
        passed_over: segments that are not shipped, by the rules of the session, or because they
            cannot be read.
        passed_since: those of them since the last commit.
    """

    directory: Long
    format: Word
    session: Word
    segment: FileName
    sequence: Count
    key: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    source: Sha256 = ""
    sha256: Sha256 = ""
    shipped: Count = 0
    rows: Count = 0
    bytes: Count = 0
    passed_over: Count = 0
    passed_since: Count = 0

    def is_done(self, paths: SegmentPaths) -> bool:
        """Whether a segment of the stream needs no shipping any more.

        Numbers begin anew in a folder that was deleted, but then the times in the names are later.
        """
        stamp, done = (name.partition("-")[0] for name in (paths.name, self.segment))
        return paths.sequence <= self.sequence and stamp <= done


class ShipNote(msgspec.Struct, frozen=True, kw_only=True):
    """The note.

    Attributes:
        written_ns: UTC.
        errors: what failed since the note was begun, by reason.
        incidents: those that were put last, the oldest first.
    """

    schema: int = 1
    written_ns: TimeNs
    streams: Annotated[tuple[StreamNote, ...], msgspec.Meta(max_length=_STREAMS_MAX)] = ()
    errors: Annotated[dict[Word, Count], msgspec.Meta(max_length=32)] = {}
    incidents: Annotated[tuple[Word, ...], msgspec.Meta(max_length=_STREAMS_MAX)] = ()

    def stream(self, directory: Path, form: str) -> StreamNote | None:
        """Return what is noted of the segments of a format in a folder."""
        for one in self.streams:
            if one.directory == str(directory) and one.format == form:
                return one
        return None


class Waiting(NamedTuple):
    """The segments that retention keeps until they are shipped.

    Attributes:
        folders: of the sessions that are shipped.
        note: None if there is none, or it cannot be read.
    """

    folders: frozenset[Path] = frozenset()
    note: ShipNote | None = None

    def has(self, paths: SegmentPaths) -> bool:
        """Whether a sealed segment has yet to be shipped."""
        if paths.directory not in self.folders or not paths.rotated:
            return False
        stream = self.note.stream(paths.directory, form_of(paths)) if self.note else None
        return stream is None or not stream.is_done(paths)


class Shipped(NamedTuple):
    """Figures of a session: segments that were shipped, and those that wait for it.

    Attributes:
        segments, rows, bytes: that were put, as the note has them.
        waiting: sealed segments that are kept and not shipped yet.
        waiting_bytes: disk space that they take.
        since_ns: UTC of the last write to the oldest of them; None if none waits.
        deleted: those that retention has deleted before they were shipped.
    """

    segments: int = 0
    rows: int = 0
    bytes: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    since_ns: int | None = None
    deleted: int = 0


class Shipping(NamedTuple):
    """Figures by session, and failures by reason; empty if nothing is shipped."""

    sessions: Mapping[str, Shipped] = {}
    errors: Mapping[str, int] = {}


def form_of(paths: SegmentPaths) -> str:
    """Return the format of a segment; of a set of files, without the number."""
    return paths.set_kind or paths.format


def read(directory: Path) -> ShipNote | None:
    """Read the note in a folder; None if there is none, or it is damaged or none of ours."""
    try:
        with open_folder(directory) as folder:
            note = decode_json(folder.read(NAME, _MAX_BYTES), ShipNote)
    except (OSError, UnsafePath, msgspec.DecodeError):
        return None
    return note if note.schema == 1 else None


def write(directory: Path, note: ShipNote) -> None:
    """Replace the note in a folder. Raises OSError, UnsafePath."""
    with open_folder(directory) as folder:
        folder.put(NAME, encode_json(note))
