# SPDX-License-Identifier: Apache-2.0
"""Sink stage: how far the trace.dat segments of a killed process reach."""

from __future__ import annotations

from collections import Counter
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
        last_pages: CPU to the last sub-buffer that is stored of its ring, of segments that are
            there still.
        stored_by_cpu: CPU to the events of its ring; a CPU that never had any may be missing.
    """

    run: str
    stored: int
    scope: str
    last_pages: Mapping[int, bytes]
    stored_by_cpu: Mapping[int, int]


def read_trail(
    directory: Path, *, session: str, boot_id: str, since_ns: int, subbuf_bytes: int
) -> Trail:
    """Find the sealed segments of the process that wrote as `session`, and what they count up to.

    It is the first one whose segments are all of that time: recordings of one name may have been
    running beside it, or since.

    Args:
        directory: of the session; repaired before.
        session: the name.
        boot_id: of this boot.
        since_ns: REALTIME; a process with an older segment is another one.
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
    others = {manifest.run for _, manifest in found if manifest.started_ns < since_ns}
    found = [(path, manifest) for path, manifest in found if manifest.run not in others]
    if not found:
        return Trail("", 0, "", {}, {})
    _, first = min(found, key=lambda one: one[1].started_ns)
    stored = 0
    pages: dict[int, bytes] = {}
    by_cpu: Counter[int] = Counter()
    for path, manifest in found:
        if manifest.run == first.run:
            stored = max(stored, manifest.stored_before + manifest.samples)
            pages |= _last_pages(path, manifest, subbuf_bytes)
            for ring in manifest.rings:
                by_cpu[ring.cpu] = max(by_cpu[ring.cpu], ring.stored_total)
    return Trail(first.run, stored, first.scope, pages, by_cpu)


def _last_pages(path: Path, manifest: Manifest, subbuf_bytes: int) -> dict[int, bytes]:
    pages = {}
    with sink_errors("cannot read the segment", path, reading=True), path.open("rb") as file:
        for ring in manifest.rings:
            if ring.bytes:
                file.seek(ring.offset + ring.bytes - subbuf_bytes)
                pages[ring.cpu] = file.read(subbuf_bytes)
    return pages
