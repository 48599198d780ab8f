# SPDX-License-Identifier: Apache-2.0
"""The sealed segments of a host that have yet to be shipped, in the order in which they are."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from collectord.errors import SinkError
from collectord.fleet.store_keys import CommitKey, day_of, source_of
from collectord.folders.walk import open_folder
from collectord.sink import chain_log
from collectord.sink.manifest import Manifest, data_times, decode, sealed_text
from collectord.sink.segment import (
    MANIFEST,
    Group,
    SegmentPaths,
    group_files,
    read_other_manifest,
    sink_errors,
)
from collectord.sink.ship_note import form_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.fleet.commit import Rule
    from collectord.fleet.redaction import Redaction
    from collectord.folders.folder import Folder
    from collectord.sink.ship_note import ShipNote, StreamNote

_MAX: Final = 1 << 63  # a manifest may say anything
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Target(NamedTuple):
    """The rules by which a session is shipped.

    Attributes:
        session: its name.
        directory: of its segments.
        rule: what is shipped.
        by_incident: rows are shipped only of what belongs to an incident.
        redaction: what is left out or replaced.
    """

    session: str
    directory: Path
    rule: Rule
    by_incident: bool
    redaction: Redaction


class Sealed(NamedTuple):
    """A sealed segment: its files, with their manifests.

    Attributes:
        paths: of the files, by their numbers.
        manifests: of them, as they are now.
        texts: of the manifests as they were sealed, as far as that can be told.
        source: by which it is named in the store.
        earlier: the source of the one that was sealed before it, "" if there is none.
    """

    paths: tuple[SegmentPaths, ...]
    manifests: tuple[Manifest, ...]
    texts: tuple[str, ...]
    source: str
    earlier: str

    @property
    def manifest(self) -> Manifest:
        """The manifest of the first file, which tells what they have in common."""
        return self.manifests[0]

    @property
    def form(self) -> str:
        """The format, of a set without the number."""
        return form_of(self.paths[0])

    @property
    def earlier_number(self) -> int:
        """The number of the one that was sealed before it, 0 if there is none."""
        before = self.manifest.previous
        if before is None:
            return 0
        return SegmentPaths(Path(), before.manifest.removesuffix(MANIFEST)).sequence

    @property
    def times(self) -> tuple[int, int] | None:
        """UTC of the first and the last record; None if no record has a time."""
        found = [data_times(one, one.first_ns, one.last_ns) for one in self.manifests]
        known = [times for times in found if times is not None and 0 < times[0] <= times[1] < _MAX]
        if not known:
            return None
        return min(first for first, _ in known), max(last for _, last in known)

    @property
    def date(self) -> str:
        """The day of its keys."""
        times = self.times
        return day_of(times[0] if times is not None else min(self.manifest.started_ns, _MAX))

    def key(self, host: str) -> str:
        """Return the key of its commit."""
        return CommitKey(self.date, host, self.source).key


class Unreadable(NamedTuple):
    """A segment of which nothing tells what it is."""

    paths: tuple[SegmentPaths, ...]
    reason: str


def pending(target: Target, note: ShipNote) -> Iterator[Sealed | Unreadable]:
    """Yield the segments of a session that are not done, those of a format in their order.

    Behind one that is not sealed yet none of its format comes: commits follow each other as
    segments do. A repair at the start of a daemon seals what a killed one has left.

    Raises:
        SinkError: the folder cannot be read.
    """
    directory = target.directory
    with sink_errors("cannot read the directory", directory, reading=True):
        try:
            folder = open_folder(directory)
        except FileNotFoundError:
            return  # nothing was recorded yet
    with folder:
        streams: dict[str, dict[str, list[Group]]] = {}
        for group in group_files(folder):
            if group.paths.rotated:
                of_form = streams.setdefault(form_of(group.paths), {})
                of_form.setdefault(group.paths.set_name, []).append(group)
        for form, sets in streams.items():
            done = note.stream(directory, form)
            for groups in sorted(sets.values(), key=_age):
                paths = tuple(group.paths for group in groups)
                if done is not None and all(done.is_done(one) for one in paths):
                    continue
                if not all(group.sealed for group in groups):
                    break
                found = _read(folder, paths)
                # Retention may have deleted it since, and part of it before.
                if all(folder.stat(one.data.name) is not None for one in paths):
                    yield found


def deleted_before(segment: Sealed, done: StreamNote | None) -> int:
    """Count the segments of a stream that retention deleted before their turn came.

    The list in the folder names them. Of those that it names no more the numbers are known.

    Args:
        segment: the one that is next.
        done: what was done of the stream before.

    Raises:
        OSError: the list cannot be read.
    """
    first = segment.paths[0]
    with open_folder(first.directory) as folder:
        log = chain_log.read(folder)
    if log is None:
        return 0
    deleted = {
        paths.set_name
        for paths in (
            SegmentPaths(first.directory, entry.segment)
            for entry in log.entries.values()
            if entry.unshipped
        )
        if form_of(paths) == segment.form
        and paths.sequence < first.sequence
        and (done is None or not done.is_done(paths))
    }
    older = log.older.last.get(first.format, 0) if log.older is not None else 0
    return len(deleted) + (max(older - done.sequence, 0) if done is not None else 0)


def _age(groups: Sequence[Group]) -> tuple[int, str]:
    return groups[0].paths.sequence, groups[0].paths.name


def _read(folder: Folder, paths: tuple[SegmentPaths, ...]) -> Sealed | Unreadable:
    """Read the manifests of a segment."""
    ordered = tuple(sorted(paths, key=lambda one: one.set_number))
    manifests: list[Manifest] = []
    sealed: list[tuple[str, str]] = []
    for one in ordered:
        try:
            with sink_errors("cannot read the manifest", one.manifest, reading=True):
                raw = read_other_manifest(folder, one.manifest)
        except SinkError as error:
            return Unreadable(ordered, str(error))
        manifest = decode(raw, Manifest)
        if manifest is None:
            return Unreadable(ordered, f"{one.manifest} is no manifest that this version reads")
        manifests.append(manifest)
        sealed.append(_as_sealed(manifest, raw))
    before = [one.previous.sha256 if one.previous else "" for one in manifests]
    return Sealed(
        paths=ordered,
        manifests=tuple(manifests),
        texts=tuple(text for text, _ in sealed),
        source=source_of([source for _, source in sealed]),
        earlier=source_of(before) if all(before) else "",
    )


def _as_sealed(manifest: Manifest, raw: bytes) -> tuple[str, str]:
    """Return {text, hash} of a manifest as it was sealed.

    A compression or a repair has replaced it: the first one's hash is the segment's name for
    good. After a repair its text is not known any more, and is that of now.
    """
    replaced = manifest.replaced
    text = raw.decode(errors="replace")
    if not replaced or _SHA256.fullmatch(replaced[0]) is None:
        return text, hashlib.sha256(raw).hexdigest()
    try:
        first = sealed_text(raw)
    except msgspec.DecodeError:
        return text, replaced[0]
    is_first = hashlib.sha256(first).hexdigest() == replaced[0]
    return (first.decode() if is_first else text), replaced[0]
