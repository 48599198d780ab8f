# SPDX-License-Identifier: Apache-2.0
"""Sink stage: a segment's names on disk, and which of them a folder has.

    NAME.partial         the data file while it is written (locked by its writer)
    NAME.json.partial    its open manifest
    NAME.json.new        its manifest while it is written
    NAME.json, NAME      sealed
    NAME.json.damaged    an open manifest that could not be read when its segment was repaired
    NAME.packing         the compressed form of a sealed segment while it is written (locked too)
    NAME.PID.map.gz      functions that a process made while it ran, see `perf_map_copies`
    NAME.modules.gz      functions of modules and BPF programs, see `symbol_list`
    .sealed              what was sealed in the folder, and what was evicted, see `chain_log`

NAME is `<UTC start>-<seq>.<format>` in a state directory, or the argument of `record -o`. Numbers
and the chain of manifests continue within one format: a directory may hold the segments of a perf
and of a tracefs source.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from collectord.codec.file_formats import BLKTRACE, PERF_DATA, RELAY, TRACE_DAT
from collectord.errors import SinkError, UnsafePath
from collectord.folders.walk import open_folder
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from collectord.folders.folder import Folder

DIRECTORY_MODE: Final = 0o750
PARTIAL: Final = ".partial"
MANIFEST: Final = ".json"
OPEN_MANIFEST: Final = ".json.partial"
NEW_MANIFEST: Final = ".json.new"
DAMAGED_MANIFEST: Final = ".json.damaged"
PACKING: Final = ".packing"
# The ends of files that are kept beside a sealed segment for its symbols, as a pattern.
BESIDE_END: Final = ".gz"
BESIDE: Final = rf"\.(?:\d{{1,10}}\.map|modules){re.escape(BESIDE_END)}"
FORMATS: Final = (PERF_DATA, TRACE_DAT)
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})  # `make_room` may help against these
# A manifest has some hundred bytes for each ring and build-id; a larger file is not a manifest.
MANIFEST_MAX_BYTES: Final = 16 << 20
# Errors that may pass: the same call may succeed later.
PASSING: Final = FULL | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
BLOCK_BYTES: Final = 512  # unit of st_blocks, whatever the filesystem's block size

# The form of times in names of files.
_TIME: Final = "%Y%m%dT%H%M%SZ"
_FORMAT: Final = "|".join([*map(re.escape, FORMATS), rf"(?:{BLKTRACE}|{RELAY})\.\d+"])
_SET: Final = re.compile(
    rf"(?P<base>.+)\.(?P<kind>{BLKTRACE}|{RELAY})\.(?P<number>\d+)(?:\.recovered)*"
)
_NAME: Final = re.compile(
    rf"\d{{8}}T\d{{6}}Z-(?P<seq>\d{{6,}})\.(?P<format>{_FORMAT})(?:\.recovered)*"
)
# Longest first: `.json.partial` also ends in `.partial`.
_SUFFIXES: Final = (
    *(OPEN_MANIFEST, NEW_MANIFEST, DAMAGED_MANIFEST, MANIFEST),
    *(PARTIAL, PACKING, ""),
)

_KEPT_BESIDE: Final = re.compile(rf"(?P<name>.+?)(?P<suffix>{BESIDE})")

_READ_HINT: Final = f"give uid {os.geteuid()} read permission there, or run as a user who has it"
_HINTS: Final = {
    errno.EACCES: f"give uid {os.geteuid()} write permission there, or choose another directory",
    errno.EPERM: f"give uid {os.geteuid()} write permission there, or choose another directory",
    errno.EROFS: "the filesystem is mounted read-only",
    errno.ENOSPC: "free some space, or lower the limits in [retention]",
    errno.EDQUOT: "the quota is used up: free some space, or lower the limits in [retention]",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EMFILE: "raise the limit of open files (RLIMIT_NOFILE)",
    errno.ENAMETOOLONG: "choose a shorter name",
}


@contextmanager
def sink_errors(message: str, path: Path, *, reading: bool = False) -> Iterator[None]:
    """Turn an OSError of the block into a SinkError with a hint.

    Args:
        message: what failed.
        path: the file or directory concerned.
        reading: the block writes nothing.

    Raises:
        SinkError: in place of any OSError.
    """
    try:
        yield
    except OSError as error:
        code = error.errno or errno.EIO
        hint = _HINTS.get(code, "")
        if reading and code == errno.EACCES:
            hint = _READ_HINT
        raise SinkError(message, path=str(path), errno=code, hint=hint) from error


@dataclass(frozen=True, slots=True, order=True)
class SegmentPaths:
    """The names of a segment's files during its life. Ordered by directory, then by age."""

    directory: Path
    name: str

    @property
    def data(self) -> Path:
        """The path of the sealed segment."""
        return self.directory / self.name

    @property
    def partial(self) -> Path:
        """The path of the segment while it is written."""
        return self.directory / (self.name + PARTIAL)

    @property
    def manifest(self) -> Path:
        """The path of the sealed manifest."""
        return self.directory / (self.name + MANIFEST)

    @property
    def open_manifest(self) -> Path:
        """The path of the manifest that a repair needs while the segment is written."""
        return self.directory / (self.name + OPEN_MANIFEST)

    @property
    def new_manifest(self) -> Path:
        """The path of the sealed manifest before its rename."""
        return self.directory / (self.name + NEW_MANIFEST)

    @property
    def damaged_manifest(self) -> Path:
        """The path of an unreadable open manifest that was set aside."""
        return self.directory / (self.name + DAMAGED_MANIFEST)

    @property
    def packing(self) -> Path:
        """The path of its compressed form before its rename."""
        return self.directory / (self.name + PACKING)

    @property
    def old(self) -> SegmentPaths:
        """The names under which a replaced file of this name is kept, as with perf."""
        match = _SET.fullmatch(self.name)
        if match is None:
            return SegmentPaths(self.directory, f"{self.name}.old")
        name = f"{match['base']}.old.{match['kind']}.{match['number']}"
        return SegmentPaths(self.directory, name)

    @property
    def rotated(self) -> bool:
        """Whether a session made the name, as opposed to `record -o`."""
        return _NAME.fullmatch(self.name) is not None

    @property
    def sequence(self) -> int:
        """The number of the segment among those of its format, 0 for a name from `record -o`."""
        match = _NAME.fullmatch(self.name)
        return int(match["seq"]) if match else 0

    @property
    def format(self) -> str:
        """The format by the name: one of FORMATS, or a set's with its number; "" after `-o`."""
        match = _NAME.fullmatch(self.name)
        return match["format"] if match else ""

    @property
    def set_name(self) -> str:
        """The common part of the names of a set's files; for other segments the name."""
        match = _SET.fullmatch(self.name)
        return f"{match['base']}.{match['kind']}" if match else self.name

    @property
    def set_format(self) -> str:
        """A set's format, `blktrace.N` or `relay.N`, also of a `record -o`; "" for other files."""
        match = _SET.fullmatch(self.name)
        return f"{match['kind']}.{match['number']}" if match else ""

    @property
    def set_kind(self) -> str:
        """The kind of a set's file, `blktrace` or `relay`; "" for other files."""
        match = _SET.fullmatch(self.name)
        return match["kind"] if match else ""

    @property
    def set_number(self) -> int:
        """The number of a file in its set; 0 for other files."""
        match = _SET.fullmatch(self.name)
        return int(match["number"]) if match else 0


