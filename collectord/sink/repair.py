# SPDX-License-Identifier: Apache-2.0
"""Sink stage: seal what a killed process left behind, or finish what it had nearly sealed.

Runs on start and for `collectord segments repair`. It may run again after it was killed at any
point, and beside a running daemon: a segment that is being written is locked by its writer.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from collectord.errors import CodecError, SinkError
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.model import Basis, ClockReading
from collectord.sink.formats import begins_as_ours, open_stored
from collectord.sink.manifest import (
    COUNT_MAX,
    SCHEMA,
    Clocks,
    Damage,
    Link,
    Manifest,
    OpenManifest,
    RingEntry,
    common_fields,
    damage,
    decode,
    encode,
    foreign_schema,
    layout_faults,
    link,
)
from collectord.sink.segment import (
    MANIFEST,
    PARTIAL,
    Group,
    SegmentPaths,
    group_files,
    lock,
    publish,
    publish_data,
    read_manifest,
    read_other_manifest,
    remove,
    run,
    session_folder,
    session_names,
    sink_errors,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from collectord.folders.folder import Folder
    from collectord.sink.stored import StoredFile, Survey

_RECOVERED: Final = ".recovered"
_UNKNOWN_CLOCK: Final = ClockReading(monotonic_ns=0, realtime_ns=0, perf_ns=0, bracket_ns=0)


class Action(StrEnum):
    """The outcome of a repair. DAMAGED: the file is sealed, its manifest cannot be read."""

    RECOVERED = "recovered"
    COMPLETED = "completed"
    REMOVED = "removed"
    IN_USE = "in_use"
    REFUSED = "refused"
    DAMAGED = "damaged"
    FAILED = "failed"


# Something is wrong that stays so.
UNREPAIRED: Final = frozenset({Action.REFUSED, Action.DAMAGED, Action.FAILED})


@dataclass(frozen=True, slots=True)
class Outcome:
    """One file that a repair came to.

    Attributes:
        path: the sealed segment of RECOVERED and COMPLETED, else the file as it was found.
        detail: one line for the user.
        samples: what a recovered segment holds.
        bytes: its size.
        allocated_bytes: blocks that it occupies.
        set_aside: a manifest that nobody can read, where it is by now; None without.
    """

    path: Path
    action: Action
    detail: str
    samples: int = 0
    bytes: int = 0
    allocated_bytes: int = 0
    set_aside: Path | None = None

    @property
    def damaged(self) -> bool:
        """Whether something is wrong that no repair makes good."""
        return self.action in UNREPAIRED or self.set_aside is not None


class _Orphan(NamedTuple):
    """A data file whose writer died."""

    folder: Folder
    source: SegmentPaths
    fd: int
    file: StoredFile
    opened: OpenManifest | None
    found: Survey
    damage: Damage | None  # of the open manifest


def repair(root: Path) -> list[Outcome]:
    """Repair all segments in `root` and in the session directories directly below it.

    Files that are no segments are left alone and not mentioned; what cannot be repaired is told
    as REFUSED or FAILED and does not keep the others from their repair.

    Raises:
        SinkError: `root` cannot be read, or is a folder that a repair must not write to.
    """
    outcomes: list[Outcome] = []
    with sink_errors("cannot read the directory", root, reading=True):
        opened = open_folder(root, Trust.WRITE)
    with opened:
        for name in session_names(opened):
            try:
                with session_folder(opened, name) as folder:
                    outcomes += _repair_all(folder)
            except SinkError as error:
                outcomes.append(Outcome(root / name, Action.FAILED, str(error)))
    return outcomes


def _repair_all(folder: Folder) -> Iterator[Outcome]:
    """Repair what a folder holds itself. Raises SinkError if it cannot be read."""
    for group in group_files(folder):
        try:
            with sink_errors("cannot repair the segment", group.paths.partial):
                outcome = run(repair_steps(folder, group))
        except SinkError as error:
            outcome = Outcome(group.paths.partial, Action.FAILED, str(error))
        if outcome is not None:
            yield outcome


def make_way(folder: Folder, paths: SegmentPaths) -> None:
    """Seal what an earlier recording to the same file left behind.

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
        raise SinkError("in the way", path=str(paths.partial), errno=errno.EEXIST, hint=hint)


def repair_steps(folder: Folder, group: Group) -> Generator[str, None, Outcome | None]:
    """Repair one segment of a folder, yielding after each step that a kill may follow.

    Returns:
        None where there was nothing to do, or somebody else did it meanwhile.
    """
    paths = group.paths
    try:
        fd = folder.open(paths.partial.name, write=True)
    except FileNotFoundError:
        # A segment's data file is created first, so what was listed beside it is left over.
        return _remove_leftovers(folder, group)
    try:
        if not lock(fd):
            return Outcome(paths.partial, Action.IN_USE, "it is being written")
        if not folder.is_named(paths.partial.name, fd):
            return None  # somebody sealed or removed it before the lock
        return (yield from _repair_locked(folder, paths, fd))
    finally:
        os.close(fd)


