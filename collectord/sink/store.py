# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the state directory as a whole: its limits, and what they have deleted."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import structlog

from collectord.ledger import SinkStats
from collectord.sink.retention import evict
from collectord.sink.segment import group_files, sink_errors

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.plan.session import RetentionPlan

_LOG = structlog.get_logger()
_UNCLEAN_STOPS = ".unclean_stops"
_BLOCK_BYTES = 512  # st_blocks, whatever the filesystem's own block size


class Store:
    """The segments of all sessions below one directory. Calls may come from any thread."""

    def __init__(self, root: Path, plan: RetentionPlan) -> None:
        self._root = root
        self._plan = plan
        self._lock = threading.Lock()
        self._deleted: dict[Path, Counter[str]] = defaultdict(Counter)

    @property
    def limited(self) -> bool:
        """Whether anything is ever deleted. What was recorded by hand is deleted by hand."""
        plan = self._plan
        return any((plan.bytes, plan.age_ns, plan.free_bytes, plan.free_percent))

    def make_room(self, need_bytes: int = 0) -> bool:
        """Delete the oldest segments until the limits hold and `need_bytes` were freed.

        Returns:
            Whether anything was deleted.

        Raises:
            SinkError: the directory cannot be read, or a file not deleted.
        """
        if not self.limited or not self._root.exists():
            return False
        with self._lock:
            evictions = evict(self._root, self._plan, time.time_ns(), need_bytes)
            for path, reason, size in evictions:
                self._deleted[path.parent][reason] += 1
                _LOG.info("segment_deleted", path=str(path), reason=str(reason), bytes=size)
        return bool(evictions)

    def stats(self, directory: Path, write_errors: int) -> SinkStats:
        """Count a session's sealed segments and the space they occupy."""
        sealed = [group.paths for group in group_files(directory) if group.sealed]
        files = [path for paths in sealed for path in (paths.data, paths.manifest)]
        with self._lock:
            deleted = {str(reason): n for reason, n in self._deleted[directory].items()}
        return SinkStats(
            segments=len(sealed),
            segment_bytes=sum(_allocated(path) for path in files),
            deleted=deleted,
            write_errors=write_errors,
        )


def count_unclean_stops(root: Path, *, add: bool) -> int:
    """How often a process ended without sealing what it wrote below `root`, this time included.

    The count outlives the processes: each new one would begin at the same figure otherwise, and a
    counter that never rises tells nobody anything.

    Raises:
        SinkError: the count cannot be written.
    """
    path = root / _UNCLEAN_STOPS
    with sink_errors("cannot count unclean stops", path):
        try:
            count = int(path.read_text())
        except (FileNotFoundError, ValueError):
            count = 0
        if add:
            count += 1
            path.write_text(f"{count}\n")
    return count


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * _BLOCK_BYTES
    except FileNotFoundError:
        return 0  # deleted since it was listed
