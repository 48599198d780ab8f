# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the state directory: its limits, and the oldest segments deleted to keep them."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from collectord.errors import SinkError, UnsafePath
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.ledger.record_ledger import SinkStats
from collectord.model import EvictReason
from collectord.sink import chain_log
from collectord.sink.manifest import Manifest, decode
from collectord.sink.segment import (
    BESIDE_END,
    BLOCK_BYTES,
    MANIFEST,
    TRACE_DAT,
    Group,
    group_files,
    read_other_manifest,
    session_folder,
    session_names,
    sink_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from collectord.folders.folder import Folder
    from collectord.plan.session_plan import RetentionPlan
    from collectord.sink.segment import SegmentPaths

_LOG = structlog.get_logger()
_UNCLEAN_STOPS = ".unclean_stops"
_COUNT_MAX_BYTES = 64
# The time to wait for another thread that deletes.
_EVICTION_WAIT_S = 1.0


class StateDir:
    """The segments of all sessions below one directory. Calls may come from any thread."""

    def __init__(self, root: Path, plan: RetentionPlan) -> None:
        self._root = root
        self._plan = plan
        self._lock = threading.Lock()
        self._evicting: dict[int, threading.Lock] = {}  # by file system
        self._workers: Callable[[int], Executor] | None = None
        self._asked: set[int] = set()  # the file systems whose threads are to make room
        self._deleted: dict[Path, Counter[str]] = defaultdict(Counter)
        self._left: set[Path] = set()
        self._compress_errors: Counter[Path] = Counter()
        self._changes: Counter[Path] = Counter()
        self._saved: defaultdict[Path, dict[tuple[int, int], int]] = defaultdict(dict)

    def limit(self, plan: RetentionPlan) -> None:
        """Set other limits, which hold from the next look on."""
        self._plan = plan

    def delete_in(self, workers: Callable[[int], Executor]) -> None:
        """Have segments deleted by threads of their own file systems, which may not answer.

        Args:
            workers: returns the threads of a file system (st_dev).
        """
        self._workers = workers

    @property
    def limited(self) -> bool:
        """Whether anything is ever deleted. Recordings made by hand are never deleted."""
        plan = self._plan
        return any((plan.bytes, plan.age_ns, plan.free_bytes, plan.free_percent))

    def room_for(self, directory: Path) -> Callable[[int], bool]:
        """Return `make_room` for writes below a directory."""
        return partial(self.make_room, directory=directory)

    def make_room(self, need_bytes: int = 0, directory: Path | None = None) -> bool:
        """Delete the oldest segments until the limits hold and `need_bytes` were freed.

        After `delete_in` only those on the file system of `directory` are deleted here. Threads of
        the others are asked to delete what is due there, and nobody waits for them.

        Args:
            need_bytes: space for a write.
            directory: where it is written, if not on the state directory's file system.

        Returns:
            whether anything was deleted here.

        Raises:
            SinkError: the directory cannot be read, or a file not deleted.
        """
        if not self.limited:
            return False
        try:
            device = None if directory is None else _device(directory)
            made, due = self._make_room(device, need_bytes)
        except SinkError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        for other in due:
            self._ask(other)
        return made

    def _ask(self, device: int) -> None:
        """Have the threads of a file system delete what is due there, unless they were asked."""
        with self._lock:
            if self._workers is None or device in self._asked:
                return
            self._asked.add(device)
        with suppress(RuntimeError):  # they have ended
            self._workers(device).submit(self._make_room_asked, device)

    def _make_room_asked(self, device: int) -> None:
        try:
            self._make_room(device, 0)
        except SinkError as error:
            _LOG.error("limits_not_kept", error=str(error))
        finally:
            with self._lock:
                self._asked.discard(device)

    def _make_room(self, device: int | None, need_bytes: int) -> tuple[bool, set[int]]:
        """Delete segments on a file system, in its turn; return where else some are due."""
        due: set[int] = set()

        def is_here(other: int) -> bool:
            if self._workers is None or other == device:
                return True
            due.add(other)
            return False

        with self._lock:
            turn = self._evicting.setdefault(device or 0, threading.Lock())
        if not turn.acquire(timeout=_EVICTION_WAIT_S):
            return False, due  # the other thread waits for a disk that does not answer
        try:
            evictions = evict(
                self._root,
                self._plan,
                time.time_ns(),
                need_bytes,
                {*self._left},
                device=device,
                is_here=is_here,
            )
        finally:
            turn.release()
        with self._lock:
            self._left = {path for path in self._left if path.exists()}
            for path, reason, size in evictions:
                self._deleted[path.parent][reason] += 1
                _LOG.info("segment_deleted", path=str(path), reason=str(reason), bytes=size)
        return bool(evictions), due

    def leave(self, partials: Iterable[Path]) -> None:
        """Mark running segments as given up: they are deleted in their turn as sealed ones are."""
        with self._lock:
            self._left.update(partials)

    def compressed(self, directory: Path, errors: int) -> None:
        """Note that segments of a session were compressed, and how many could not be."""
        with self._lock:
            self._compress_errors[directory] += errors
            self._changes[directory] += 1

    def changes(self, directory: Path) -> int:
        """Return how often a session's segments were compressed."""
        return self._changes[directory]

    def stats(self, directory: Path, write_errors: int, unsealed: int) -> SinkStats:
        """Count a session's sealed segments and the space they occupy."""
        with sink_errors("cannot read the directory", directory, reading=True):
            folder = open_folder(directory)
        with folder:
            groups = [group for group in group_files(folder) if group.sealed]
            sealed = [group.paths for group in groups]
            data = _statuses(folder, (paths.data for paths in sealed))
            size_bytes = sum(_measure(folder, group)[0] for group in groups)
            saved = self._saved[directory]
            self._saved[directory] = saved = dict(_saved_by(folder, sealed, saved))
        with self._lock:
            deleted = {str(reason): n for reason, n in self._deleted[directory].items()}
        return SinkStats(
            segments=len(sealed),
            segment_bytes=size_bytes,
            uncompressed_bytes=size_bytes + sum(saved.values()),
            compress_errors=self._compress_errors[directory],
            deleted=deleted,
            write_errors=write_errors,
            unsealed=unsealed,
            oldest_ns=min((one.st_mtime_ns for one in data), default=None),
        )


def _saved_by(
    folder: Folder, sealed: Iterable[SegmentPaths], known: Mapping[tuple[int, int], int]
) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield by how much compression has made each file smaller; a manifest is read only once."""
    for paths in sealed:
        status = folder.stat(paths.data.name)
        if status is None:
            continue
        key = status.st_ino, status.st_mtime_ns
        if key in known:
            yield key, known[key]
            continue
        manifest = decode(read_other_manifest(folder, paths.manifest), Manifest)
        packed = manifest is not None and manifest.packed is not None
        if manifest is None or not packed or status.st_size == manifest.bytes:
            yield key, 0
        else:
            yield key, manifest.allocated_bytes - status.st_blocks * BLOCK_BYTES


def count_unclean_stops(root: Path, *, add: bool) -> int:
    """Return how often a process ended without sealing what it wrote below `root`, with this time.

    The count is kept in a file: otherwise each process would start at the same value, and a
    counter that never rises is useless.

    Raises:
        SinkError: the count cannot be written.
    """
    telling = sink_errors("cannot count unclean stops", root / _UNCLEAN_STOPS)
    with telling, open_folder(root, Trust.WRITE) as folder:
        try:
            count = int(folder.read(_UNCLEAN_STOPS, _COUNT_MAX_BYTES))
        except (FileNotFoundError, UnsafePath, ValueError):
            count = 0
        if add:
            count += 1
            folder.put(_UNCLEAN_STOPS, f"{count}\n".encode())
    return count


def _device(directory: Path) -> int:
    with sink_errors("cannot read the directory", directory, reading=True):
        return directory.stat().st_dev


def _statuses(folder: Folder, paths: Iterable[Path]) -> list[os.stat_result]:
    """Return the status of each file that was not deleted after it was listed."""
    found = (folder.stat(path.name) for path in paths)
    return [status for status in found if status is not None]


class Eviction(NamedTuple):
    """A segment that was deleted with its manifest; `bytes` are allocated ones."""

    path: Path
    reason: EvictReason
    bytes: int


class _Held(NamedTuple):
    """A segment, or all files of a set, which are deleted together.

    `place` is the name of its folder, and `device` the file system that it is on.
    """

    place: str
    device: int
    groups: tuple[Group, ...]
    bytes: int
    written_ns: int


def evict(
    root: Path,
    plan: RetentionPlan,
    now_ns: int,
    need_bytes: int = 0,
    left: Collection[Path] = (),
    *,
    device: int | None = None,
    is_here: Callable[[int], bool] = lambda _device: True,
) -> list[Eviction]:
    """Delete the oldest sealed segments of all sessions below `root` until the limits hold.

    Segments that are being written count towards the quota but are never deleted; neither are
    orphans (repair seals them first) and recordings with a name from `record -o`. Beside a running
    trace.dat segment the newest sealed one stays too: it records up to where the rings are stored,
    which outlive their process. The age is that of the last write. A limit of 0 is no limit.

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

    Raises:
        SinkError: the directory cannot be read, or nothing could be deleted although something
            should be.
    """
    with sink_errors("cannot read the directory", root, reading=True):
        folder = open_folder(root, Trust.WRITE)
    with folder:
        needs = {os.fstat(folder.fd).st_dev if device is None else device: need_bytes}
        return _evict(folder, plan, now_ns, needs, left, is_here=is_here)


def _evict(
    root: Folder,
    plan: RetentionPlan,
    now_ns: int,
    needs: Mapping[int, int],
    left: Collection[Path],
    *,
    is_here: Callable[[int], bool],
) -> list[Eviction]:
    held, used_bytes, spaces, closed = _usage(root, left)
    wanted_bytes = {
        device: max(_missing_bytes(space, plan), needs.get(device, 0))
        for device, space in spaces.items()
    }
    evictions: list[Eviction] = []
    failures: list[SinkError] = []
    for segment in held:
        if plan.age_ns and now_ns - segment.written_ns > plan.age_ns:
            reason = EvictReason.AGE
        elif plan.bytes and used_bytes > plan.bytes:
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
            evictions.append(Eviction(deleted[0].paths.data, reason, segment.bytes))
        used_bytes -= segment.bytes
        wanted_bytes[segment.device] -= segment.bytes
    short = any(size > 0 for size in wanted_bytes.values())
    if short or (plan.bytes and used_bytes > plan.bytes):
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
        note = partial(chain_log.note_evicted, folder, told, str(reason), now_ns)
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


def _missing_bytes(space: os.statvfs_result, plan: RetentionPlan) -> int:
    """Return by how much a file system falls short of the required free space, negative if not."""
    share_bytes = int(space.f_blocks * space.f_frsize * plan.free_percent / 100)
    return max(plan.free_bytes, share_bytes) - space.f_bavail * space.f_frsize


def _usage(
    root: Folder, left: Collection[Path]
) -> tuple[list[_Held], int, dict[int, os.statvfs_result], list[SinkError]]:
    """Return the segments that may be deleted, oldest first, and the usage.

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
                parts, size_bytes = _measured(folder, place, device, left)
        except SinkError as error:
            closed.append(error)
            continue
        held += parts
        used_bytes += size_bytes
    held.sort(key=lambda segment: (segment.written_ns, segment.groups[0].paths.name))
    return held, used_bytes, spaces, closed


def _measured(
    folder: Folder, place: str, device: int, left: Collection[Path]
) -> tuple[list[_Held], int]:
    """Return the segments of a folder that may be deleted, and its allocated bytes."""
    sets: defaultdict[str, list[_Held]] = defaultdict(list)
    used_bytes = 0
    groups = [group for group in group_files(folder) if group.paths.rotated]
    kept = _end_of_trail(groups)
    for group in groups:
        size_bytes, written_ns = _measure(folder, group)
        used_bytes += size_bytes
        if group != kept:
            one = _Held(place, device, (group,), size_bytes, written_ns)
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
    )


def _end_of_trail(groups: list[Group]) -> Group | None:
    """Return the newest sealed trace.dat segment of a session that runs or has crashed."""
    traces = [group for group in groups if group.paths.format == TRACE_DAT]
    sealed = [group for group in traces if group.sealed]
    return sealed[-1] if sealed and len(sealed) < len(traces) else None


def _measure(folder: Folder, group: Group) -> tuple[int, int]:
    """Return allocated bytes and last write of a segment's files; missing ones count 0.

    A file that is kept beside several segments counts in parts.
    """
    size_bytes = written_ns = 0
    for suffix in group.suffixes:
        status = folder.stat(group.paths.name + suffix)
        if status is None:
            continue
        sharing = max(status.st_nlink, 1) if suffix.endswith(BESIDE_END) else 1
        size_bytes += status.st_blocks * BLOCK_BYTES // sharing
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
