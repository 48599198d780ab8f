# SPDX-License-Identifier: Apache-2.0
"""The count of processes that ended without sealing what they wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.errors import UnsafePath
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.sink.segment import sink_errors

if TYPE_CHECKING:
    from pathlib import Path

_UNCLEAN_STOPS: Final = ".unclean_stops"
_COUNT_MAX_BYTES: Final = 64


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
