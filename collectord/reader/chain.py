# SPDX-License-Identifier: Apache-2.0
"""Read stage: check the chain of a folder's manifests, whose ends `.sealed` anchors."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from collectord import __version__
from collectord.sink.chain_log import NAME, format_and_number
from collectord.sink.manifest import Manifest, decode, sha256_as_sealed
from collectord.sink.segment import MANIFEST, SegmentPaths, group_files, read_other_manifest
from collectord.sink.stored_file import Check, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.folders.folder import Folder
    from collectord.sink.chain_log import ChainLog, Entry

_WRITER: Final = f"collectord {__version__}"


def chain_findings(
    folder: Folder, paths: SegmentPaths, manifest: Manifest, log: ChainLog | None
) -> Iterator[Finding]:
    """Check that a manifest, and the one before it, are those that were sealed.

    Args:
        folder: where it is.
        paths: its names.
        manifest: as it is now.
        log: the folder's list; without one, only a manifest that is older than another one which
            is there can be missed.
    """
    if log is not None and paths.rotated:
        yield from _log_findings(folder, paths, log)
    before = manifest.previous
    if before is None:
        return
    raw = read_other_manifest(folder, folder.path / before.manifest)
    name = before.manifest.removesuffix(MANIFEST)
    if not raw:
        was_evicted = log is not None and log.is_evicted(name, *format_and_number(name))
        if not was_evicted and (_is_listed(log, name) or _has_older(folder, paths, name)):
            yield Finding(Check.CHAIN, f"{before.manifest}, sealed before it, is missing")
    elif not is_form_of(raw, before.sha256):
        yield Finding(Check.CHAIN, f"{before.manifest}, sealed before it, was changed since")


def _log_findings(folder: Folder, paths: SegmentPaths, log: ChainLog) -> Iterator[Finding]:
    entry = log.entries.get(paths.name)
    if entry is None:
        began = (e for e in log.entries if format_and_number(e)[0] == paths.format)
        if any(format_and_number(e)[1] < paths.sequence for e in began):
            yield Finding(Check.CHAIN, f"{NAME} does not list it, although it lists older ones")
    elif entry.sha256 and not entry.evicted:
        raw = read_other_manifest(folder, paths.manifest)
        if not is_form_of(raw, entry.sha256):
            yield Finding(Check.CHAIN, "its manifest was changed since it was sealed")


def gone(folder: Folder, log: ChainLog | None) -> Iterator[Entry]:
    """Yield the segments that were sealed in a folder and are not there, except evicted ones."""
    for name, entry in log.entries.items() if log is not None else ():
        paths = SegmentPaths(folder.path, name)
        files = (paths.data, paths.partial, paths.manifest)
        if not entry.evicted and all(folder.stat(path.name) is None for path in files):
            yield entry


def is_form_of(raw: bytes, sha256: str) -> bool:
    """Whether a manifest is one that had this hash when it was sealed, or follows from it.

    A compression or a repair replaces a manifest. After a compression by this version the first
    one is made again from what is there, and compared; else the list of replaced ones is believed.
    """
    if hashlib.sha256(raw).hexdigest() == sha256:
        return True
    manifest = decode(raw, Manifest)
    if manifest is None or sha256 not in manifest.replaced:
        return False
    if manifest.recovered or manifest.writer != _WRITER:
        return True
    try:
        return sha256_as_sealed(raw) == sha256
    except msgspec.DecodeError:  # damaged in a part that `decode` did not need
        return False


def _is_listed(log: ChainLog | None, name: str) -> bool:
    return log is not None and name in log.entries


def _has_older(folder: Folder, paths: SegmentPaths, missing: str) -> bool:
    return any(
        group.paths.format == paths.format and group.paths.name < missing
        for group in group_files(folder)
    )
