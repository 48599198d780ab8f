# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the state directory as a whole: its limits and its deletions."""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING

import structlog

from collectord.errors import SinkError, UnsafePath
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.ledger.record_ledger import SinkStats
from collectord.sink.retention import evict
from collectord.sink.segment import BLOCK_BYTES, group_files, sink_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from collectord.folders.folder import Folder
    from collectord.plan.session_plan import RetentionPlan

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
        self._evicting = threading.Lock()
        self._deleted: dict[Path, Counter[str]] = defaultdict(Counter)
        self._left: set[Path] = set()

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

        Args:
            need_bytes: space for a write.
            directory: where it is written, if not on the state directory's file system.

        Returns:
            whether anything was deleted.

        Raises:
            SinkError: the directory cannot be read, or a file not deleted.
        """
        if not self.limited or not self._evicting.acquire(timeout=_EVICTION_WAIT_S):
            return False  # the other thread waits for a disk that does not answer
        try:
            device = None if directory is None else _device(directory)
            now_ns = time.time_ns()
            evictions = evict(
                self._root, self._plan, now_ns, need_bytes, {*self._left}, device=device
            )
        except SinkError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        finally:
            self._evicting.release()
        with self._lock:
            self._left = {path for path in self._left if path.exists()}
            for path, reason, size in evictions:
                self._deleted[path.parent][reason] += 1
                _LOG.info("segment_deleted", path=str(path), reason=str(reason), bytes=size)
        return bool(evictions)

    def leave(self, partials: Iterable[Path]) -> None:
        """Mark running segments as given up: they are deleted in their turn as sealed ones are."""
        with self._lock:
            self._left.update(partials)

    def stats(self, directory: Path, write_errors: int, unsealed: int) -> SinkStats:
        """Count a session's sealed segments and the space they occupy."""
        with sink_errors("cannot read the directory", directory, reading=True):
            folder = open_folder(directory)
        with folder:
            sealed = [group.paths for group in group_files(folder) if group.sealed]
            names = [path.name for paths in sealed for path in (paths.data, paths.manifest)]
            allocated_bytes = sum(_allocated(folder, name) for name in names)
        with self._lock:
            deleted = {str(reason): n for reason, n in self._deleted[directory].items()}
        return SinkStats(
            segments=len(sealed),
            segment_bytes=allocated_bytes,
            deleted=deleted,
            write_errors=write_errors,
            unsealed=unsealed,
        )


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


def _allocated(folder: Folder, name: str) -> int:
    status = folder.stat(name)
    # None: it was deleted after it was listed.
    return status.st_blocks * BLOCK_BYTES if status is not None else 0
