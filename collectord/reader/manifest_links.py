# SPDX-License-Identifier: Apache-2.0
"""Read stage: the links between sealed manifests, from each to the one sealed before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.folders.walk import open_folder
from collectord.sink.manifest import Manifest, decode
from collectord.sink.segment import read_other_manifest, sink_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def sealed_manifest(path: Path) -> Manifest | None:
    """Read the manifest of a sealed segment; None without one. Raises SinkError."""
    telling = sink_errors("cannot read the manifest", path, reading=True)
    with telling, open_folder(path.parent) as folder:
        return decode(read_other_manifest(folder, path), Manifest)


def earlier_manifests(
    manifest: Manifest, directory: Path, read: Callable[[Path], Manifest | None] = sealed_manifest
) -> Iterator[Manifest]:
    """Yield the manifests sealed before one, the newest first, until one is gone.

    Args:
        manifest: it is not among them, even if the links go in a circle.
        directory: the folder that all are in.
        read: reads one by its path; what it raises is raised.
    """
    seen: set[str] = set()
    at = manifest
    while at.previous is not None and at.previous.manifest not in seen:
        name = at.previous.manifest
        seen.add(name)
        earlier = read(directory / name)
        if earlier is None or earlier == manifest:
            return
        yield earlier
        at = earlier
