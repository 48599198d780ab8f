# SPDX-License-Identifier: Apache-2.0
"""Sink stage: how far the trace.dat segments of a killed process reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from collectord.sink.manifest import Manifest, decode
from collectord.sink.segment import TRACE_DAT, group_files, sink_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Trail(NamedTuple):
    """What the segments of one process hold together, those that retention deleted included.

    Attributes:
        run: of the manifests, "" if there is no segment.
        stored: events.
        scope: what was observed, "" if there is no segment.
        last_pages: CPU to the last sub-buffer that was stored of its ring.
    """

    run: str
    stored: int
    scope: str
    last_pages: Mapping[int, bytes]


def read_trail(
    directory: Path, *, session: str, boot_id: str, since_ns: int, subbuf_bytes: int
) -> Trail:
    """Follow the newest sealed segments of `session` back to the beginning of their process.

    Args:
        directory: of the session; repaired before.
        session: the name.
        boot_id: of this boot.
        since_ns: REALTIME; an older segment is of an earlier process.
        subbuf_bytes: size of a sub-buffer.

    Raises:
        SinkError: a manifest or a segment cannot be read.
    """
    found: list[tuple[Path, Manifest]] = []
    if directory.is_dir():
        for group in group_files(directory):
            if group.paths.format != TRACE_DAT or not group.sealed:
                continue
            with sink_errors("cannot read the manifest", group.paths.manifest, reading=True):
                manifest = decode(group.paths.manifest.read_bytes(), Manifest)
            if manifest is not None and (manifest.session, manifest.boot_id) == (session, boot_id):
                found.append((group.paths.data, manifest))
    found = [(path, manifest) for path, manifest in found if manifest.started_ns >= since_ns]
    if not found:
        return Trail("", 0, "", {})
    _, newest = found[-1]
    pages: dict[int, bytes] = {}
    for path, manifest in found:
        if manifest.run == newest.run:
            pages |= _last_pages(path, manifest, subbuf_bytes)
    return Trail(newest.run, newest.stored_before + newest.samples, newest.scope, pages)


def _last_pages(path: Path, manifest: Manifest, subbuf_bytes: int) -> dict[int, bytes]:
    pages = {}
    with sink_errors("cannot read the segment", path, reading=True), path.open("rb") as file:
        for ring in manifest.rings:
            if ring.bytes:
                file.seek(ring.offset + ring.bytes - subbuf_bytes)
                pages[ring.cpu] = file.read(subbuf_bytes)
    return pages
