# SPDX-License-Identifier: Apache-2.0
"""Events of BPF programs, printed while `record` writes them."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from collectord.cli.event_choice import Choice
from collectord.cli.follow import Follower
from collectord.cli.output import complain
from collectord.errors import CollectordError
from collectord.reader.event_file import read_manifest
from collectord.reader.live import LiveStreams
from collectord.sink.segment import PARTIAL, SegmentPaths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PAUSE_S: Final = 0.1


class LiveEvents:
    """Prints the events of a recording by a thread of its own, from the first to the last.

    Args:
        directory: where the recording writes; it may be made by it.
        name: of its only file, "" if it writes segments.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._before = self._partial()
        self._over = Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Print during the block, and what is left at its end."""
        thread = Thread(target=self._run, name="live-events", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _run(self) -> None:
        try:
            begin = self._begin()
            if begin is None:
                return
            follower = Follower(Choice((), ()), "text")
            with closing(LiveStreams(self._directory, follower.lines_of, begin)) as stream:
                follower.run([stream], self._over)
        except BrokenPipeError:
            return  # whoever read is gone; the result finds that out
        except CollectordError as error:
            complain(f"events are not shown as they come: {error}")

    def _begin(self) -> SegmentPaths | None:
        """Wait for the first segment of the recording; None if it ends without one."""
        while True:
            is_over = self._over.is_set()
            for path in sorted(self._partial() - self._before):
                manifest = read_manifest(path)
                if manifest is not None and manifest.layouts:
                    return SegmentPaths(path.parent, path.name.removesuffix(PARTIAL))
            if is_over:
                return None
            time.sleep(_PAUSE_S)

    def _partial(self) -> set[Path]:
        """Return the segments that are being written, or were left so."""
        name = f"{self._name}{PARTIAL}" if self._name else f"*{PARTIAL}"
        return {path for path in self._directory.glob("*") if path.match(name)}
