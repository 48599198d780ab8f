# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the directory of one sink: the names it takes there, and the chain it continues."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from collectord.errors import SinkError
from collectord.sink import repair
from collectord.sink.manifest import Link, is_manifest, link
from collectord.sink.segment import (
    DIRECTORY_MODE,
    FILE_MODE,
    SegmentPaths,
    group_files,
    lock,
    segment_name,
    sink_errors,
)

if TYPE_CHECKING:
    from collectord.plan.session import SinkPlan


class Home:
    """Where a sink's files go.

    Args:
        plan: the directory, or the one file.
        file_format: of the files; numbers and chain are those of its segments.

    Attributes:
        previous: the manifest that was sealed last, which the next one refers to.
        base: the last name that was taken, without the format.

    Raises:
        SinkError: the directory cannot be made, read or written.
    """

    def __init__(self, plan: SinkPlan, file_format: str) -> None:
        self.previous: Link | None = None
        self._plan = plan
        self._format = file_format
        self.base = ""
        self._sequence = 0
        self._directory = Path(plan.directory)
        places = (self._directory, *self._directory.parents)
        with sink_errors("cannot make the directory", self._directory):
            self._made = [path for path in places if not path.exists()]
            self._directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        if not os.access(self._directory, os.W_OK | os.X_OK, effective_ids=True):
            with sink_errors("cannot write into the directory", self._directory):
                read_only = os.statvfs(self._directory).f_flag & os.ST_RDONLY
                code = errno.EROFS if read_only else errno.EACCES
                raise OSError(code, os.strerror(code))
        if plan.single_file is None:
            self._continue()

    def _continue(self) -> None:
        for group in group_files(self._directory):
            if group.paths.format != self._format:
                continue
            self._sequence = max(self._sequence, group.paths.sequence)
            if group.sealed and group.paths.manifest.exists():
                name = group.paths.manifest
                with sink_errors("cannot read the manifest", name):
                    self.previous = link(name.name, name.read_bytes())

    def claim(self, started_ns: int) -> tuple[SegmentPaths, int]:
        """Create and lock a data file under a name that nobody has.

        Raises:
            SinkError: it cannot be created.
        """
        while True:
            if self._plan.single_file is not None:
                paths = single_paths(Path(self._plan.single_file))
            else:
                self._sequence += 1
                name = segment_name(started_ns, self._sequence, self._format)
                paths = SegmentPaths(self._directory, name)
                self.base = name.removesuffix(self._format)
                if paths.data.exists():  # another recording's, which is sealed
                    continue
            with sink_errors("cannot create a segment", paths.partial):
                try:
                    fd = os.open(
                        paths.partial,
                        os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
                        FILE_MODE,
                    )
                except FileExistsError:
                    if self._plan.single_file is not None:
                        repair.make_way(paths)
                    continue
                # A repair may have found the file before the lock, and removed it as empty.
                if lock(fd) and os.fstat(fd).st_nlink:
                    return paths, fd
                os.close(fd)

    def remove_made(self) -> None:
        """Leave no empty directory behind a recording that never was."""
        for directory in self._made:
            try:
                directory.rmdir()
            except OSError:  # it has an unsealed segment, or another program's files: it stays
                break


class FollowingHome(Home):
    """Where the files go that belong to those of another sink: under their names.

    Args:
        plan: the directory, or this sink's one file.
        file_format: of the files.
        leader: its last name is taken, but for the format.
    """

    def __init__(self, plan: SinkPlan, file_format: str, leader: Home) -> None:
        super().__init__(plan, file_format)
        self._leader = leader

    def claim(self, started_ns: int) -> tuple[SegmentPaths, int]:
        """Create and lock the file of the leader's name. Raises SinkError (EEXIST)."""
        if self._plan.single_file is not None:
            return super().claim(started_ns)
        paths = SegmentPaths(self._directory, self._leader.base + self._format)
        with sink_errors("cannot create a segment", paths.partial):
            if paths.data.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            fd = os.open(paths.partial, flags, FILE_MODE)
            # Nobody repairs an empty file beside a leader that is locked.
            lock(fd)
        return paths, fd


def single_paths(file: Path) -> SegmentPaths:
    """Names of a recording to one file.

    Raises:
        SinkError: there is something else of that name. The seal replaces what it finds, and that
            must not be a directory, a device or a link that somebody relies on.
    """
    if file.is_symlink() or (file.exists() and not file.is_file()):
        code = errno.EISDIR if file.is_dir() else errno.EEXIST
        raise SinkError(
            "not a regular file", path=str(file), errno=code, hint="name a new or regular file"
        )
    paths = SegmentPaths(file.parent, file.name)
    manifest = paths.manifest
    if manifest.exists() and not (manifest.is_file() and is_manifest(manifest.read_bytes())):
        raise SinkError(
            "no manifest of ours, and not replaced by one",
            path=str(manifest),
            errno=errno.EEXIST,
            hint="the manifest's name is the file's with .json: choose another name",
        )
    return paths
