# SPDX-License-Identifier: Apache-2.0
"""A session's note of the time that its rings are open, and the gap that it finds at its start."""

from __future__ import annotations

import time
import uuid
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from collectord.model import GapCause
from collectord.recovery.gap import gap_since, pause_since
from collectord.sink import covered_note
from collectord.sink.covered_note import Covered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from collectord.model import ClockReading
    from collectord.sink.manifest import Gap

# The gap after a kill is told at most this much too long.
_INTERVAL_NS: Final = 10_000_000_000


@cache
def _own_name() -> str:
    """Return the name of this process, which is not yet made in one that is forked to be it.

    Sessions of one process that follow each other overlap, unless a reload had to stop the first.
    """
    return uuid.uuid4().hex


class Unnoted:
    """A session whose time nobody notes, since no later process goes on with it.

    Attributes:
        gap: the one before this session; None if no earlier process left a note.
        gaps_ns: cause to the total of all gaps, this one included; none without a gap.
    """

    gap: Gap | None = None
    gaps_ns: Mapping[str, int] = MappingProxyType({})

    def find_gap(self) -> None:
        """Find no gap, since nothing was noted."""

    def add_gap(self, cause: GapCause, taken_ns: int) -> None:
        """Add a time in which the session was paused."""
        self.gaps_ns = {**self.gaps_ns, cause: self.gaps_ns.get(cause, 0) + taken_ns}

    def begin(self) -> None:
        """Do nothing."""

    def take_turn(self) -> bool:
        """Return False: no note is ever due."""
        return False

    def go_on(self) -> None:
        """Do nothing."""

    def hand_over(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class CoverageFile(Unnoted):
    """The note of a running session. What reads or writes the file is called in a worker.

    Args:
        directory: the session's folder.
        source: the kind of its source.
        boot_id: of this boot.
        clocks: reads the clocks.
        process: names this process; by default as no other is named.
        goes_on: the rings were open all the time since the last note, so there is no gap, but for
        paused_ns: MONOTONIC time since when a killed process had them stand still; 0: it had not.
    """

    def __init__(
        self,
        directory: Path,
        source: str,
        boot_id: str,
        clocks: Callable[[], ClockReading],
        process: str | None = None,
        *,
        goes_on: bool = False,
        paused_ns: int = 0,
    ) -> None:
        self.gaps_ns = {str(cause): 0 for cause in GapCause}
        self._directory = directory
        self._source = source
        self._boot_id = boot_id
        self._clocks = clocks
        self._process = process or _own_name()
        self._goes_on = goes_on
        self._paused_ns = paused_ns
        self._is_open = False
        self._stopped: ClockReading | None = None
        self._writing = False
        self._due_ns = 0

    def find_gap(self) -> None:
        """Find the gap up to now. Nothing is noted before `begin`. Raises SinkError."""
        before = covered_note.read(self._directory, self._source)
        if before is None:
            return
        gaps_ns = {cause: before.gaps_ns.get(cause, 0) for cause in self.gaps_ns}
        changed = before.process == self._process
        if (before.stopped or not changed) and not self._goes_on:
            self.gap = gap_since(before, self._boot_id, self._clocks(), changed=changed)
        elif self._goes_on and self._paused_ns:
            self.gap = pause_since(self._paused_ns, self._clocks())
        if self.gap is not None:
            gaps_ns[self.gap.cause] += self.gap.until_ns - self.gap.from_ns
        self.gaps_ns = gaps_ns

    def begin(self) -> None:
        """Begin to make notes, since the events are enabled; the first one is due."""
        self._is_open = True

    def take_turn(self) -> bool:
        """Whether a note is due, which the caller then has made by `go_on`."""
        now_ns = time.monotonic_ns()
        if not self._is_open or self._stopped or self._writing or now_ns < self._due_ns:
            return False
        self._writing = True
        self._due_ns = now_ns + _INTERVAL_NS
        return True

    def go_on(self) -> None:
        """Note that the rings are open now. Raises SinkError."""
        try:
            self._write(self._clocks(), stopped=False)
        finally:
            self._writing = False

    def hand_over(self) -> None:
        """Leave the note to the session that records in this one's place."""
        self._is_open = False

    def stop(self) -> None:
        """Keep the time at which the events were disabled, for the last note."""
        self._stopped = self._clocks()

    def end(self) -> None:
        """Note durably when the session was stopped, if it had begun. Raises SinkError."""
        if self._is_open and self._stopped is not None:
            self._write(self._stopped, stopped=True)

    def _write(self, until: ClockReading, *, stopped: bool) -> None:
        note = Covered(
            boot_id=self._boot_id,
            process=self._process,
            until=until,
            stopped=stopped,
            gaps_ns=self.gaps_ns,
        )
        covered_note.write(self._directory, self._source, note, durable=stopped)
