# SPDX-License-Identifier: Apache-2.0
"""Sink stage: seal what a killed process left behind, or finish an interrupted seal.

It runs at start and for `collectord segments repair`. It may be killed at any point and run again,
and may run beside a daemon: a segment that is being written is locked by its writer.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from collectord.errors import CodecError, SinkError, UnsafePath
from collectord.folders.folder import opened
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.sink.formats import begins_as_ours, open_stored
from collectord.sink.manifest import (
    SCHEMA,
    Manifest,
    OpenManifest,
    damage,
    decode,
    foreign_schema,
)
from collectord.sink.orphan import Orphan, repair_orphan
from collectord.sink.outcome import Action, Outcome, refused
from collectord.sink.pack import remove_left
from collectord.sink.sealed_repair import mend_steps
from collectord.sink.segment import (
    PACKING,
    PARTIAL,
    Group,
    SegmentPaths,
    group_files,
    read_manifest,
    session_folder,
    session_names,
    sink_errors,
)
from collectord.sink.segment_lock import lock
from collectord.sink.segment_steps import publish_data, remove, run

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator
    from pathlib import Path

    from collectord.folders.folder import Folder
    from collectord.sink.stored_file import StoredFile


def repair(
    target: Path,
    *,
    sealed: bool = False,
    first: Callable[[Folder], bool | None] | None = None,
    names: Collection[str] = (),
) -> list[Outcome]:
    """Repair all segments in a folder and in the session folders directly below it, or one file.

    Files that are no segments are left alone and not mentioned. Segments that cannot be repaired
    are reported as REFUSED, DAMAGED or FAILED, and the others are repaired nevertheless.

    Args:
        target: the folder, or a segment's data file.
        sealed: also check the data of sealed segments, and cut out damage.
        first: called with each folder before its segments are repaired; True: they are not.
        names: of the segments to be repaired; empty for all.

    Raises:
        SinkError: the folder cannot be read, or a repair must not write to it.
    """
    outcomes: list[Outcome] = []
    only = target.name.removesuffix(PARTIAL) if target.is_file() else ""
    root = target.parent if only else target
    wanted = (only,) if only else names
    with sink_errors("cannot read the directory", root, reading=True):
        opened = open_folder(root, Trust.WRITE)
    with opened:
        for name in [""] if only else session_names(opened):
            try:
                with session_folder(opened, name) as folder:
                    if first is None or not first(folder):
                        outcomes += _repair_all(folder, wanted, sealed=sealed)
            except SinkError as error:
                outcomes.append(Outcome(root / name, Action.FAILED, str(error)))
    return outcomes


def _repair_all(folder: Folder, names: Collection[str], *, sealed: bool) -> Iterator[Outcome]:
    """Repair the segments of a folder, or some of them. Raises SinkError if it cannot be read."""
    for group in group_files(folder):
        if names and group.paths.name not in names:
            continue
        try:
            with sink_errors("cannot repair the segment", group.paths.partial):
                outcome = run(repair_steps(folder, group))
                if outcome is None and sealed and group.sealed:
                    outcome = run(mend_steps(folder, group))
        except SinkError as error:
            outcome = Outcome(group.paths.partial, Action.FAILED, str(error))
        if outcome is not None:
            yield outcome


def is_left(folder: Folder) -> bool:
    """Whether a killed process has left an unsealed segment in a folder; see `repair`.

    Raises:
        SinkError: the folder cannot be read.
    """
    names = [g.paths.partial.name for g in group_files(folder) if PARTIAL in g.suffixes]
    return any(_is_left(folder, name) for name in names)


def _is_left(folder: Folder, name: str) -> bool:
    with suppress(FileNotFoundError, UnsafePath), opened(folder.open(name, write=True)) as fd:
        return lock(fd)
    return False


def make_way(folder: Folder, paths: SegmentPaths) -> None:
    """Seal the remains of an earlier recording to the same file.

    Raises:
        SinkError: another recording writes the file, or its remains cannot be repaired.
    """
    outcome = run(repair_steps(folder, Group(paths, frozenset({PARTIAL}))))
    if outcome is not None and outcome.action is Action.IN_USE:
        raise SinkError(
            "another recording writes this file",
            path=str(paths.data),
            errno=errno.EBUSY,
            hint="choose another name",
        )
    if outcome is not None and outcome.action is Action.REFUSED:
        hint = f"{outcome.detail}; move it away, or choose another name"
        raise SinkError("is in the way", path=str(paths.partial), errno=errno.EEXIST, hint=hint)


def repair_steps(folder: Folder, group: Group) -> Generator[str, None, Outcome | None]:
    """Repair one segment of a folder, yielding after each step that a kill may follow.

    Returns:
        None if there was nothing to do, or somebody else did it meanwhile.
    """
    paths = group.paths
    try:
        fd = folder.open(paths.partial.name, write=True)
    except FileNotFoundError:
        # The data file of a segment is created first, so the files listed beside it are leftovers.
        return _remove_leftovers(folder, group)
    with opened(fd):
        if not lock(fd):
            return Outcome(paths.partial, Action.IN_USE, "it is being written")
        if not folder.is_named(paths.partial.name, fd):
            return None  # somebody sealed or removed it before the lock
        return (yield from _repair_locked(folder, paths, fd))


def _repair_locked(folder: Folder, paths: SegmentPaths, fd: int) -> Generator[str, None, Outcome]:
    open_raw = read_manifest(folder, paths.open_manifest)
    sealed_raw = read_manifest(folder, paths.manifest)
    opened, sealed = decode(open_raw, OpenManifest), decode(sealed_raw, Manifest)
    schema = foreign_schema(open_raw)
    if schema is not None:
        return refused(paths, f"its manifest has schema {schema}, this version knows {SCHEMA}")
    damaged = damage(open_raw, OpenManifest)
    if opened is None and sealed is None and not paths.rotated:
        reason = f"its manifest is damaged: {damaged.reason}" if damaged else "it has no manifest"
        return refused(paths, f"it is not a segment of collectord: {reason}")
    try:
        file = open_stored(fd, paths.set_format)
    except CodecError as error:
        return _without_head(folder, paths, fd, error, known=opened is not None)
    if sealed is not None and _was_sealed(sealed, opened, file, fd):
        yield from publish_data(folder, paths, paths)
        return Outcome(
            path=paths.data,
            action=Action.COMPLETED,
            detail="it was sealed, except for its name",
            samples=sealed.samples,
            bytes=sealed.bytes,
            allocated_bytes=sealed.allocated_bytes,
        )
    found = file.survey()
    orphan = Orphan(folder, paths, fd, file, opened, found, damaged)
    return (yield from repair_orphan(orphan))


def _was_sealed(sealed: Manifest, opened: OpenManifest | None, file: StoredFile, fd: int) -> bool:
    """Whether the manifest belongs to this very file, which had all its bytes."""
    if opened is not None and opened.started_ns != sealed.started_ns:
        return False
    same_size = os.fstat(fd).st_size == sealed.bytes
    return same_size and file.data_bytes == sealed.data_bytes


def _without_head(
    folder: Folder, paths: SegmentPaths, fd: int, error: CodecError, *, known: bool
) -> Outcome:
    """Handle a file with an invalid head: its creation was cut short, or it is foreign."""
    if known or (os.fstat(fd).st_size and not begins_as_ours(fd)):
        return refused(paths, f"its head is damaged: {error}")
    remove(folder, paths)
    return Outcome(paths.partial, Action.REMOVED, "it was cut short while it was created")


def _remove_leftovers(folder: Folder, group: Group) -> Outcome | None:
    """Remove the files beside a segment that is sealed, was discarded, or was evicted."""
    paths = group.paths
    if PACKING in group.suffixes:
        remove_left(folder, paths)
    if not group.sealed:
        remove(folder, paths)
    if not paths.rotated:
        return None
    if folder.stat(paths.data.name) is not None:
        found = damage(read_manifest(folder, paths.manifest), Manifest)
        if found is None:
            return None
        detail = f"its manifest is damaged, and the data are as they were sealed: {found.reason}"
        return Outcome(paths.data, Action.DAMAGED, detail)
    for path in (paths.open_manifest, paths.new_manifest, paths.manifest, paths.damaged_manifest):
        folder.give_up(path.name)
    return Outcome(
        paths.data, Action.REMOVED, "it was deleted before, and its manifest is deleted now"
    )
