# SPDX-License-Identifier: Apache-2.0
"""Notes about tracefs instances for the next process: where their segments are, what was taken.

An instance lives until the next boot, and so does a file below /run: each instance has a note
while it exists. Without it nobody could tell which of its events were stored.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from collectord.errors import KernelError, UnsafePath
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.kernel.values.left_instance import InstanceNote
from collectord.kernel.values.ring_stats import CpuStats  # noqa: TC001 - msgspec resolves it
from collectord.model import RUN_DIRECTORY
from collectord.text.foreign import decode_json

if TYPE_CHECKING:
    from collectord.folders.folder import Folder

NOTES: Final = Path(RUN_DIRECTORY, "instances")
_NOTES_MODE: Final = 0o755
# A path, and some 200 bytes for each CPU.
_NOTE_MAX_BYTES: Final = 1 << 21


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A note as it is written; a path is bytes."""

    directory: bytes
    since_ns: int = 0
    taken: dict[int, CpuStats] = {}
    digest: str = ""


def open_notes(notes: Path) -> Folder:
    """Open a folder of notes to write to, which is made if it does not exist.

    It belongs to the owner of /run/collectord, so that the service can write there too if root was
    the first.

    Raises:
        OSError: it cannot be opened or made.
        UnsafePath: others can write there.
    """
    return open_folder(notes, Trust.WRITE, make_mode=_NOTES_MODE, owner_from_above=True)


def write_note(instance: str, note: InstanceNote, notes: Path = NOTES) -> None:
    """Write the note about an instance.

    Raises:
        KernelError: it cannot be written.
        UnsafePath: others can write there.
    """
    stored = _Stored(
        directory=os.fsencode(note.directory.absolute()),
        since_ns=note.since_ns,
        taken=note.taken,
        digest=note.digest,
    )
    try:
        with open_notes(notes) as folder:
            folder.put(instance, msgspec.json.encode(stored))
    except OSError as error:
        raise KernelError(
            f"cannot write a note in {notes} about the segments of {instance}",
            errno=error.errno or 0,
            hint="after a crash they would not be found",
        ) from error


def read_note(instance: str, notes: Path = NOTES) -> InstanceNote | None:
    """Return the note about an instance, None without one that can be read."""
    try:
        with open_folder(notes) as folder:
            found = decode_json(folder.read(instance, _NOTE_MAX_BYTES), _Stored)
    except (OSError, UnsafePath, msgspec.DecodeError):
        return None
    directory = Path(os.fsdecode(found.directory))
    return InstanceNote(directory, found.since_ns, found.taken, found.digest)


def remove_note(instance: str, notes: Path = NOTES) -> None:
    """Remove the note of an instance that is gone; the note may be gone, too."""
    # A note that remains is overwritten by the next instance of that name.
    with suppress(OSError, UnsafePath), open_folder(notes, Trust.WRITE) as folder:
        folder.remove(instance)
