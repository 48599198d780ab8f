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
from collectord.model import Basis, ClockReading
from collectord.sink.formats import begins_as_ours, open_stored
from collectord.sink.manifest import (
    SCHEMA,
    Clocks,
    Manifest,
    OpenManifest,
    RingEntry,
    common_fields,
    decode,
    encode,
    foreign_schema,
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
    remove,
    run,
    segment_directories,
    sink_errors,
)

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from collectord.sink.stored import StoredFile, Survey

_RECOVERED: Final = ".recovered"
_UNKNOWN_CLOCK: Final = ClockReading(monotonic_ns=0, realtime_ns=0, perf_ns=0, bracket_ns=0)


class Action(StrEnum):
    """What a repair did with a file."""

    RECOVERED = "recovered"
    COMPLETED = "completed"
    REMOVED = "removed"
    IN_USE = "in_use"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One file that a repair came to.

    Attributes:
        path: the sealed segment of RECOVERED and COMPLETED, else the file as it was found.
        detail: one line for the user.
        samples: what a recovered segment holds.
        bytes: its size.
        allocated_bytes: blocks that it occupies.
    """

    path: Path
    action: Action
    detail: str
    samples: int = 0
    bytes: int = 0
    allocated_bytes: int = 0


class _Orphan(NamedTuple):
    """A data file whose writer died. `target` differs from `source` where its name is taken."""

    source: SegmentPaths
    target: SegmentPaths
    fd: int
    file: StoredFile
    opened: OpenManifest | None
    found: Survey


def repair(root: Path) -> list[Outcome]:
    """Repair all segments in `root` and in the session directories directly below it.

    Files that are no segments are left alone and not mentioned; what cannot be repaired is told
    as REFUSED or FAILED and does not keep the others from their repair.

    Raises:
        SinkError: `root` cannot be read.
    """
    outcomes = []
    for directory in segment_directories(root):
        try:
            groups = group_files(directory)
        except SinkError as error:
            outcomes.append(Outcome(directory, Action.FAILED, str(error)))
            continue
        for group in groups:
            try:
                with sink_errors("cannot repair the segment", group.paths.partial):
                    outcome = run(repair_steps(group))
            except SinkError as error:
                outcome = Outcome(group.paths.partial, Action.FAILED, str(error))
            if outcome is not None:
                outcomes.append(outcome)
    return outcomes


def make_way(paths: SegmentPaths) -> None:
    """Seal what an earlier recording to the same file left behind.

    Raises:
        SinkError: another recording writes the file, or its remains cannot be repaired.
    """
    outcome = run(repair_steps(Group(paths, frozenset({PARTIAL}))))
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


def repair_steps(group: Group) -> Generator[str, None, Outcome | None]:
    """Repair one segment, yielding after each step that a kill may follow.

    Returns:
        None where there was nothing to do, or somebody else did it meanwhile.
    """
    paths = group.paths
    try:
        fd = os.open(paths.partial, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # A segment's data file is created first, so what was listed beside it is left over.
        return _remove_leftovers(group)
    try:
        if not lock(fd):
            return Outcome(paths.partial, Action.IN_USE, "it is being written")
        if not _is_still(paths.partial, fd):
            return None
        return (yield from _repair_locked(paths, fd))
    finally:
        os.close(fd)


def _repair_locked(paths: SegmentPaths, fd: int) -> Generator[str, None, Outcome]:
    open_raw, sealed_raw = _read(paths.open_manifest), _read(paths.manifest)
    schema = foreign_schema(open_raw)
    if schema is not None:
        return _refused(paths, f"its manifest has schema {schema}, this version knows {SCHEMA}")
    opened, sealed = decode(open_raw, OpenManifest), decode(sealed_raw, Manifest)
    if opened is None and sealed is None and not paths.rotated:
        return _refused(paths, "no segment of this program: it has no manifest")
    try:
        file = open_stored(fd, paths.set_format)
    except CodecError as error:
        return _without_head(paths, fd, error, known=opened is not None)
    if sealed is not None and _was_sealed(sealed, opened, file, fd):
        yield from publish_data(paths, paths)
        return Outcome(
            path=paths.data,
            action=Action.COMPLETED,
            detail="it was sealed but for its name",
            samples=sealed.samples,
            bytes=sealed.bytes,
            allocated_bytes=sealed.allocated_bytes,
        )
    found = file.survey()
    if not found.bytes and not _has_sisters(paths):
        remove(paths)
        return Outcome(paths.partial, Action.REMOVED, "it held no record")
    target = paths
    while target.data.exists():
        target = SegmentPaths(target.directory, target.name + _RECOVERED)
    return (yield from _seal(_Orphan(paths, target, fd, file, opened, found)))


def _has_sisters(paths: SegmentPaths) -> bool:
    """Whether other files of a set hold something: then an empty one stays in its place."""
    if not paths.set_format:
        return False
    for entry in paths.directory.iterdir():
        name = entry.name.removesuffix(PARTIAL)
        sister = SegmentPaths(paths.directory, name)
        if name != paths.name and sister.set_name == paths.set_name and entry.stat().st_size:
            return True
    return False


def _seal(orphan: _Orphan) -> Generator[str, None, Outcome]:
    target, found = orphan.target, orphan.found
    file = yield from orphan.file.finish(found)
    opened = orphan.opened or _without_manifest(orphan)
    before = _before(target)
    run_so_far = _sealed_of_run(target, opened.run)
    manifest = Manifest(
        **common_fields(opened)
        | {
            "segment": target.name,
            "rings": _with_totals(_rings(opened, orphan), run_so_far),
            "stored_before": max(
                [opened.stored_before, *(m.stored_before + m.samples for m in run_so_far)]
            ),
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
        previous=link(before.name, before.read_bytes()) if before is not None else None,
    )
    yield from publish(orphan.source, target, encode(manifest))
    why = f" ({found.reason})" if found.reason else ""
    return Outcome(
        path=target.data,
        action=Action.RECOVERED,
        detail=f"{found.samples} samples kept, {found.cut_bytes} bytes behind them cut off{why}",
        samples=found.samples,
        bytes=file.bytes,
        allocated_bytes=file.allocated_bytes,
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


def _without_head(paths: SegmentPaths, fd: int, error: CodecError, *, known: bool) -> Outcome:
    """A file whose head does not parse: its creation was cut short, or it is none of ours."""
    if known or (os.fstat(fd).st_size and not begins_as_ours(fd)):
        return _refused(paths, f"its head is damaged: {error}")
    remove(paths)
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
        started_ns=os.fstat(orphan.fd).st_mtime_ns,
        direct=False,
        data_offset=orphan.file.data_offset,
        events=orphan.file.events,
        rings=(),
        clocks=Clocks(open=_UNKNOWN_CLOCK),
    )


def _before(paths: SegmentPaths) -> Path | None:
    """Give the newest manifest before this one's in the directory: what it is chained to."""
    if not paths.rotated:
        return None
    before = [
        group.paths.manifest
        for group in group_files(paths.directory)
        if group.paths.format == paths.format
        and MANIFEST in group.suffixes
        and group.paths < paths
    ]
    return before[-1] if before else None


def _sealed_of_run(paths: SegmentPaths, name: str) -> list[Manifest]:
    """Manifests of the run, to count on from: each may be sealed after this one's creation."""
    if not paths.rotated or not name:
        return []
    manifests = [
        decode(_read(group.paths.manifest), Manifest)
        for group in group_files(paths.directory)
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
            stored_total=max(entry.stored_total, before[_place(entry)]) + entry.samples,
        )
        for entry in rings
    )


def _place(entry: RingEntry) -> tuple[str, int, int]:
    return entry.role, entry.cpu, entry.tid


def _remove_leftovers(group: Group) -> Outcome | None:
    """Clear what lies beside a segment that is sealed, was discarded, or was evicted."""
    paths = group.paths
    if not group.sealed:
        remove(paths)
    if paths.data.exists() or not paths.rotated:
        return None
    paths.manifest.unlink(missing_ok=True)
    return Outcome(paths.data, Action.REMOVED, "it was deleted, and its manifest is now")


def _refused(paths: SegmentPaths, reason: str) -> Outcome:
    return Outcome(paths.partial, Action.REFUSED, f"left alone: {reason}")


def _is_still(path: Path, fd: int) -> bool:
    """The path still names the open file: nobody sealed or removed it before the lock."""
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(fd))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
