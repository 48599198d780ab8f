# SPDX-License-Identifier: Apache-2.0
"""The plan of the files that a session writes, and of those that are deleted for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from collectord.text.foreign import plain


@dataclass(frozen=True, slots=True)
class HoldPlan:
    """Limits of keeping segments beyond the others until they are shipped.

    Attributes:
        note: folder with the note of what was shipped.
        folders: name and folder of each session that is shipped.
        bytes: allocated bytes of segments that wait, beyond the limit of all segments.
        age_ns: beyond the limit of the age.
    """

    note: str = ""
    folders: tuple[tuple[str, str], ...] = ()
    bytes: int = 0
    age_ns: int = 0


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Limits of the state directory over all sessions; 0 for no limit.

    Attributes:
        bytes: allocated bytes of all segments.
        percent: the same as a share of the state directory's file system; the smaller one holds.
        age_ns: age of a segment's last record.
        free_bytes: floor of free bytes on the file system.
        free_percent: the same as a share of the file system's size.
        hold: what is kept longer.
    """

    bytes: int = 0
    percent: float = 0.0
    age_ns: int = 0
    free_bytes: int = 0
    free_percent: float = 0.0
    hold: HoldPlan = field(default_factory=HoldPlan)


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """The destination of a session's records.

    Attributes:
        format: "perf.data", "trace.dat", "blktrace" or "relay"; the last two are sets of files,
            one for each CPU, with its number after the format.
        directory: folder of the session's segments; of `single_file` its parent.
        single_file: the one file to write, None for rotated segments.
        segment_bytes: a segment is closed when it reaches it; 0 for no limit.
        segment_age_ns: a segment is closed when this old; 0 for no limit.
        retention: limits that remove old segments; none for a single file.
        compress_after_ns: a sealed segment is compressed when it is this old; 0 for never.
        keeps_maps: names of code that processes made are copied beside segments.
    """

    format: str
    directory: str
    single_file: str | None = None
    segment_bytes: int = 0
    segment_age_ns: int = 0
    retention: RetentionPlan = field(default_factory=RetentionPlan)
    compress_after_ns: int = 0
    keeps_maps: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the destination for `check --json`."""
        return {
            "format": self.format,
            "directory": self.directory,
            "file": self.single_file,
            **plain(self, "format", "directory", "single_file"),
        }
