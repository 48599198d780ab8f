# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the oldest segments are deleted so that the limits of the state directory hold."""

from __future__ import annotations

import os
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from collectord.codec.file_formats import TRACE_DAT
from collectord.errors import SinkError, UnsafePath
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.model import EvictReason
from collectord.plan.sink_plan import HoldPlan
from collectord.sink import chain_log
from collectord.sink.segment import (
    BLOCK_BYTES,
    MANIFEST,
    Group,
    group_files,
    read_other_manifest,
    session_folder,
    session_names,
    sink_errors,
)
from collectord.sink.ship_note import Waiting
from collectord.text.units import Least

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from collectord.folders.folder import Folder
    from collectord.plan.sink_plan import RetentionPlan

_LOG = structlog.get_logger()
_NO_HOLD: Final = HoldPlan()


class Eviction(NamedTuple):
    """A segment that was deleted with its manifest; `bytes` are allocated ones.

    `unshipped`: it was to be put into a store, and was not yet.
    """

    path: Path
    reason: EvictReason
    bytes: int
    unshipped: bool = False


class _Held(NamedTuple):
    """A segment, or all files of a set, which are deleted together.

    `place` is the name of its folder, and `device` the file system that it is on. `waits`: it is
    to be shipped first.
    """

    place: str
    device: int
    groups: tuple[Group, ...]
    bytes: int
    written_ns: int
    waits: bool


def evict(
    root: Path,
    plan: RetentionPlan,
    now_ns: int,
    need_bytes: int = 0,
    left: Collection[Path] = (),
    *,
    device: int | None = None,
    is_here: Callable[[int], bool] = lambda _device: True,
    waiting: Waiting | None = None,
) -> list[Eviction]:
    """Delete the oldest sealed segments of all sessions below `root` until the limits hold.

    Segments that are being written count towards the quota but are never deleted; neither are
    orphans (repair seals them first) and recordings with a name from `record -o`. Beside a running
    trace.dat segment the newest sealed one stays too: it records up to where the rings are stored,
    which outlive their process. The age is that of the last write. A limit of 0 is no limit.

    Those that wait to be shipped go last, and the limits of space and age are wider for them, as
    the plan says; that of free space is not.

    Folders that cannot be entered, or that others may write to, are skipped.

    Args:
        root: the state directory, one directory per session below it.
        plan: the limits.
        now_ns: REALTIME.
        need_bytes: space for a write that met a full disk; at least that much is freed, if
            possible.
        left: paths of running segments that were given up: they are treated as sealed ones.
        device: the file system that is written to (st_dev), None for that of `root`: segments on
            others are not deleted for this write.
        is_here: called with the file system of each segment that is due; if it returns False
            somebody else deletes that one, and it counts as deleted.
        waiting: segments that are to be shipped first.

    Raises:
        SinkError: the directory cannot be read, or nothing could be deleted although something
            should be.
    """
    with sink_errors("cannot read the directory", root, reading=True):
        folder = open_folder(root, Trust.WRITE)
    with folder:
        needs = {os.fstat(folder.fd).st_dev if device is None else device: need_bytes}
        waits = waiting or Waiting()
        return _evict(folder, plan, now_ns, needs, left, is_here=is_here, waiting=waits)


def _evict(
    root: Folder,
    plan: RetentionPlan,
    now_ns: int,
    needs: Mapping[int, int],
    left: Collection[Path],
    *,
    is_here: Callable[[int], bool],
    waiting: Waiting,
) -> list[Eviction]:
    held, used_bytes, spaces, closed = _usage(root, left, waiting)
    wanted_bytes = {
        device: max(missing_bytes(space, plan), needs.get(device, 0))
        for device, space in spaces.items()
    }
    quota = quota_bytes(root, plan)
    evictions: list[Eviction] = []
    failures: list[SinkError] = []
    for segment in held:
        hold = plan.hold if segment.waits else _NO_HOLD
        if plan.age_ns and now_ns - segment.written_ns > plan.age_ns + hold.age_ns:
            reason = EvictReason.AGE
        elif quota and used_bytes > quota + hold.bytes:
            reason = EvictReason.QUOTA
        elif wanted_bytes[segment.device] > 0:
            reason = EvictReason.FREE_SPACE
        else:
            continue
        try:
            here = is_here(segment.device)
            deleted = _delete_all(root, segment, reason, now_ns) if here else []
        except SinkError as error:
            failures.append(error)
            continue
        if deleted:
            evictions.append(Eviction(deleted[0].paths.data, reason, segment.bytes, segment.waits))
        used_bytes -= segment.bytes
        wanted_bytes[segment.device] -= segment.bytes
    short = any(size > 0 for size in wanted_bytes.values())
    if short or (quota and used_bytes > quota):
        failures += closed  # the missing space may be in these folders
    if failures and not evictions:
        raise failures[0]
    return evictions


def _delete_all(root: Folder, segment: _Held, reason: EvictReason, now_ns: int) -> list[Group]:
    """Delete the files of a segment; return the groups that were not deleted before.

    That it is deleted on purpose is noted first; on a full disk, once there is room for the note.
    """
    with session_folder(root, segment.place) as folder:
        told = [
            (group.paths.name, read_other_manifest(folder, group.paths.manifest))
            for group in segment.groups
        ]
        note = partial(
            chain_log.note_evicted, folder, told, str(reason), now_ns, unshipped=segment.waits
        )
        noted = _try(note, folder)
        deleted = [group for group in segment.groups if _delete(folder, group, MANIFEST)]
        if not noted:
            _try(note, folder)
        return [
            group
            for group in segment.groups
            if _delete_manifest(folder, group) or group in deleted
        ]


