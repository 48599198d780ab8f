# SPDX-License-Identifier: Apache-2.0
"""A tracefs instance that its process left, with its rings, and the note about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from collectord.kernel.values.ring_files import RingFiles
    from collectord.kernel.values.ring_stats import CpuStats


@dataclass(frozen=True, slots=True)
class InstanceNote:
    """A note about an instance for the next process.

    Attributes:
        directory: the folder of its segments.
        since_ns: REALTIME at which earlier processes had left it; 0 if there was none. The
            segments of the process that drains it are younger.
        taken: by CPU, a ring's counters as they were then; see `CpuStats.taken`.
        digest: of the plan that the next process must have to go on with it. "" while a process
            drains it: after a crash its rings are salvaged.
    """

    directory: Path
    since_ns: int = 0
    taken: dict[int, CpuStats] = field(default_factory=dict)
    digest: str = ""


@dataclass(frozen=True, slots=True)
class LeftRing:
    """The ring of one CPU that a crash left.

    Attributes:
        files: its files, open until the instance is released.
        stats: its counters since its process began, final; `entries` are the events that nobody
            took.
        handed: its reader's sub-buffer, as far as it was handed out; None if nothing was, or if
            this kernel cannot show it.
    """

    files: RingFiles
    stats: CpuStats
    handed: bytes | None


@dataclass(frozen=True, slots=True)
class LeftInstance:
    """An instance that a crash left, taken over.

    Attributes:
        id: its number at the port, of no other instance before or after it.
        name: name of the instance.
        session: session that it belonged to.
        created_ns: REALTIME of its making, no later than that, or of its being left to the process
            that a crash ended; the files of that process are younger.
        buffer_bytes: size of each CPU's ring.
        subbuf_bytes: size of a sub-buffer with its header.
        buffer_percent: see `InstanceSettings`.
        rings: by CPU, those that were ever written to.
    """

    id: int
    name: str
    session: str
    created_ns: int
    buffer_bytes: int
    subbuf_bytes: int
    buffer_percent: int
    rings: Mapping[int, LeftRing]
