# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the directory of one sink: the names used in it, and the chain it continues."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from collectord.errors import SinkError
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder, remove_made
from collectord.sink import chain_log, repair
from collectord.sink.manifest import Link, OpenManifest, decode, is_manifest, link
from collectord.sink.segment import (
    DIRECTORY_MODE,
    SegmentPaths,
    group_files,
    read_manifest,
    read_other_manifest,
    segment_name,
    sink_errors,
)
from collectord.sink.segment_lock import lock_new

if TYPE_CHECKING:
    from collectord.folders.folder import Folder
    from collectord.plan.sink_plan import SinkPlan
    from collectord.sink.chain_log import ChainLog


class OutputDir:
    """The folder that a sink's files go to, held open.

    Args:
        plan: names the directory, or the one file.
        file_format: of the files; numbers and chain are those of its segments.
        folder: of another sink that writes to the same folder and closes it.

    Attributes:
        folder: the open folder.
        previous: the manifest that was sealed last, which the next one refers to.
        base: the last name that was used, without the format.

    Raises:
        SinkError: the directory cannot be made, read or written, or others may change it.
    """

    def __init__(self, plan: SinkPlan, file_format: str, folder: Folder | None = None) -> None:
        self.previous: Link | None = None
        self._plan = plan
        self._format = file_format
        self.base = ""
        self._sequence = 0
        self._borrowed = folder is not None
        self.folder = folder or open_output_dir(Path(plan.directory))
        self._made = self.folder.made
        self.catch_up()

    def catch_up(self) -> None:
        """Continue behind the segments that are in the folder now. Raises SinkError."""
        if self._plan.single_file is not None:
            return
        for group in group_files(self.folder):
            if group.paths.format != self._format:
                continue
            self._sequence = max(self._sequence, group.paths.sequence)
            if group.sealed:
                name = group.paths.manifest
                with sink_errors("cannot read the manifest", name):
                    raw = read_other_manifest(self.folder, name)
                self.previous = link(name.name, raw) if raw else self.previous
        self._heed(self._read_log())

    def _read_log(self) -> ChainLog | None:
        name = self.folder.path / chain_log.NAME
        with sink_errors("cannot read the list of segments", name, reading=True):
            return chain_log.read(self.folder)

    def _heed(self, log: ChainLog | None) -> None:
        """Continue behind what was sealed here and is gone: the chain then shows that it is."""
        for entry in log.entries.values() if log is not None else ():
            paths = SegmentPaths(self.folder.path, entry.segment)
            if paths.format != self._format:
                continue
            self._sequence = max(self._sequence, paths.sequence)
            newest = self.previous
            is_newer = newest is None or newest.manifest < paths.manifest.name
            if is_newer and entry.sha256 and self.folder.stat(paths.manifest.name) is None:
                self.previous = Link(manifest=paths.manifest.name, sha256=entry.sha256)

    def claim(self, started_ns: int) -> tuple[SegmentPaths, int]:
        """Create and lock a data file under an unused name.

        Raises:
            SinkError: it cannot be created.
        """
        self._find_again()
        while True:
            if self._plan.single_file is not None:
                paths = single_paths(self.folder, Path(self._plan.single_file).name)
            else:
                self._sequence += 1
                name = segment_name(started_ns, self._sequence, self._format)
                paths = SegmentPaths(self.folder.path, name)
                self.base = name.removesuffix(self._format)
                if self.folder.stat(name) is not None:  # a sealed segment of another recording
                    continue
            with sink_errors("cannot create a segment", paths.partial):
                try:
                    fd = self.folder.create(paths.partial.name)
                except FileExistsError:
                    if self._plan.single_file is not None:
                        repair.make_way(self.folder, paths)
                    continue
                # A repair may have found the file before the lock, and removed it as empty.
                if lock_new(fd) and os.fstat(fd).st_nlink:
                    return paths, fd
                os.close(fd)

    def _find_again(self) -> None:
        """Open the folder that has the name now, if the open one was deleted."""
        if not self._borrowed and self.folder.is_deleted:
            self.folder = open_output_dir(self.folder.path)

    def remove_made(self) -> None:
        """Remove the empty directories made for a recording that stored nothing."""
        remove_made(self._made)

    def close(self) -> None:
        """Close the folder. May be called again."""
        if not self._borrowed:
            self.folder.close()