def _repair_locked(folder: Folder, paths: SegmentPaths, fd: int) -> Generator[str, None, Outcome]:
    open_raw = read_manifest(folder, paths.open_manifest)
    sealed_raw = read_manifest(folder, paths.manifest)
    opened, sealed = decode(open_raw, OpenManifest), decode(sealed_raw, Manifest)
    schema = foreign_schema(open_raw)
    if schema is not None:
        return _refused(paths, f"its manifest has schema {schema}, this version knows {SCHEMA}")
    damaged = damage(open_raw, OpenManifest)
    if opened is None and sealed is None and not paths.rotated:
        reason = f"its manifest is damaged: {damaged.reason}" if damaged else "it has no manifest"
        return _refused(paths, f"no segment of this program: {reason}")
    try:
        file = open_stored(fd, paths.set_format)
    except CodecError as error:
        return _without_head(folder, paths, fd, error, known=opened is not None)
    if sealed is not None and _was_sealed(sealed, opened, file, fd):
        yield from publish_data(folder, paths, paths)
        return Outcome(
            path=paths.data,
            action=Action.COMPLETED,
            detail="it was sealed but for its name",
            samples=sealed.samples,
            bytes=sealed.bytes,
            allocated_bytes=sealed.allocated_bytes,
        )
    found = file.survey()
    orphan = _Orphan(folder, paths, fd, file, opened, found, damaged)
    return (yield from _repair_orphan(orphan))


def _repair_orphan(orphan: _Orphan) -> Generator[str, None, Outcome]:
    folder, paths = orphan.folder, orphan.source
    if not orphan.found.bytes and not _has_sisters(folder, paths):
        remove(folder, paths)
        return Outcome(paths.partial, Action.REMOVED, "it held no record")
    contradiction = _contradiction(orphan)
    if contradiction:
        hint = "move the manifest away, and a repair keeps what the data tell by themselves"
        return _refused(paths, f"{contradiction}; {hint}")
    target = paths
    while folder.stat(target.data.name) is not None:
        target = SegmentPaths(target.directory, target.name + _RECOVERED)
    return (yield from _seal(orphan, target))


def _contradiction(orphan: _Orphan) -> str:
    """Say what its manifest tells that cannot be: then it, or the data, is not what it seems."""
    opened, file = orphan.opened, orphan.file
    if orphan.damage is not None and orphan.damage.readable:
        return f"its manifest cannot be true: {orphan.damage.reason}"
    if opened is None:
        return ""
    if (opened.format, opened.data_offset) != (file.format, file.data_offset):
        return (
            f"its manifest tells of {opened.format} with data at byte {opened.data_offset}, the "
            f"file is {file.format} with data at byte {file.data_offset}"
        )
    return "".join([*layout_faults(opened)][:1])


def _has_sisters(folder: Folder, paths: SegmentPaths) -> bool:
    """Whether other files of a set hold something: then an empty one stays in its place."""
    if not paths.set_format:
        return False
    for entry in folder.entries():
        name = entry.name.removesuffix(PARTIAL)
        if name == paths.name or SegmentPaths(folder.path, name).set_name != paths.set_name:
            continue
        status = folder.stat(entry.name)
        if status is not None and status.st_size:
            return True
    return False


def _seal(orphan: _Orphan, target: SegmentPaths) -> Generator[str, None, Outcome]:
    """Seal it as `target`, which differs from its own name where that is taken."""
    folder, found = orphan.folder, orphan.found
    file = yield from orphan.file.finish(found)
    opened = orphan.opened or _without_manifest(orphan)
    before = _before(folder, target)
    run_so_far = _sealed_of_run(folder, target, opened.run)
    stored_before = [opened.stored_before, *(m.stored_before + m.samples for m in run_so_far)]
    manifest = Manifest(
        **common_fields(opened)
        | {
            "segment": target.name,
            "rings": _with_totals(_rings(opened, orphan), run_so_far),
            "stored_before": min(max(stored_before), COUNT_MAX),
        },
        complete=False,
        recovered=True,
        first_ns=found.first_ns,
        last_ns=found.last_ns,
        records=None,
        samples=found.samples,
        replayed=None,
        produced=None,
        ledger={"basis": str(Basis.NONE), "produced": None, "stored": found.samples},
        lost_samples={},
        bytes=file.bytes,
        allocated_bytes=file.allocated_bytes,
        data_bytes=file.data_bytes,
        spans=file.spans,
        build_ids={},
        previous=before,
    )
    why = f" ({found.reason})" if found.reason else ""
    detail = f"{found.samples} samples kept, {found.cut_bytes} bytes behind them cut off{why}"
    set_aside = None
    if orphan.damage is not None:
        set_aside = target.damaged_manifest
        folder.rename(orphan.source.open_manifest.name, set_aside.name)
        why = orphan.damage.reason
        detail += f"; its open manifest was damaged ({why}), and is {set_aside.name} now"
        yield "damaged manifest set aside"
    yield from publish(folder, orphan.source, target, encode(manifest))
    return Outcome(
        path=target.data,
        action=Action.RECOVERED,
        detail=detail,
        samples=found.samples,
        bytes=file.bytes,
        allocated_bytes=file.allocated_bytes,
        set_aside=set_aside,
    )


