# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the state directory: its limits, who keeps them, and what is in it."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from collectord.errors import SinkError, UnsafePath
from collectord.folders.walk import open_folder
from collectord.model import SinkStats
from collectord.sink import ship_note
from collectord.sink.eviction import evict, measure, missing_bytes, used_bytes
from collectord.sink.manifest import Manifest, decode
from collectord.sink.segment import (
    BLOCK_BYTES,
    group_files,
    read_other_manifest,
    sink_errors,
)
from collectord.sink.ship_note import Shipped, Shipping, Waiting
from collectord.text.units import Least

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Executor

    from collectord.folders.folder import Folder
    from collectord.plan.sink_plan import RetentionPlan
    from collectord.sink.segment import SegmentPaths

_LOG = structlog.get_logger()
# The time to wait for another thread that deletes.
_EVICTION_WAIT_S = 1.0


class StateDir:
    """The segments of all sessions below one directory. Calls may come from any thread.

    Args:
        root: the directory.
        plan: its limits.
        now_ns: reads UTC.
    """

    def __init__(
        self, root: Path, plan: RetentionPlan, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._root = root
        self._plan = plan
        self._now_ns = now_ns
        self._whole_bytes = 0  # of its file system, once that is known
        self._lock = threading.Lock()
        self._evicting: dict[int, threading.Lock] = {}  # by file system
        self._workers: Callable[[int], Executor] | None = None
        self._asked: set[int] = set()  # the file systems whose threads are to make room
        self._deleted: dict[Path, Counter[str]] = defaultdict(Counter)
        self._left: set[Path] = set()
        self._compress_errors: Counter[Path] = Counter()
        self._changes: Counter[Path] = Counter()
        self._saved: defaultdict[Path, dict[tuple[int, int], int]] = defaultdict(dict)
        self._unshipped: Counter[Path] = Counter()
        self._shipping = Shipping()
        self._holds = False  # something is kept beyond the limits, as it is not shipped

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
    def limit_bytes(self) -> int:
        """The most that all segments may take, 0 for no limit, or if it is not known yet."""
        if self._plan.percent and not self._whole_bytes:
            with suppress(OSError):  # it is made with the first session
                space = os.statvfs(self._root)
                self._whole_bytes = space.f_blocks * space.f_frsize
        return Least(self._plan.bytes, self._plan.percent).of(self._whole_bytes)

    @property
    def limited(self) -> bool:
        """Whether anything is ever deleted. Recordings made by hand are never deleted."""
        plan = self._plan
        return any((plan.bytes, plan.percent, plan.age_ns, plan.free_bytes, plan.free_percent))

    def is_short(self) -> bool:
        """Whether its file system has less free space than the limits want. Raises SinkError."""
        with sink_errors("cannot read the filesystem's free space", self._root, reading=True):
            return missing_bytes(os.statvfs(self._root), self._plan) > 0

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
                self._now_ns(),
                need_bytes,
                {*self._left},
                device=device,
                is_here=is_here,
                waiting=self._waiting(),
            )
        finally:
            turn.release()
        with self._lock:
            self._left = {path for path in self._left if path.exists()}
            for path, reason, size, unshipped in evictions:
                self._deleted[path.parent][reason] += 1
                self._unshipped[path.parent] += unshipped
                told = {"path": str(path), "reason": str(reason), "bytes": size}
                if unshipped:
                    _LOG.error("segment_deleted_unshipped", **told)
                else:
                    _LOG.info("segment_deleted", **told)
        return bool(evictions), due

    def _waiting(self) -> Waiting:
        """Return which segments are to be shipped before they are deleted."""
        hold = self._plan.hold
        if not hold.folders:
            return Waiting()
        folders = frozenset(Path(directory) for _, directory in hold.folders)
        return Waiting(folders, ship_note.read(Path(hold.note)))

    @property
    def shipping(self) -> Shipping:
        """Figures of what is shipped, as of the last look."""
        return self._shipping

    def look_at_shipping(self) -> None:
        """Read what the shipper has noted, and what waits for it; of folders that can be read."""
        waiting = self._waiting()
        if not waiting.folders:
            self._shipping = Shipping()
            return
        found = {name: self._shipped(Path(at), waiting) for name, at in self._plan.hold.folders}
        errors = dict(waiting.note.errors) if waiting.note is not None else {}
        self._shipping = Shipping(found, errors)
        try:
            holds = self._keeps_longer(found.values())
        except SinkError:
            return
        if holds != self._holds:
            self._holds = holds
            told = {"segments": sum(one.waiting for one in found.values())}
            if holds:
                _LOG.warning("retention_waits_for_shipping", **told)
            else:
                _LOG.info("retention_waits_no_more", **told)

    def _keeps_longer(self, sessions: Iterable[Shipped]) -> bool:
        """Whether segments that wait are kept beyond the limits of others. Raises SinkError."""
        since = [one.since_ns for one in sessions if one.since_ns is not None]
        if not since:
            return False
        hold, age_ns = self._plan.hold, self._plan.age_ns
        if age_ns and hold.age_ns and self._now_ns() - min(since) > age_ns:
            return True
        limit_bytes = self.limit_bytes if hold.bytes else 0
        return bool(limit_bytes) and used_bytes(self._root) > limit_bytes

    def _shipped(self, directory: Path, waiting: Waiting) -> Shipped:
        noted = waiting.note.streams if waiting.note is not None else ()
        streams = [one for one in noted if one.directory == str(directory)]
        sizes: list[tuple[int, int]] = []
        with suppress(OSError, UnsafePath, SinkError), open_folder(directory) as folder:
            groups = [one for one in group_files(folder) if one.sealed and waiting.has(one.paths)]
            sizes = [measure(folder, group) for group in groups]
        return Shipped(
            segments=sum(one.shipped for one in streams),
            rows=sum(one.rows for one in streams),
            bytes=sum(one.bytes for one in streams),
            waiting=len(sizes),
            waiting_bytes=sum(size for size, _ in sizes),
            since_ns=min((written_ns for _, written_ns in sizes), default=None),
            deleted=self._unshipped[directory],
        )

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
            size_bytes = sum(measure(folder, group)[0] for group in groups)
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


def _device(directory: Path) -> int:
    with sink_errors("cannot read the directory", directory, reading=True):
        return directory.stat().st_dev


def _statuses(folder: Folder, paths: Iterable[Path]) -> list[os.stat_result]:
    """Return the status of each file that was not deleted after it was listed."""
    found = (folder.stat(path.name) for path in paths)
    return [status for status in found if status is not None]
