# SPDX-License-Identifier: Apache-2.0
"""Lines of a log on their way to a file that may not answer."""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from collectord.cli.output import discard

if TYPE_CHECKING:
    from typing import Self

_STDERR: Final = 2
# Thousands of lines: more than a start, or a stop, of hundreds of sessions writes at once.
_LIMIT_CHARS: Final = 1 << 20
# Time for the last lines, before the process ends without them.
_END_S: Final = 2.0


class LineQueue:
    """Has lines written by a thread, so that who logs waits neither for a disk nor for a reader.

    Beyond the limit lines are dropped, and counted. As a context it has written all lines at its
    end, or has given up a file that does not answer: whatever the process writes to it afterwards
    is discarded, so that its end does not hang. From then on lines are written at once.

    Args:
        fd: of the file.
        limit_chars: of the lines that wait. A line is admitted while fewer are waiting.
        end_s: how long the end waits for the file.

    Attributes:
        dropped_total: lines that were dropped so far.
    """

    def __init__(
        self, fd: int = _STDERR, limit_chars: int = _LIMIT_CHARS, end_s: float = _END_S
    ) -> None:
        self._fd = fd
        self._limit_chars = limit_chars
        self._end_s = end_s
        # It is reentrant: the garbage collector may log in the middle of `write`.
        self._changed = threading.Condition(threading.RLock())
        self._lines: list[str] = []
        self._chars = 0
        self._dropped = 0
        self.dropped_total = 0
        self._ended = False
        # A daemon: the interpreter would wait for it, and it may wait for ever.
        self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(self._end_s)
        if self._thread.is_alive():
            discard(self._fd)

    def admit(self) -> int | None:
        """Return how many lines were dropped before the one that is admitted now.

        None: there is no room, and the line counts as dropped.
        """
        with self._changed:
            if self._chars >= self._limit_chars and not self._ended:
                self._dropped += 1
                self.dropped_total += 1
                return None
            dropped, self._dropped = self._dropped, 0
            return dropped

    def write(self, text: str) -> int:
        """Take a line that was admitted."""
        with self._changed:
            if not self._ended:
                self._lines.append(text)
                self._chars += len(text)
                self._changed.notify()
                return len(text)
        self._write(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread writes a line as soon as it can."""

    def _write_lines(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._ended:
                    self._changed.wait()
                lines, self._lines = self._lines, []
                self._chars = 0
            if not lines:
                return
            self._write("".join(lines))

    def _write(self, text: str) -> None:
        """Write all of it, or lose the rest: there is no other place to report an error."""
        rest = memoryview(text.encode(errors="backslashreplace"))
        with suppress(OSError):
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:  # whoever shares the file has made it so
                    select.select((), (self._fd,), ())
