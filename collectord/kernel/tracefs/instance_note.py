# SPDX-License-Identifier: Apache-2.0
"""Notes of where the segments of a tracefs instance are, to be found after a crash.

An instance lives until the next boot, and so does a file below /run: each instance has a note
while it exists. Without it nobody could tell which of its events were stored.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from collectord.errors import KernelError, UnsafePath
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder

NOTES: Final = Path("/run/collectord/instances")
NOTES_MODE: Final = 0o755
_PATH_MAX_BYTES: Final = 4096


def write_note(instance: str, directory: Path, notes: Path = NOTES) -> None:
    """Note where an instance's segments go.

    Raises:
        KernelError: it cannot be written.
        UnsafePath: others can write there.
    """
    try:
        with open_folder(notes, Trust.WRITE, make_mode=NOTES_MODE) as folder:
            folder.put(instance, os.fsencode(directory.absolute()))
    except OSError as error:
        raise KernelError(
            f"cannot write a note in {notes} about the segments of {instance}",
            errno=error.errno or 0,
            hint="after a crash they would not be found",
        ) from error


def read_note(instance: str, notes: Path = NOTES) -> Path | None:
    """Return the folder of an instance's segments, None if nobody noted it."""
    try:
        with open_folder(notes) as folder:
            return Path(os.fsdecode(folder.read(instance, _PATH_MAX_BYTES)))
    except (OSError, UnsafePath):
        return None


def remove_note(instance: str, notes: Path = NOTES) -> None:
    """Remove the note of an instance that is gone; the note may be gone, too."""
    # A note that remains is overwritten by the next instance of that name.
    with suppress(OSError, UnsafePath), open_folder(notes, Trust.WRITE) as folder:
        folder.remove(instance)