@dataclass(frozen=True, slots=True)
class Group:
    """The files of one segment in a directory, by suffix; those of `SegmentPaths` and beside."""

    paths: SegmentPaths
    suffixes: frozenset[str]

    @property
    def sealed(self) -> bool:
        """Whether no part of it is being written, or was left half-way."""
        return not self.suffixes & {PARTIAL, OPEN_MANIFEST, NEW_MANIFEST}


def segment_name(started_ns: int, sequence: int, suffix: str) -> str:
    """Name a segment by its start (REALTIME, ns) and its number in the directory."""
    return f"{name_of_time(started_ns)}-{sequence:06d}.{suffix}"


def name_of_time(realtime_ns: int) -> str:
    """Return a time to the second, as names of files begin: their order is that of the times."""
    return f"{datetime.fromtimestamp(realtime_ns // NS_PER_SECOND, tz=UTC):{_TIME}}"


def time_of_name(name: str) -> int | None:
    """Return the time by which a name begins, in front of its first "-"; None if it has none."""
    try:
        told = datetime.strptime(name.partition("-")[0], _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(told.timestamp()) * NS_PER_SECOND


def map_copy_name(segment: str, pid: int) -> str:
    """Name the copy of a process's map beside a segment."""
    return f"{segment}.{pid}.map{BESIDE_END}"


def modules_name(segment: str) -> str:
    """Name the list of the modules' functions beside a segment."""
    return f"{segment}.modules{BESIDE_END}"


def group_files(folder: Folder) -> list[Group]:
    """Sort the files of one folder into segments, oldest first; foreign files are left out.

    A name that no session makes counts only with an open or a sealed manifest beside it, and
    what is kept beside segments counts only beside others.

    Raises:
        SinkError: the directory cannot be read.
    """
    found: dict[str, set[str]] = {}
    with sink_errors("cannot read the directory", folder.path, reading=True):
        for name, is_file, _ in folder.entries():
            if is_file:
                stem, suffix = _parted(name)
                found.setdefault(stem, set()).add(suffix)
    groups = [
        Group(SegmentPaths(folder.path, name), frozenset(suffixes))
        for name, suffixes in sorted(found.items())
    ]
    return [
        group
        for group in groups
        if (group.paths.rotated and not group.suffixes.isdisjoint(_SUFFIXES)) or _is_single(group)
    ]


def _parted(name: str) -> tuple[str, str]:
    kept = _KEPT_BESIDE.fullmatch(name)
    if kept is not None:
        return kept["name"], kept["suffix"]
    suffix = next(suffix for suffix in _SUFFIXES if name.endswith(suffix))
    return name.removesuffix(suffix), suffix


def _is_single(group: Group) -> bool:
    data = group.suffixes & {"", PARTIAL}
    manifest = group.suffixes & {MANIFEST, OPEN_MANIFEST, NEW_MANIFEST}
    return bool(data and manifest)


def session_names(root: Folder) -> list[str]:
    """Return the names of the session folders in a folder, and first "" for the folder itself.

    Raises:
        SinkError: the folder cannot be read.
    """
    with sink_errors("cannot read the directory", root.path, reading=True):
        return ["", *(name for name, _, is_folder in root.entries() if is_folder)]


def segment_directories(root: Path) -> list[Path]:
    """Return `root` and the session directories directly below it, to be opened later.

    Raises:
        SinkError: the directory cannot be read.
    """
    with sink_errors("cannot read the directory", root, reading=True), open_folder(root) as folder:
        return [root / name for name in session_names(folder)]


def session_folder(root: Folder, name: str) -> AbstractContextManager[Folder]:
    """Open one of `session_names` for the duration of a block. Raises SinkError."""
    if not name:
        return nullcontext(root)
    with sink_errors("cannot read the directory", root.path / name, reading=True):
        return root.enter(name)


def read_manifest(folder: Folder, path: Path) -> bytes:
    """Read a manifest in an open folder; empty if there is none.

    Raises:
        OSError: it cannot be read.
        UnsafePath: it is not a plain file, or larger than a manifest can be.
    """
    try:
        return folder.read(path.name, MANIFEST_MAX_BYTES)
    except FileNotFoundError:
        return b""


def read_other_manifest(folder: Folder, path: Path) -> bytes:
    """Read a manifest that is only referred to; return b"" if it is not a plain file."""
    try:
        return read_manifest(folder, path)
    except UnsafePath:
        return b""
