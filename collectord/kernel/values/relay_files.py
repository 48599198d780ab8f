# SPDX-License-Identifier: Apache-2.0
"""Open files of a relay channel, or of a block device's trace."""

from __future__ import annotations

from typing import Final, NamedTuple

# The CPU of a channel that has one file for all CPUs.
GLOBAL: Final = -1
# In place of the descriptor of memory for a successor.
NOT_KEPT: Final = -1


class RelayFile(NamedTuple):
    """An open relay file; its CPU is -1 in a channel of one file."""

    cpu: int
    fd: int


class Keep(NamedTuple):
    """The session of a block trace, and whether a successor may go on with the trace.

    Attributes:
        session: session that it belongs to.
        digest: of the plan, by which a successor knows it; "": it ends with its process.
        memory_bytes: size of the memory that the successor gets.
    """

    session: str
    digest: str = ""
    memory_bytes: int = 0


class OpenedTrace(NamedTuple):
    """A trace of a block device that is set up; its files are open until it is closed.

    Attributes:
        kept: descriptor of the memory for a successor, NOT_KEPT without one.
        resumed: an earlier process has left it.
    """

    id: int
    files: tuple[RelayFile, ...]
    kept: int = NOT_KEPT
    resumed: bool = False


class LeftTrace(NamedTuple):
    """A trace that a process left, and that was ended.

    Attributes:
        session: session that it belonged to.
        unread: records that were still in its buffers.
        dropped: records that had found no room.
        problem: why it could not be ended, "" if it was.
    """

    device: str
    session: str
    unread: int = 0
    dropped: int = 0
    problem: str = ""

    def told(self, ended: str) -> tuple[str, dict[str, object]]:
        """Return the log's event and its keys; the event is `ended` if the trace was ended."""
        if self.problem:
            return "trace_not_ended", {"device": self.device, "error": self.problem}
        return ended, {name: one for name, one in self._asdict().items() if name != "problem"}
