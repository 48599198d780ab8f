# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the result of a repair for each file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from collectord.model import Basis, RingRole
from collectord.sink.manifest import Cut

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from collectord.sink.manifest import RingEntry
    from collectord.sink.segment import SegmentPaths
    from collectord.sink.stored_file import FinishedFile, Survey


class Action(StrEnum):
    """The kind of outcome. DAMAGED: it is sealed, and its data or manifest are not sound."""

    RECOVERED = "recovered"
    COMPLETED = "completed"
    REMOVED = "removed"
    IN_USE = "in_use"
    REFUSED = "refused"
    DAMAGED = "damaged"
    FAILED = "failed"


# The outcomes after which something is still wrong.
UNREPAIRED: Final = frozenset({Action.REFUSED, Action.DAMAGED, Action.FAILED})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a repair for one file.

    Attributes:
        path: the sealed segment for RECOVERED and COMPLETED, else the file as it was found.
        detail: one line for the user.
        samples: events in a recovered segment.
        bytes: its size.
        allocated_bytes: blocks that it occupies.
        set_aside: the new path of an unreadable manifest; None without one.
    """

    path: Path
    action: Action
    detail: str
    samples: int = 0
    bytes: int = 0
    allocated_bytes: int = 0
    set_aside: Path | None = None

    @property
    def damaged(self) -> bool:
        """Whether something is wrong that a repair cannot mend."""
        return self.action in UNREPAIRED or self.set_aside is not None


def refused(paths: SegmentPaths, reason: str) -> Outcome:
    """Return the outcome for a segment that is left as it is."""
    return Outcome(paths.partial, Action.REFUSED, f"left alone: {reason}")


def recovered(
    path: Path, file: FinishedFile, found: Survey, detail: str, set_aside: Path | None = None
) -> Outcome:
    """Return the outcome for a segment that now holds what was found sound."""
    return Outcome(
        path=path,
        action=Action.RECOVERED,
        detail=detail,
        samples=found.samples,
        bytes=file.bytes,
        allocated_bytes=file.allocated_bytes,
        set_aside=set_aside,
    )


def recovered_fields(file: FinishedFile, found: Survey) -> dict[str, Any]:
    """Return the manifest fields that describe what a repair has kept."""
    return {
        "complete": False,
        "recovered": True,
        "first_ns": found.first_ns,
        "last_ns": found.last_ns,
        "records": None,
        "samples": found.samples,
        "replayed": None,
        "produced": None,
        "ledger": {"basis": str(Basis.NONE), "produced": None, "stored": found.samples},
        "bytes": file.bytes,
        "allocated_bytes": file.allocated_bytes,
        "data_bytes": file.data_bytes,
        "spans": file.spans,
        "cut": tuple(Cut(offset=cut.offset, bytes=cut.bytes) for cut in file.cuts),
    }


def with_tracks(
    rings: tuple[RingEntry, ...], offsets: Mapping[int, int], found: Survey
) -> tuple[RingEntry, ...]:
    """Set what is kept of AUX areas, and of rings that have a part of the file to themselves."""
    return tuple(_with_kept(entry, offsets, found) for entry in rings)


def _with_kept(entry: RingEntry, offsets: Mapping[int, int], found: Survey) -> RingEntry:
    if entry.role == RingRole.AUX:
        size = found.areas.get((entry.cpu, entry.tid), 0)
        return msgspec.structs.replace(entry, bytes=size)
    track = found.tracks.get(entry.cpu)
    if entry.cpu not in offsets or track is None:
        return entry
    return msgspec.structs.replace(
        entry, samples=track.samples, bytes=track.bytes, offset=offsets[entry.cpu]
    )


def kept_text(found: Survey) -> str:
    """Return one line about what a repair keeps of a file, and what not."""
    parts = [f"{found.samples} samples kept"]
    if found.cuts:
        size, places = sum(cut.bytes for cut in found.cuts), len(found.cuts)
        where = f"at byte {found.cuts[0].offset}" if places == 1 else f"in {places} places"
        parts.append(f"{size} damaged bytes {where} cut out")
    parts.append(f"{found.cut_bytes} bytes behind them cut off")
    why = f" ({found.reason})" if found.reason else ""
    return ", ".join(parts) + why
