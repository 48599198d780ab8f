# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the list in a session's folder of what was sealed there, and what retention deleted.

Manifests are chained by hash, each to the one before it. The list anchors both ends of the chain:
it names the newest manifest, and the oldest ones that were deleted on purpose. So a segment or a
manifest that somebody else removed, the first and the last included, is told from an evicted one.

It is a text with a JSON object in each line. A line is appended by one write, before the segment
gets its name or loses its files: after a kill in between, both are repeated.
A line that was cut short, by a power loss or a full disk, is passed over. The list is shortened
when it is long: of evicted segments the newest are named, and of the others a line keeps the sum.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec

from collectord.errors import UnsafePath
from collectord.folders.folder import opened, read_all, write_all
from collectord.sink.manifest import (
    Count,
    FileName,
    Gap,
    Manifest,
    TimeNs,
    decode,
    utc_at,
)
from collectord.text.foreign import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.folders.folder import Folder

NAME: Final = ".sealed"
# It is shortened to less than a half from this size on; it is not read beyond the second one.
_LONG_BYTES: Final = 1 << 20
_MAX_BYTES: Final = 64 << 20
_EVICTED_NAMED: Final = 500

Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A(?:[0-9a-f]{64})?\Z")]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line about a segment; of one that was sealed again, or evicted, the last line holds.

    Attributes:
        segment: name of the data file.
        sha256: of the manifest as it was sealed; "" if it could not be read.
        session, source, run: of the manifest.
        from_ns, until_ns: REALTIME; the times of its balance, or of its records; 0 if unknown.
        samples: the events in it.
        gap: the gap before its run, see `Common`.
        evicted: why retention has deleted it; "" for one that it has not.
        at_ns: when it did, REALTIME.
        unshipped: it was to be put into a store first, and was not yet.
    """

    segment: FileName
    sha256: Sha256 = ""
    session: str = ""
    source: str = ""
    run: str = ""
    from_ns: TimeNs = 0
    until_ns: TimeNs = 0
    samples: Count = 0
    gap: Gap | None = None
    evicted: str = ""
    at_ns: TimeNs = 0
    unshipped: bool = False


class Older(msgspec.Struct, frozen=True, kw_only=True):
    """The line about evicted segments that are not named any more.

    Attributes:
        older: their number; all have numbers up to that of `last`, by format.
        last: format to the highest number.
        until_ns: the end of the latest one, REALTIME.
    """

    older: Count
    last: dict[str, Count]
    until_ns: TimeNs


class ChainLog(NamedTuple):
    """The contents of the list.

    Attributes:
        entries: by name of the segment, in the order of their first lines.
        older: None unless evicted ones were left out.
        torn: lines that are no entries.
    """

    entries: dict[str, Entry]
    older: Older | None = None
    torn: int = 0

    def is_evicted(self, name: str, form: str, sequence: int) -> bool:
        """Whether retention has deleted a segment, by its name, format and number."""
        entry = self.entries.get(name)
        if entry is not None:
            return bool(entry.evicted)
        return self.older is not None and sequence <= self.older.last.get(form, 0)


def entry_of(name: str, raw: bytes) -> Entry:
    """Return the line about a segment, by the bytes of its manifest."""
    manifest = decode(raw, Manifest) if raw else None
    if manifest is None:
        return Entry(segment=name)
    from_ns, until_ns = span_of(manifest)
    return Entry(
        segment=name,
        sha256=hashlib.sha256(raw).hexdigest(),
        session=manifest.session,
        source=manifest.source,
        run=manifest.run,
        from_ns=from_ns,
        until_ns=until_ns,
        samples=manifest.samples,
        gap=manifest.gap,
    )


def span_of(manifest: Manifest) -> tuple[int, int]:
    """Return the time of a sealed segment in REALTIME: of its balance, else until its close.

    The end is 0 if nothing tells it.
    """
    since, until = (manifest.ledger.get(key) for key in ("since_ns", "until_ns"))
    clocks = manifest.clocks
    last = clocks.close or clocks.open
    opened_ns = clocks.open.realtime_ns or manifest.started_ns
    from_ns = utc_at(clocks.open, since) if isinstance(since, int) else opened_ns
    until_ns = utc_at(last, until) if isinstance(until, int) else last.realtime_ns
    if manifest.clocks.close is None and not isinstance(until, int):
        until_ns = 0
    return max(from_ns, 0), max(until_ns, 0)


def note_sealed(folder: Folder, name: str, manifest: bytes) -> None:
    """Append that a segment is sealed. Raises OSError, UnsafePath.

    Args:
        folder: where it is.
        name: of its data file.
        manifest: the bytes of its manifest.
    """
    _append(folder, [entry_of(name, manifest)])


def note_evicted(
    folder: Folder,
    segments: Iterable[tuple[str, bytes]],
    reason: str,
    at_ns: int,
    *,
    unshipped: bool = False,
) -> None:
    """Append that retention is about to delete segments, each with the bytes of its manifest.

    Raises OSError, UnsafePath.
    """
    told = {"evicted": reason, "at_ns": at_ns, "unshipped": unshipped}
    entries = [entry_of(name, manifest) for name, manifest in segments]
    _append(folder, [msgspec.structs.replace(entry, **told) for entry in entries])


def read(folder: Folder) -> ChainLog | None:
    """Read the list; None if there is none, or something else has its name. Raises OSError."""
    try:
        return _parse(folder.read(NAME, _MAX_BYTES))
    except (FileNotFoundError, UnsafePath):
        return None


def _parse(data: bytes) -> ChainLog:
    entries: dict[str, Entry] = {}
    older: Older | None = None
    torn = 0
    for line in data.splitlines():
        if not line.strip(b"\0 "):
            continue
        try:
            entry = decode_json(line, Entry)
        except msgspec.DecodeError:
            try:
                older = decode_json(line, Older)
            except msgspec.DecodeError:
                torn += 1
            continue
        known = entries.get(entry.segment)
        if known is not None and entry.evicted and not entry.sha256:
            # The manifest had gone before the data: what was known of it holds.
            told = {name: getattr(entry, name) for name in ("evicted", "at_ns", "unshipped")}
            entry = msgspec.structs.replace(known, **told)
        entries[entry.segment] = entry
    return ChainLog(entries, older, torn)


def _append(folder: Folder, entries: Iterable[Entry]) -> None:
    text = b"".join(encode_json(entry) + b"\n" for entry in entries)
    while True:
        fd = _opened(folder)
        with opened(fd):
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not folder.is_named(NAME, fd):
                continue  # it was shortened meanwhile
            size_bytes = os.fstat(fd).st_size
            # A line of which a power loss has left a part ends here.
            torn = size_bytes and os.pread(fd, 1, size_bytes - 1) != b"\n"
            write_all(fd, b"\n" + text if torn else text, size_bytes)
            os.fdatasync(fd)
            if size_bytes + len(text) > _LONG_BYTES:
                _shorten(folder, fd)
            return


def _opened(folder: Folder) -> int:
    while True:
        try:
            return folder.open(NAME, write=True)
        except FileNotFoundError:
            try:
                return folder.create(NAME)
            except FileExistsError:
                continue


def _shorten(folder: Folder, fd: int) -> None:
    """Replace the list by one that names fewer evicted segments, if that makes it shorter."""
    try:
        log = _parse(read_all(fd, folder.path / NAME, _MAX_BYTES))
    except UnsafePath:
        return
    evicted = [entry for entry in log.entries.values() if entry.evicted]
    gone = {entry.segment for entry in evicted[:-_EVICTED_NAMED]}
    if not gone:
        return
    last = dict(log.older.last) if log.older is not None else {}
    for entry in evicted[:-_EVICTED_NAMED]:
        form, number = format_and_number(entry.segment)
        last[form] = max(last.get(form, 0), number)
    older = Older(
        older=len(gone) + (log.older.older if log.older is not None else 0),
        last=last,
        until_ns=max(e.until_ns for e in evicted[:-_EVICTED_NAMED]),
    )
    kept: list[Any] = [older, *(e for e in log.entries.values() if e.segment not in gone)]
    folder.put(NAME, b"".join(encode_json(one) + b"\n" for one in kept))


def format_and_number(name: str) -> tuple[str, int]:
    """Return format and number of a segment that a session named; 0 for any other name."""
    _, _, rest = name.partition("-")
    number, _, form = rest.partition(".")
    return form.removesuffix(".recovered"), int(number) if number.isdigit() else 0
