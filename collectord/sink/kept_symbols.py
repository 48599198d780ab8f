# SPDX-License-Identifier: Apache-2.0
"""Sink stage: symbols that may be gone later, kept beside each segment of one session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.sink.perf_map_copies import Kept, MapCopies
from collectord.sink.segment import sink_errors
from collectord.sink.sidecar_files import remove_lone
from collectord.sink.symbol_list import ModuleLists

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


class KeptSymbols:
    """Keeps lists of the functions of kernel modules, and maps of code that processes made.

    Args:
        directory: of the session; nothing is done there yet.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._maps = MapCopies()
        self._modules = ModuleLists()

    def keep(self, segment: str, makers: Collection[int]) -> Kept:
        """Keep what the names in a sealed segment need; it may wait for ever for a process's map.

        Args:
            segment: its name.
            makers: processes that made code.

        Raises:
            SinkError: it cannot be kept.
        """
        with (
            sink_errors("cannot keep symbols", self._directory / segment),
            open_folder(self._directory, Trust.WRITE) as folder,
        ):
            try:
                self._modules.keep(folder, segment)
                return self._maps.keep(folder, segment, makers) if makers else Kept()
            finally:
                remove_lone(folder)  # the segment may have been deleted meanwhile
