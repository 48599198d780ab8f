# SPDX-License-Identifier: Apache-2.0
"""Where the segments of a tracefs instance are, for whoever finds it after a crash.

An instance lives until the next boot, and so does a file below /run: each instance has one while
it is there. Without it nobody could tell what of its events was stored.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from collectord.errors import KernelError

NOTES: Final = Path("/run/collectord/instances")


def write_note(instance: str, directory: Path, notes: Path = NOTES) -> None:
    """Note where an instance's segments go. Raises KernelError."""
    new = notes / f".{instance}"
    try:
        notes.mkdir(parents=True, exist_ok=True)
        new.write_bytes(os.fsencode(directory.absolute()))
        new.rename(notes / instance)
    except OSError as error:
        raise KernelError(
            f"cannot note in {notes} where the segments of {instance} are",
            errno=error.errno or 0,
            hint="after a crash they would not be found",
        ) from error


def read_note(instance: str, notes: Path = NOTES) -> Path | None:
    """Where an instance's segments are, None if nobody noted it."""
    try:
        return Path(os.fsdecode((notes / instance).read_bytes()))
    except OSError:
        return None


def remove_note(instance: str, notes: Path = NOTES) -> None:
    """Forget an instance that is gone; its note too may be."""
    with suppress(OSError):  # what stays is overwritten by the next instance of that name
        (notes / instance).unlink()
