# SPDX-License-Identifier: Apache-2.0
"""Names of code that a process makes while it runs: perf-PID.map, as perf reads it.

Interpreters and virtual machines write them on request, such as `python3 -X perf`, `node
--perf-basic-prof` and Java agents: a line for each function, with START and SIZE in hexadecimal
and the name. Segments have copies (`sink.perf_map_copies`).
"""

from __future__ import annotations

import bisect
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from collectord.errors import UnsafePath
from collectord.folders.folder import opened, read_all
from collectord.sink.perf_map_copies import MAP_MAX_BYTES, kept_map, open_map

_LINE: Final = re.compile(rb"^(?:0x)?([0-9a-f]{1,16}) (?:0x)?([0-9a-f]{1,16}) (.+)$", re.MULTILINE)


class PerfMap:
    """Functions by address; of several at one place the one that was written last."""

    def __init__(self, text: bytes = b"") -> None:
        found = {int(line[1], 16): (int(line[2], 16), line[3]) for line in _LINE.finditer(text)}
        self._begins = sorted(found)
        self._found = found

    def __len__(self) -> int:
        """Return the number of functions."""
        return len(self._begins)

    def find(self, address: int) -> str | None:
        """Return the name of the function at an address."""
        at = bisect.bisect_right(self._begins, address) - 1
        if at < 0:
            return None
        begin = self._begins[at]
        size, name = self._found[begin]
        return name.decode(errors="backslashreplace") if address < begin + size else None


def of_process(pid: int, root: Path = Path("/")) -> PerfMap:
    """Return the map of a process that lives, or has lived; an empty one if it has left none.

    Args:
        pid: of the process.
        root: of the file system.
    """
    with suppress(OSError, UnsafePath), opened(open_map(pid, root)) as fd:
        return PerfMap(read_all(fd, root, MAP_MAX_BYTES))
    return PerfMap()


def of_segment(pid: int, segment: Path, *, is_live: bool) -> PerfMap:
    """Return the map of a process that ran in a segment.

    The copy beside the segment is from its time; only without one it is the present map.

    Args:
        pid: of the process.
        segment: its path.
        is_live: it is of this boot: the process may have its map still.
    """
    kept = PerfMap(kept_map(segment, pid))
    return kept if len(kept) or not is_live else of_process(pid)
