# SPDX-License-Identifier: Apache-2.0
"""Sink stage: repair a sealed segment that was damaged since.

Unsound parts are replaced in place by bytes that readers skip, and a new manifest lists them. If a
kill comes in between, the next repair finds the segment as damaged as before.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from collectord.errors import CodecError, UnsafePath
from collectord.folders.folder import opened
from collectord.sink.formats import open_stored
from collectord.sink.manifest import (
    SCHEMA,
    Manifest,
    decode,
    encode,
    layout_faults,
    successor,
    with_counts,
)
from collectord.sink.outcome import (
    Action,
    Outcome,
    kept_text,
    recovered,
    recovered_fields,
    with_tracks,
)
from collectord.sink.pack import unpack_steps
from collectord.sink.packing import packing_of
from collectord.sink.scan import mapped
from collectord.sink.segment import read_manifest
from collectord.sink.segment_lock import lock
from collectord.sink.soundness import contents_findings, span_fault
from collectord.sink.sums import unsound

if TYPE_CHECKING:
    from collections.abc import Generator

    from collectord.folders.folder import Folder
    from collectord.sink.segment import Group, SegmentPaths
    from collectord.sink.stored_file import Finding, FinishedFile, StoredFile, Survey


def mend_steps(folder: Folder, group: Group) -> Generator[str, None, Outcome | None]:
    """Repair one sealed segment of a folder, yielding after each step that a kill may follow.

    Returns:
        None for a sound one, and for one without a manifest of this program.
    """
    paths = group.paths
    try:
        raw = read_manifest(folder, paths.manifest)
        fd = folder.open(paths.data.name, write=True)
    except (FileNotFoundError, UnsafePath):
        return None
    manifest = decode(raw, Manifest)
    with opened(fd):
        if not lock(fd):
            return Outcome(paths.data, Action.IN_USE, "it is being repaired")
        finding = next(contents_findings(fd, paths, manifest), None) if manifest else None
        if manifest is None or finding is None:
            return None
        damaged = _Damaged(folder, paths, fd, raw, manifest, finding)
        if packing_of(fd) is None:
            return (yield from _mend(damaged))
        if not (yield from unpack_steps(folder, paths, fd, manifest, raw)):
            return _not_mended(damaged, "its compressed form cannot be read")
    outcome = yield from mend_steps(folder, group)
    return outcome or _unpacked(damaged)


class _Damaged(NamedTuple):
    """A sealed segment and its damage."""

    folder: Folder
    paths: SegmentPaths
    fd: int
    raw: bytes  # the manifest
    manifest: Manifest
    finding: Finding


def _mend(damaged: _Damaged) -> Generator[str, None, Outcome]:
    folder, paths, manifest = damaged.folder, damaged.paths, damaged.manifest
    file = _file(damaged)
    if file is None:
        return _not_mended(damaged, "its head is damaged")
    # The manifest's spans are what the data are repaired by.
    fault = next(layout_faults(manifest), "") or span_fault(
        manifest, manifest.bytes, sparse=file.sparse
    )
    if fault:
        return _not_mended(damaged, f"its manifest cannot be true: {fault}")
    found = file.survey(manifest)
    if not found.samples or not (found.cuts or found.cut_bytes):
        return _not_mended(damaged, "nothing can be cut out of it")
    finished = yield from file.finish(found)
    rings = with_tracks(manifest.rings, file.offsets, found)
    if not file.offsets:  # the ring of the records that were cut out is unknown
        rings = with_counts(rings, {})
    mended = msgspec.structs.replace(_manifest(damaged, found, finished), rings=rings)
    folder.write_claimed(paths.new_manifest.name, encode(mended))
    yield "manifest written"
    folder.rename(paths.new_manifest.name, paths.manifest.name)
    yield "manifest renamed"
    folder.sync()
    yield "directory synced"
    return recovered(paths.data, finished, found, kept_text(found))


def _unpacked(damaged: _Damaged) -> Outcome:
    return Outcome(
        path=damaged.paths.data,
        action=Action.RECOVERED,
        detail="all of it could be read, and it is not compressed any more",
        samples=damaged.manifest.samples,
        bytes=damaged.manifest.bytes,
        allocated_bytes=damaged.manifest.allocated_bytes,
    )


def _not_mended(damaged: _Damaged, why: str) -> Outcome:
    detail = f"left alone: {why}; {damaged.finding.check}: {damaged.finding.detail}"
    return Outcome(damaged.paths.data, Action.DAMAGED, detail)


def _file(damaged: _Damaged) -> StoredFile | None:
    """Read the head, if it is unchanged since the seal."""
    manifest, fd = damaged.manifest, damaged.fd
    with mapped(fd, os.fstat(fd).st_size) as view:
        for span in manifest.spans:
            if span.part == "head" and any(unsound(view, span)):
                return None
    try:
        file = open_stored(fd, damaged.paths.set_format)
    except CodecError:
        return None
    return file if file.data_offset == manifest.data_offset else None


def _manifest(damaged: _Damaged, found: Survey, finished: FinishedFile) -> Manifest:
    """Return the manifest for what the segment holds by now, and what it held."""
    sealed = damaged.manifest
    before = sealed.samples + (sealed.cut_samples or 0)
    return successor(
        sealed,
        damaged.raw,
        schema=SCHEMA,
        **recovered_fields(finished, found),
        cut_samples=max(before - found.samples, 0),
    )
