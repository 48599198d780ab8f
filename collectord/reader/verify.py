# SPDX-License-Identifier: Apache-2.0
"""Read stage: check sealed segments against their manifests, and list those of a directory."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain as joined
from typing import TYPE_CHECKING

from collectord.errors import CodecError, SinkError, UnsafePath
from collectord.folders.folder import opened
from collectord.folders.walk import open_folder
from collectord.reader import chain
from collectord.reader.chain import chain_findings
from collectord.sink import chain_log
from collectord.sink.formats import open_stored
from collectord.sink.manifest import (
    SCHEMA,
    Manifest,
    OpenManifest,
    damage,
    data_times,
    decode,
    foreign_schema,
)
from collectord.sink.scan import digest, mapped
from collectord.sink.segment import (
    BLOCK_BYTES,
    PARTIAL,
    Group,
    SegmentPaths,
    group_files,
    read_manifest,
    read_other_manifest,
    session_folder,
    session_names,
    sink_errors,
)
from collectord.sink.segment_lock import is_left
from collectord.sink.soundness import contents_findings
from collectord.sink.stored_file import Check, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from collectord.folders.folder import Folder
    from collectord.sink.chain_log import ChainLog
    from collectord.sink.stored_file import Shown


class State(StrEnum):
    """The state of a segment.

    RUNNING: it is written; ABANDONED: its writer died; DAMAGED: its manifest is damaged; UNKNOWN:
    it has none to read.
    """

    SEALED = "sealed"
    RECOVERED = "recovered"
    RUNNING = "running"
    ABANDONED = "abandoned"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the checks of one segment.

    Attributes:
        finding: the first fault, None for a sound segment.
        samples: according to the manifest; 0 without one.
        bytes: size of the file.
        sha256: of the whole file, if requested.
        allocated_bytes: blocks that the file occupies; less than its size if it has holes.
        early: see `Manifest`; false without one.
        uncompressed_bytes: blocks that it occupied before it was compressed; None if it is not.
    """

    path: Path
    state: State
    finding: Finding | None
    samples: int = 0
    bytes: int = 0
    sha256: str | None = None
    allocated_bytes: int = 0
    early: bool = False
    uncompressed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One line of `segments list`. Counts are None without a readable manifest.

    Of a segment that is not sealed, samples and times are those of the data that readers find.

    Attributes:
        started_ns: REALTIME when the file was created, some time before its first record.
        begins_ns, ends_ns: REALTIME of the first and the last record.
        first_ns, last_ns: their times on the clock that stamps the records.
        early: see `Manifest`.
        uncompressed_bytes: see `Verdict`.
    """

    path: Path
    format: str
    state: State
    session: str
    started_ns: int | None
    begins_ns: int | None
    ends_ns: int | None
    first_ns: int | None
    last_ns: int | None
    records: int | None
    samples: int | None
    complete: bool | None
    early: bool | None
    basis: str | None
    bytes: int
    allocated_bytes: int
    uncompressed_bytes: int | None


def _refuse(error: SinkError) -> None:
    raise error


def verify(
    targets: Sequence[Path],
    *,
    sha256: bool = False,
    on_closed: Callable[[SinkError], object] = _refuse,
) -> list[Verdict]:
    """Check segments: directories with the session directories below them, and single files.

    Segments that are being written are returned as RUNNING without a finding.

    Args:
        targets: what to check.
        sha256: hash whole files as well, if they have the size in their manifest.
        on_closed: called for each session directory that cannot be read; the others are checked.

    Raises:
        SinkError: a directory or a file cannot be read.
    """
    verdicts = []
    at: Folder | None = None
    log: ChainLog | None = None
    for folder, group in _groups(targets, on_closed, gone=True):
        with sink_errors("cannot read the segment", group.paths.data, reading=True):
            if folder is not at:
                at, log = folder, chain_log.read(folder)
            verdicts.append(_verdict(folder, group, log, sha256=sha256))
    return verdicts


def verify_files(
    directory: Path, files: Iterable[Path], log: ChainLog | None
) -> Iterator[Verdict]:
    """Yield the result of the checks of each of some files of a directory.

    Args:
        directory: of the session.
        files: their paths.
        log: the directory's list.

    Raises:
        SinkError: the directory or a file cannot be read.
    """
    with _opened(directory) as folder:
        for path in files:
            with sink_errors("cannot read the segment", path, reading=True):
                yield _verdict(folder, _group_of(path), log, sha256=False)


def list_segments(
    targets: Sequence[Path], *, on_closed: Callable[[SinkError], object] = _refuse
) -> list[SegmentRow]:
    """List segments: of directories with the session directories below them, and single files.

    Args:
        targets: what to list.
        on_closed: called for each session directory that cannot be read; the others are listed.

    Raises:
        SinkError: a directory or a file cannot be read.
    """
    rows = []
    for folder, group in _groups(targets, on_closed):
        with sink_errors("cannot read the segment", group.paths.data, reading=True):
            rows.append(_row(folder, group))
    return rows


def _groups(
    targets: Sequence[Path], on_closed: Callable[[SinkError], object], *, gone: bool = False
) -> Iterator[tuple[Folder, Group]]:
    """Yield segments, each with its folder, which stays open until the next one is requested.

    Args:
        targets: folders and files.
        on_closed: called for each folder that cannot be read.
        gone: yield those that somebody removed too, as groups without a file.
    """
    for target in targets:
        if target.is_dir():
            with _opened(target) as root:
                for name in session_names(root):
                    try:
                        with session_folder(root, name) as folder:
                            yield from _groups_of(folder)
                            if gone:
                                yield from _gone_of(folder)
                    except SinkError as error:
                        on_closed(error)
            continue
        if target.exists() and not target.is_file():
            hint = "name a segment or a directory"
            raise SinkError("not a regular file", path=str(target), hint=hint)
        with _opened(target.parent) as folder:
            yield folder, _group_of(target)


def _group_of(path: Path) -> Group:
    name = path.name.removesuffix(PARTIAL)
    return Group(SegmentPaths(path.parent, name), frozenset({path.name[len(name) :]}))


def _opened(path: Path) -> Folder:
    with sink_errors("cannot read the directory", path, reading=True):
        return open_folder(path)


def _groups_of(folder: Folder) -> Iterator[tuple[Folder, Group]]:
    for group in group_files(folder):
        if group.paths.rotated or _is_ours(folder, group):
            yield folder, group


def _gone_of(folder: Folder) -> Iterator[tuple[Folder, Group]]:
    with sink_errors("cannot read the list of segments", folder.path, reading=True):
        log = chain_log.read(folder)
    for entry in chain.gone(folder, log):
        yield folder, Group(SegmentPaths(folder.path, entry.segment), frozenset())


def _is_ours(folder: Folder, group: Group) -> bool:
    """Whether a segment that no session named has a manifest of this program."""
    paths = (group.paths.manifest, group.paths.open_manifest)
    raw = (read_other_manifest(folder, path) for path in paths)
    return any(
        decode(data, OpenManifest) is not None or foreign_schema(data) is not None for data in raw
    )


def _verdict(folder: Folder, group: Group, log: ChainLog | None, *, sha256: bool) -> Verdict:
    paths = group.paths
    if not group.suffixes:
        detail = "it was sealed here, and somebody has removed it with its manifest"
        return Verdict(paths.data, State.UNKNOWN, Finding(Check.CHAIN, detail))
    state = _state(folder, group)
    path = paths.partial if PARTIAL in group.suffixes else paths.data
    if state is State.RUNNING:
        return Verdict(path, state, None)
    if state is State.ABANDONED:
        hint = "its writer died; run `collectord segments repair`"
        return Verdict(path, state, Finding(Check.FILE, hint))
    if folder.stat(paths.data.name) is None:
        return Verdict(path, state, Finding(Check.FILE, "there is no such segment"))
    try:
        raw = read_manifest(folder, paths.manifest)
        fd = folder.open(path.name)
    except UnsafePath as error:
        return Verdict(path, state, Finding(Check.FILE, str(error)))
    manifest = decode(raw, Manifest)
    with opened(fd):
        finding = _manifest_finding(raw) if manifest is None else None
        if manifest is not None:
            findings = contents_findings(fd, paths, manifest)
            finding = next(joined(findings, chain_findings(folder, paths, manifest, log)), None)
        status = os.fstat(fd)
        # A file that somebody made longer may be all holes: 4 TiB of them take hours.
        is_whole = manifest is not None and status.st_size in _sizes(manifest)
        whole = _sha256(fd) if sha256 and is_whole else None
    return Verdict(
        path,
        state,
        finding,
        samples=manifest.samples if manifest else 0,
        bytes=status.st_size,
        sha256=whole,
        allocated_bytes=status.st_blocks * BLOCK_BYTES,
        early=manifest.early if manifest else False,
        uncompressed_bytes=_uncompressed_bytes(manifest, status),
    )


def _sizes(manifest: Manifest) -> tuple[int, ...]:
    """Return the sizes of the forms that the file may have."""
    packed = manifest.packed
    return (manifest.bytes,) if packed is None else (manifest.bytes, packed.bytes)


def _uncompressed_bytes(manifest: Manifest | None, status: os.stat_result | None) -> int | None:
    if manifest is None or manifest.packed is None or status is None:
        return None
    return manifest.allocated_bytes if status.st_size == manifest.packed.bytes else None


def _manifest_finding(raw: bytes) -> Finding:
    schema = foreign_schema(raw)
    if schema is not None:
        detail = f"manifest schema {schema} is of another version; this one knows {SCHEMA}"
        return Finding(Check.VERSION, detail)
    return Finding(Check.MANIFEST, "its manifest is damaged" if raw else "it has no manifest")


def _row(folder: Folder, group: Group) -> SegmentRow:
    paths = group.paths
    state = _state(folder, group)
    partial = state in (State.RUNNING, State.ABANDONED)
    path = paths.partial if partial else paths.data
    manifest: Manifest | OpenManifest | None
    raw = read_other_manifest(folder, paths.open_manifest if partial else paths.manifest)
    manifest = sealed = None if partial else decode(raw, Manifest)
    if partial:
        manifest = decode(raw, OpenManifest)
    data = sealed or (_shown(folder, paths) if partial else None)
    status = folder.stat(path.name)  # not smaller than what was read of it
    if partial and status is None:
        return _row(folder, group)  # sealed meanwhile
    times = data_times(manifest, data.first_ns, data.last_ns) if manifest and data else None
    begins_ns, ends_ns = times or (None, None)
    return SegmentRow(
        path=path,
        format=manifest.format if manifest else paths.format,
        state=state,
        session=manifest.session if manifest else "",
        started_ns=manifest.started_ns if manifest else None,
        begins_ns=begins_ns,
        ends_ns=ends_ns,
        first_ns=data.first_ns if data else None,
        last_ns=data.last_ns if data else None,
        records=sealed.records if sealed else None,
        samples=data.samples if data else None,
        complete=sealed.complete if sealed else None,
        early=sealed.early if sealed else None,
        basis=str(sealed.ledger.get("basis")) if sealed else None,
        bytes=status.st_size if status else 0,
        allocated_bytes=status.st_blocks * BLOCK_BYTES if status else 0,
        uncompressed_bytes=_uncompressed_bytes(sealed, status),
    )


def _shown(folder: Folder, paths: SegmentPaths) -> Shown | None:
    """Return the events in a file that is not sealed; None if it cannot be read now."""
    try:
        with opened(folder.open(paths.partial.name)) as fd:
            return open_stored(fd, paths.set_format).shown()
    except (FileNotFoundError, UnsafePath, CodecError):
        return None


def _state(folder: Folder, group: Group) -> State:
    paths = group.paths
    if PARTIAL in group.suffixes:
        try:
            with opened(folder.open(paths.partial.name)) as fd:
                return State.ABANDONED if is_left(fd) else State.RUNNING
        except (FileNotFoundError, UnsafePath):
            pass  # sealed, or replaced, since the listing
    raw = read_other_manifest(folder, paths.manifest)
    manifest = decode(raw, Manifest)
    if manifest is None:
        return State.DAMAGED if damage(raw, Manifest) else State.UNKNOWN
    return State.RECOVERED if manifest.recovered else State.SEALED


def _sha256(fd: int) -> str:
    with mapped(fd, os.fstat(fd).st_size) as view:
        return digest(hashlib.sha256(), view)
