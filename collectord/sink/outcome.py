# SPDX-License-Identifier: Apache-2.0
"""Sink stage: what a repair has made of a segment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.sink.segment import SegmentPaths
    from collectord.sink.stored import Survey


class Action(StrEnum):
    """The outcome of a repair. DAMAGED: the file is sealed, its manifest cannot be read."""

    RECOVERED = "recovered"
    COMPLETED = "completed"
    REMOVED = "removed"
    IN_USE = "in_use"
    REFUSED = "refused"
    DAMAGED = "damaged"
    FAILED = "failed"


# Something is wrong that stays so.
UNREPAIRED: Final = frozenset({Action.REFUSED, Action.DAMAGED, Action.FAILED})


@dataclass(frozen=True, slots=True)
class Outcome:
    """One file that a repair came to.

    Attributes:
        path: the sealed segment of RECOVERED and COMPLETED, else the file as it was found.
        detail: one line for the user.
        samples: what a recovered segment holds.
        bytes: its size.
        allocated_bytes: blocks that it occupies.
        set_aside: a manifest that nobody can read, where it is by now; None without.
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
        """Whether something is wrong that no repair makes good."""
        return self.action in UNREPAIRED or self.set_aside is not None


def refused(paths: SegmentPaths, reason: str) -> Outcome:
    """A segment that is left as it is."""
    return Outcome(paths.partial, Action.REFUSED, f"left alone: {reason}")


def kept_text(found: Survey) -> str:
    """Say in one line what a repair keeps of a file, and what not."""
    parts = [f"{found.samples} samples kept"]
    if found.cuts:
        size, places = sum(cut.bytes for cut in found.cuts), len(found.cuts)
        where = f"at byte {found.cuts[0].offset}" if places == 1 else f"in {places} places"
        parts.append(f"{size} damaged bytes {where} cut out")
    parts.append(f"{found.cut_bytes} bytes behind them cut off")
    why = f" ({found.reason})" if found.reason else ""
    return ", ".join(parts) + why