class FollowingOutputDir(OutputDir):
    """The place of files that accompany those of another sink, under their names.

    Args:
        plan: names the directory, or this sink's one file.
        file_format: of the files.
        leader: its folder and its last name, except for the format, are used.
    """

    def __init__(self, plan: SinkPlan, file_format: str, leader: OutputDir) -> None:
        super().__init__(plan, file_format, leader.folder)
        self._leader = leader

    def claim(self, started_ns: int) -> tuple[SegmentPaths, int]:
        """Create and lock the file with the leader's name. Raises SinkError (EEXIST)."""
        self.folder = self._leader.folder
        if self._plan.single_file is not None:
            return super().claim(started_ns)
        paths = SegmentPaths(self.folder.path, self._leader.base + self._format)
        with sink_errors("cannot create a segment", paths.partial):
            if self.folder.stat(paths.data.name) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            fd = self.folder.create(paths.partial.name)
            # No repair touches an empty file beside a leader that is locked.
            lock_new(fd)
        return paths, fd


def open_output_dir(path: Path) -> Folder:
    """Open a folder for segments; make it if it does not exist.

    Raises:
        SinkError: it cannot be made, read or written, or others may change it.
    """
    with sink_errors("cannot make the directory", path):
        folder = open_folder(path, Trust.WRITE, make_mode=DIRECTORY_MODE)
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder.fd, effective_ids=True):
        with folder, sink_errors("cannot write into the directory", path):
            read_only = os.fstatvfs(folder.fd).f_flag & os.ST_RDONLY
            code = errno.EROFS if read_only else errno.EACCES
            raise OSError(code, os.strerror(code))
    return folder


def single_paths(folder: Folder, name: str) -> SegmentPaths:
    """Return the names of a recording to one file of a folder.

    Raises:
        SinkError: something else has that name, or the name under which the replaced file is kept.
            The seal renames onto both, which must not be a directory, a device or a link that
            somebody relies on.
    """
    paths = SegmentPaths(folder.path, name)
    if not name:
        raise SinkError(
            "is a directory", path=str(folder.path), errno=errno.EISDIR, hint="name a file in it"
        )
    for taken in (paths, paths.old):
        _check_replaceable(folder, taken)
    return paths


def _check_replaceable(folder: Folder, paths: SegmentPaths) -> None:
    status = folder.stat(paths.data.name)
    if status is not None and not stat.S_ISREG(status.st_mode):
        code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EEXIST
        raise SinkError(
            "not a regular file",
            path=str(paths.data),
            errno=code,
            hint="name a new or regular file, and read it once the recording is over",
        )
    with sink_errors("cannot read the manifest", paths.manifest, reading=True):
        raw = read_manifest(folder, paths.manifest)
    if folder.stat(paths.manifest.name) is not None and not is_manifest(raw):
        raise SinkError(
            "is not a manifest of collectord, and is not replaced",
            path=str(paths.manifest),
            errno=errno.EEXIST,
            hint="the manifest's name is the file's with .json: choose another name",
        )
    # A recording that was killed leaves these beside its data for a repair.
    if folder.stat(paths.partial.name) is None:
        for path in (paths.open_manifest, paths.new_manifest):
            _check_beside(folder, path)


def _check_beside(folder: Folder, path: Path) -> None:
    """Refuse foreign files at the names of a manifest that is being written.

    A file of another user is refused when it would be replaced.
    """
    status = folder.stat(path.name)
    if status is None or status.st_uid != os.geteuid():
        return
    with sink_errors("cannot read the manifest", path, reading=True):
        raw = read_manifest(folder, path)
    if raw.strip(b"\0") and not is_manifest(raw) and decode(raw, OpenManifest) is None:
        raise SinkError(
            "is not a manifest of collectord, and is not replaced",
            path=str(path),
            errno=errno.EEXIST,
            hint="a recording keeps its manifest there while it is written: choose another name",
        )
