# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the note in a session's folder that says until when its rings were open.

It is rewritten while the session runs, so a killed process leaves a note that is a little too old.
All notes are of one length and one write each, in place: a kill leaves the old or the new one, and
a full disk has room for all but the first. A note that was damaged nevertheless is none: the time
of that session is then unknown. The sources of a session share its folder, and each has a note.
"""

from __future__ import annotations

import os
from collections.abc import Mapping  # noqa: TC003 - msgspec reads annotations
from typing import TYPE_CHECKING, Final

import msgspec

from collectord.errors import UnsafePath
from collectord.folders.folder import opened, write_all
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.model import ClockReading  # noqa: TC001 - msgspec reads annotations
from collectord.sink.manifest import Count  # noqa: TC001 - msgspec reads annotations
from collectord.sink.segment import sink_errors
from collectord.text.foreign import decoded, encode_json

if TYPE_CHECKING:
    from pathlib import Path

PREFIX: Final = ".covered-"  # the source follows
_BYTES: Final = 512


class Covered(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a note.

    Attributes:
        boot_id: of the boot in which it was written.
        process: of the process that wrote it, another for each.
        until: a reading of the clocks until which the rings were open.
        stopped: the session was stopped then; without it, the process was killed later.
        gaps_ns: `model.GapCause` to the total of the gaps before.
    """

    boot_id: str
    process: str
    until: ClockReading
    stopped: bool
    gaps_ns: Mapping[str, Count] = {}


def read(directory: Path, source: str) -> Covered | None:
    """Return a source's note in a folder; None if there is none, or none that can be read.

    Raises:
        SinkError: the folder cannot be read.
    """
    telling = sink_errors("cannot read the directory", directory, reading=True)
    with telling, open_folder(directory) as folder:
        try:
            data = folder.read(PREFIX + source, _BYTES)
        except (FileNotFoundError, UnsafePath):
            return None
    return decoded(data, Covered)


def write(directory: Path, source: str, note: Covered, *, durable: bool = False) -> None:
    """Write a source's note in a folder.

    Args:
        directory: the folder.
        source: the kind of source, as in the ledger.
        note: the new contents.
        durable: wait for the disk.

    Raises:
        SinkError: it cannot be written.
    """
    data = encode_json(note).ljust(_BYTES - 1) + b"\n"
    name = PREFIX + source
    telling = sink_errors("cannot note until when events were recorded", directory / name)
    with telling, open_folder(directory, Trust.WRITE) as folder:
        try:
            fd = folder.open(name, write=True)
        except FileNotFoundError:
            fd = folder.create(name)
        with opened(fd):
            write_all(fd, data, 0)
            os.ftruncate(fd, len(data))  # nothing of something longer stays
            if durable:
                os.fdatasync(fd)
                folder.sync()
