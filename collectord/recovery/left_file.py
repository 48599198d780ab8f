# SPDX-License-Identifier: Apache-2.0
"""A file that a killed daemon left open, into which what was in its memory is written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from collectord.sink.manifest import OpenManifest, decode
from collectord.sink.segment import read_manifest

if TYPE_CHECKING:
    from collectord.folders.folder import Folder
    from collectord.sink.segment import SegmentPaths


class LeftFile:
    """A file of a segment that the killed daemon left open, locked.

    Args:
        folder: of its session.
        paths: its own.
        fd: its descriptor.

    Attributes:
        key: its device and inode.
        manifest: None if it cannot be read.
    """

    def __init__(self, folder: Folder, paths: SegmentPaths, fd: int) -> None:
        self._folder = folder
        self._paths = paths
        self._fd = fd
        status = os.fstat(fd)
        self.key = status.st_dev, status.st_ino
        self.manifest = decode(read_manifest(folder, paths.open_manifest), OpenManifest)

    @property
    def run(self) -> str:
        """The run of the segment that is repaired."""
        return self.manifest.run if self.manifest is not None else ""
