# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the order of the steps that make a segment durable, or take it away."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from collectord.sink import chain_log
from collectord.sink.segment import read_other_manifest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from collectord.folders.folder import Folder
    from collectord.sink.segment import SegmentPaths

T = TypeVar("T")


def run(steps: Generator[str, None, T]) -> T:
    """Run all steps and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


def publish(
    folder: Folder, source: SegmentPaths, target: SegmentPaths, manifest: bytes
) -> Iterator[str]:
    """Give a finished and synced data file its final name; yields after each step.

    After a kill at any step `repair` completes the work: before the manifest's rename the segment
    is an orphan, after it only the later steps are missing. `source` and `target` differ only if a
    repair found the name taken.
    """
    folder.write_claimed(target.new_manifest.name, manifest)
    yield "manifest written"
    yield from _keep_old(folder, target)
    folder.rename(target.new_manifest.name, target.manifest.name)
    yield "manifest renamed"
    yield from publish_data(folder, source, target)


def _keep_old(folder: Folder, paths: SegmentPaths) -> Iterator[str]:
    """Keep the file that a recording to one file replaces, and delete the one kept before."""
    status = folder.stat(paths.data.name)
    if status is None or not (status.st_size or paths.set_format):  # of a set each number counts
        return
    if folder.stat(paths.manifest.name) is not None:
        folder.rename(paths.manifest.name, paths.old.manifest.name)
    else:
        folder.remove(paths.old.manifest.name, missing_ok=True)
    yield "old manifest kept"
    folder.rename(paths.data.name, paths.old.data.name)
    yield "old segment kept"


def publish_data(folder: Folder, source: SegmentPaths, target: SegmentPaths) -> Iterator[str]:
    """Run the steps of `publish` after the manifest's rename."""
    if target.rotated:
        chain_log.note_sealed(folder, target.name, read_other_manifest(folder, target.manifest))
    yield "noted as sealed"
    folder.rename(source.partial.name, target.data.name)
    yield "segment renamed"
    folder.sync()
    yield "directory synced"
    # Last and unsynced: an open manifest that reappears after a power loss is removed at start.
    folder.discard(source.open_manifest.name)
    folder.discard(source.new_manifest.name)
    yield "open manifest removed"


def remove(folder: Folder, paths: SegmentPaths) -> None:
    """Delete the files of an unfinished segment. Data first: a manifest alone is recognisable."""
    folder.discard(paths.partial.name)
    remove_beside(folder, paths)


def remove_beside(folder: Folder, paths: SegmentPaths) -> None:
    """Delete the files beside the data of an unfinished segment."""
    for path in (paths.new_manifest, paths.open_manifest):
        folder.discard(path.name)
