# SPDX-License-Identifier: Apache-2.0
"""Sink stage: a link beside the segments of a stream, which leads to the running one.

It is called `current-FORMAT`, such as current-perf.data: no pattern that finds sealed segments
finds it too. After a kill it leads to the file that was written then, or nowhere, until the next
segment begins.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collectord.folders.folder import Folder


class CurrentLink:
    """The link for the segments of one format in a folder."""

    def __init__(self, file_format: str) -> None:
        self._name = f"current-{file_format}"

    def lead_to(self, folder: Folder, name: str) -> None:
        """Let the link lead to a file of the folder, in one step.

        Raises:
            OSError: it cannot be made, or something else has its name (EEXIST).
        """
        made = f".{self._name}.new"
        for taken in (self._name, made):
            status = folder.stat(taken)
            if status is not None and not stat.S_ISLNK(status.st_mode):
                raise FileExistsError(errno.EEXIST, f"{taken} is not a link")
        folder.remove(made, missing_ok=True)
        os.symlink(name, made, dir_fd=folder.fd)
        folder.rename(made, self._name)

    def leave(self, folder: Folder, name: str) -> None:
        """Remove the link if it leads to this file; where that fails, it leads nowhere."""
        with suppress(OSError):
            if os.readlink(self._name, dir_fd=folder.fd) == name:
                folder.remove(self._name)