def _rings(opened: OpenManifest, orphan: _Orphan) -> tuple[RingEntry, ...]:
    """Enter what is kept of rings that have a part of the file for themselves."""
    offsets, tracks = orphan.file.offsets, orphan.found.tracks
    return tuple(
        msgspec.structs.replace(
            entry, samples=track.samples, bytes=track.bytes, offset=offsets[entry.cpu]
        )
        if entry.cpu in offsets and (track := tracks.get(entry.cpu))
        else entry
        for entry in opened.rings
    )


def _was_sealed(sealed: Manifest, opened: OpenManifest | None, file: StoredFile, fd: int) -> bool:
    """The manifest is of this very file, which had all its bytes."""
    if opened is not None and opened.started_ns != sealed.started_ns:
        return False
    same_size = os.fstat(fd).st_size == sealed.bytes
    return same_size and file.data_bytes == sealed.data_bytes


def _without_head(
    folder: Folder, paths: SegmentPaths, fd: int, error: CodecError, *, known: bool
) -> Outcome:
    """A file whose head does not parse: its creation was cut short, or it is none of ours."""
    if known or (os.fstat(fd).st_size and not begins_as_ours(fd)):
        return _refused(paths, f"its head is damaged: {error}")
    remove(folder, paths)
    return Outcome(paths.partial, Action.REMOVED, "it was cut short while it was created")


def _without_manifest(orphan: _Orphan) -> OpenManifest:
    """What can be said of an orphan whose open manifest is gone."""
    return OpenManifest(
        format=orphan.file.format,
        segment=orphan.source.name,
        host="",
        boot_id="",
        kernel="",
        session="",
        source=orphan.file.source,
        scope="",
        started_ns=max(os.fstat(orphan.fd).st_mtime_ns, 0),
        direct=False,
        data_offset=orphan.file.data_offset,
        events=orphan.file.events,
        rings=(),
        clocks=Clocks(open=_UNKNOWN_CLOCK),
    )


def _before(folder: Folder, paths: SegmentPaths) -> Link | None:
    """Refer to the newest manifest before this one's in the folder: what it is chained to."""
    if not paths.rotated:
        return None
    before = [
        group.paths.manifest
        for group in group_files(folder)
        if group.paths.format == paths.format
        and MANIFEST in group.suffixes
        and group.paths < paths
    ]
    raw = read_other_manifest(folder, before[-1]) if before else b""
    return link(before[-1].name, raw) if raw else None


def _sealed_of_run(folder: Folder, paths: SegmentPaths, name: str) -> list[Manifest]:
    """Manifests of the run, to count on from: each may be sealed after this one's creation."""
    if not paths.rotated or not name:
        return []
    manifests = [
        decode(read_other_manifest(folder, group.paths.manifest), Manifest)
        for group in group_files(folder)
        if group.paths.format == paths.format and group.paths != paths
    ]
    return [manifest for manifest in manifests if manifest is not None and manifest.run == name]


def _with_totals(
    rings: tuple[RingEntry, ...], run_so_far: list[Manifest]
) -> tuple[RingEntry, ...]:
    """Count on for each ring. Its number is of one process; where it is stays."""
    before: Counter[tuple[str, int, int]] = Counter()
    for entry in (entry for manifest in run_so_far for entry in manifest.rings):
        before[_place(entry)] = max(before[_place(entry)], entry.stored_total)
    return tuple(
        msgspec.structs.replace(
            entry,
            stored_total=min(
                max(entry.stored_total, before[_place(entry)]) + entry.samples, COUNT_MAX
            ),
        )
        for entry in rings
    )


def _place(entry: RingEntry) -> tuple[str, int, int]:
    return entry.role, entry.cpu, entry.tid


def _remove_leftovers(folder: Folder, group: Group) -> Outcome | None:
    """Clear what lies beside a segment that is sealed, was discarded, or was evicted."""
    paths = group.paths
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
    return Outcome(paths.data, Action.REMOVED, "it was deleted, and its manifest is now")


def _refused(paths: SegmentPaths, reason: str) -> Outcome:
    return Outcome(paths.partial, Action.REFUSED, f"left alone: {reason}")
