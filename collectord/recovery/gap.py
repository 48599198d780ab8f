# SPDX-License-Identifier: Apache-2.0
"""The gap before a session: the time in which none of its rings was open, and its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from collectord.model import GapCause
from collectord.sink import covered_note
from collectord.sink.manifest import Gap

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.model import ClockReading
    from collectord.sink.covered_note import Covered


def gap_since(before: Covered, boot_id: str, now: ClockReading, *, changed: bool = False) -> Gap:
    """Return the gap from the end of the time that a note tells of until now.

    Within a boot the monotonic clock measures it. Over a boot only the wall clock can; if that was
    set back meanwhile the gap is too short, and 0 at least.

    Args:
        before: the note.
        boot_id: of this boot.
        now: the present time.
        changed: a reload stopped the session, in this process.
    """
    booted = before.boot_id != boot_id
    clock = "realtime_ns" if booted else "monotonic_ns"
    length_ns = max(0, getattr(now, clock) - getattr(before.until, clock))
    ended = GapCause.STOP if before.stopped else GapCause.KILL
    ended = GapCause.RELOAD if changed else ended
    return Gap(
        from_ns=now.realtime_ns - length_ns,
        until_ns=now.realtime_ns,
        cause=GapCause.BOOT if booted else ended,
    )


def pause_since(since_ns: int, now: ClockReading) -> Gap:
    """Return the gap in rings that stood still for a snapshot as their process was killed.

    Args:
        since_ns: MONOTONIC time since when.
        now: the present time.
    """
    length_ns = max(0, now.monotonic_ns - since_ns)
    return Gap(from_ns=now.realtime_ns - length_ns, until_ns=now.realtime_ns, cause=GapCause.KILL)


def extend_covered(directory: Path, source: str, boot_id: str, now: ClockReading) -> None:
    """Note that a killed session's rings, which outlived their process, recorded until now.

    Args:
        directory: the session's folder.
        source: the kind of its source.
        boot_id: of this boot; a note of an earlier one is left alone.
        now: the present time.

    Raises:
        SinkError: the note cannot be read or written.
    """
    before = covered_note.read(directory, source)
    if before is not None and before.boot_id == boot_id:
        covered_note.write(directory, source, msgspec.structs.replace(before, until=now))