def _try(note: Callable[[], None], folder: Folder) -> bool:
    """Note an eviction; return whether that was possible: it is not held up by a failure."""
    try:
        note()
    except (OSError, UnsafePath) as error:
        _LOG.warning(
            "eviction_not_noted", path=str(folder.path / chain_log.NAME), error=str(error)
        )
        return False
    return True


def used_bytes(root: Path) -> int:
    """Return the allocated bytes of all segments below a folder. Raises SinkError."""
    with sink_errors("cannot read the directory", root, reading=True):
        folder = open_folder(root)
    with folder:
        return _usage(folder, (), Waiting())[1]


def quota_bytes(root: Folder, plan: RetentionPlan) -> int:
    """Return what all segments may take, 0 for no limit. Raises SinkError."""
    limit = Least(plan.bytes, plan.percent)
    if not limit.percent:
        return limit.bytes
    with sink_errors("cannot read the filesystem's size", root.path):
        space = os.fstatvfs(root.fd)
    return limit.of(space.f_blocks * space.f_frsize)


def missing_bytes(space: os.statvfs_result, plan: RetentionPlan) -> int:
    """Return by how much a file system falls short of the required free space, negative if not."""
    share_bytes = int(space.f_blocks * space.f_frsize * plan.free_percent / 100)
    return max(plan.free_bytes, share_bytes) - space.f_bavail * space.f_frsize


def _usage(
    root: Folder, left: Collection[Path], waiting: Waiting
) -> tuple[list[_Held], int, dict[int, os.statvfs_result], list[SinkError]]:
    """Return the segments that may be deleted, and the usage.

    Those that wait to be shipped come last, and of each kind the oldest first.

    The usage is the allocated bytes of all segments, the room on each file system, and the errors
    of folders that cannot be entered; their contents are not counted.
    """
    held: list[_Held] = []
    spaces: dict[int, os.statvfs_result] = {}
    closed: list[SinkError] = []
    used_bytes = 0
    for place in session_names(root):
        try:
            with session_folder(root, place) as folder:
                device = os.fstat(folder.fd).st_dev
                if device not in spaces:
                    with sink_errors("cannot read the filesystem's free space", folder.path):
                        spaces[device] = os.fstatvfs(folder.fd)
                parts, size_bytes = _measured(folder, place, device, left, waiting)
        except SinkError as error:
            closed.append(error)
            continue
        held += parts
        used_bytes += size_bytes
    held.sort(key=lambda one: (one.waits, one.written_ns, one.groups[0].paths.name))
    return held, used_bytes, spaces, closed


def _measured(
    folder: Folder, place: str, device: int, left: Collection[Path], waiting: Waiting
) -> tuple[list[_Held], int]:
    """Return the segments of a folder that may be deleted, and its allocated bytes."""
    sets: defaultdict[str, list[_Held]] = defaultdict(list)
    used_bytes = 0
    groups = [group for group in group_files(folder) if group.paths.rotated]
    kept = _end_of_trail(groups)
    for group in groups:
        size_bytes, written_ns = measure(folder, group)
        used_bytes += size_bytes
        if group != kept:
            waits = group.sealed and waiting.has(group.paths)
            one = _Held(place, device, (group,), size_bytes, written_ns, waits)
            sets[group.paths.set_name].append(one)
    return [_joined(parts) for parts in sets.values() if _may_go(parts, left)], used_bytes


def _may_go(parts: Iterable[_Held], left: Collection[Path]) -> bool:
    groups = [group for part in parts for group in part.groups]
    return all(group.sealed or group.paths.partial in left for group in groups)


def _joined(parts: Sequence[_Held]) -> _Held:
    return _Held(
        parts[0].place,
        parts[0].device,
        tuple(group for part in parts for group in part.groups),
        sum(part.bytes for part in parts),
        max(part.written_ns for part in parts),
        any(part.waits for part in parts),
    )


def _end_of_trail(groups: list[Group]) -> Group | None:
    """Return the newest sealed trace.dat segment of a session that runs or has crashed."""
    traces = [group for group in groups if group.paths.format == TRACE_DAT]
    sealed = [group for group in traces if group.sealed]
    return sealed[-1] if sealed and len(sealed) < len(traces) else None


def measure(folder: Folder, group: Group) -> tuple[int, int]:
    """Return allocated bytes and last write of a segment's files; missing ones count 0.

    A file with several names counts in parts: one that is kept beside several segments, or that an
    incident has too.
    """
    size_bytes = written_ns = 0
    for suffix in group.suffixes:
        status = folder.stat(group.paths.name + suffix)
        if status is None:
            continue
        size_bytes += status.st_blocks * BLOCK_BYTES // max(status.st_nlink, 1)
        written_ns = max(written_ns, status.st_mtime_ns)
    return size_bytes, written_ns


def _delete(folder: Folder, group: Group, but: str) -> bool:
    """Delete the files with other suffixes; return False if all were already deleted."""
    deleted = [_give_up(folder, group, suffix) for suffix in group.suffixes - {but}]
    return any(deleted)


def _delete_manifest(folder: Folder, group: Group) -> bool:
    return MANIFEST in group.suffixes and _give_up(folder, group, MANIFEST)


def _give_up(folder: Folder, group: Group, suffix: str) -> bool:
    name = group.paths.name + suffix
    with sink_errors("cannot delete an old segment", folder.path / name):
        return folder.give_up(name)
