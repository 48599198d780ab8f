# SPDX-License-Identifier: Apache-2.0
"""Open files of a relay channel, or of a block device's trace."""

from __future__ import annotations

from typing import Final, NamedTuple

# The CPU of a channel that has one file for all CPUs.
GLOBAL: Final = -1


class RelayFile(NamedTuple):
    """An open relay file; its CPU is -1 in a channel of one file."""

    cpu: int
    fd: int


class OpenedTrace(NamedTuple):
    """A trace of a block device that is set up; its files are open until it is closed."""

    id: int
    files: tuple[RelayFile, ...]


class LeftTrace(NamedTuple):
    """A trace that a killed process left, and that was ended.

    Attributes:
        session: session that it belonged to.
        unread: records that were still in its buffers.
        dropped: records that had found no room.
    """

    device: str
    session: str
    unread: int
    dropped: int
