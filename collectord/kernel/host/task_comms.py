# SPDX-License-Identifier: Apache-2.0
"""Names of tasks for readers of ftrace's events, which carry thread ids only.

The kernel keeps a name for some of the tasks of its events: `saved_cmdlines`, a cache of fixed
size in which a task displaces another. So it is read again and again, and names that were seen
once are kept; tasks that it lacks get the name that /proc had at the first reading.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_UNKNOWN: Final = b"<...>"
# A segment has room for these and for some thousand running tasks. A process that starts many
# others reaches it: at 70 bytes each they are half a megabyte of every session.
_NAMES_MAX: Final = 8_192
# The cache has 128 names at least; since Linux 6.9 about 6500, which take 1.5 ms to read.
_CACHED_MIN: Final = 128
# `learn` has to see each name: it reads before a quarter of them may have been displaced, at the
# rate of the last reading, and more often where a few are many for the cache.
_CACHE_SHARE: Final = 4
_CACHED_PER_CALL: Final = 32
_CALLS_PER_LOOK_MAX: Final = 16
# Of the names that may be kept, these are when there are too many: a search through all is rare then.
_KEPT_EIGHTHS: Final = 7
_COMM_MAX_BYTES: Final = 15  # TASK_COMM_LEN without its NUL


class TaskComms:
    """Names of tasks seen until now.

    Args:
        tracefs: root of tracefs; the cache is the same for all instances.
        proc: root of procfs.
        names_max: how many of the cache's names to keep; those that it has no more go first.
    """

    def __init__(self, tracefs: Path, proc: Path, *, names_max: int = _NAMES_MAX) -> None:
        self._cache = tracefs / "saved_cmdlines"
        self._proc = proc
        self._names_max = names_max
        self._lock = threading.Lock()
        self._seen: dict[int, bytes] = {}
        self._names: dict[bytes, bytes] = {}  # many tasks have one name: it is kept once
        self._text = b""  # content of the cache at the last reading
        self._cached = _CACHED_MIN  # names in it
        self._calls = 0  # calls of `learn` since the last reading
        self._calls_per_look = 1
        self._running: dict[int, bytes] | None = None

    def read(self) -> Mapping[int, bytes]:
        """Read the cache again, and return the name of every task by thread id.

        Tasks of events come first, latest last among them. A cache that cannot be read adds
        nothing.
        """
        with self._lock:
            if self._running is None:
                self._running = _running(self._proc)
            self._take()
            return {
                **self._seen,
                **{t: n for t, n in self._running.items() if t not in self._seen},
            }

    def learn(self) -> None:
        """Read the cache again for a later `read`, because the kernel's cache is small.

        The more names it has, and the fewer of them are new, the fewer calls read it.
        """
        with self._lock:
            self._calls += 1
            if self._calls < self._calls_per_look:
                return
            new_per_call = self._take() / self._calls
            self._calls = 0
            most = min(self._cached // _CACHED_PER_CALL, _CALLS_PER_LOOK_MAX)
            wanted = int(self._cached / _CACHE_SHARE / max(new_per_call, 1))
            self._calls_per_look = max(1, min(wanted, most))

    def _take(self) -> int:
        """Read the cache, and return how many names are new."""
        try:
            with self._cache.open("rb", buffering=0) as file:
                text = file.readall()
        except OSError:
            return 0
        if text == self._text:
            return 0
        # Each name has a line of its own: most are those of the last reading.
        before, self._text = self._text.split(b"\n"), text
        self._cached = max(_CACHED_MIN, text.count(b"\n"))
        new = 0
        for line, earlier in zip_longest(text.split(b"\n"), before, fillvalue=b""):
            if line == earlier:
                continue
            word, _, name = line.partition(b" ")
            if not word.isdigit():  # the last line, or the rest of a name with a line feed
                continue
            tid = int(word)
            if name == _UNKNOWN or self._seen.get(tid) == name:
                continue
            self._seen.pop(tid, None)
            self._seen[tid] = self._names.setdefault(name, name)
            new += 1
        if len(self._names) > self._names_max:
            self._names.clear()
        if len(self._seen) > self._names_max:
            self._forget(text)
        return new

    def _forget(self, text: bytes) -> None:
        """Forget the oldest names that the cache has no more, some at a time.

        Args:
            text: content of the cache.
        """
        surplus = len(self._seen) - self._names_max * _KEPT_EIGHTHS // 8
        cached = {line.partition(b" ")[0] for line in text.split(b"\n")}
        gone = [tid for tid in self._seen if b"%d" % tid not in cached][:surplus]
        if len(self._seen) - len(gone) > self._names_max:  # the cache has more than are kept
            gone = [*self._seen][: len(self._seen) - self._names_max]
            self._text = b""  # the next reading looks at each name again
        for tid in gone:
            del self._seen[tid]


def as_comm(text: bytes) -> bytes:
    """Return the name that events have for a task whose `comm` file has this text.

    The file says more about a kernel thread: proc_task_name() (fs/proc/array.c) adds to a worker's
    name its pool and its work.
    """
    return text.removesuffix(b"\n")[:_COMM_MAX_BYTES]


def _running(proc: Path) -> dict[int, bytes]:
    found = {}
    for process in proc.glob("[1-9]*"):
        with suppress(OSError):  # it exited
            for task in (process / "task").iterdir():
                with suppress(OSError):
                    found[int(task.name)] = as_comm((task / "comm").read_bytes())
    return found
