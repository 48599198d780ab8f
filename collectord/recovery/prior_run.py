# SPDX-License-Identifier: Apache-2.0
"""Sink stage: find how far the trace.dat segments of a killed process reach."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from collectord.folders.walk import open_folder
from collectord.sink.manifest import Manifest, decode
from collectord.sink.segment import TRACE_DAT, group_files, read_other_manifest, sink_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from collectord.folders.folder import Folder


class PriorRun(NamedTuple):
    """The total contents of one process's segments, including those that retention deleted.

    Attributes:
        run: of the manifests, "" if there is no segment.
        stored: number of events.
        scope: the observed scope, "" if there is no segment.
        last_pages: CPU to the last stored sub-buffer of its ring, from segments that still exist.
        stored_by_cpu: CPU to the events of its ring; a CPU that never had any may be missing.
    """

    run: str
    stored: int
    scope: str
    last_pages: Mapping[int, bytes]
    stored_by_cpu: Mapping[int, int]


def read_prior_run(
    directory: Path, *, session: str, boot_id: str, since_ns: int, subbuf_bytes: int
) -> PriorRun:
    """Find the sealed segments of the process that wrote as `session`, and their totals.

    It is the first process whose segments are all of that time: recordings of the same name may
    have run beside it, or since.

    Args:
        directory: of the session; already repaired.
        session: the name.
        boot_id: of this boot.
        since_ns: REALTIME; a process with an older segment is a different one.
        subbuf_bytes: size of a sub-buffer.

    Raises:
        SinkError: a manifest or a segment cannot be read.
    """
    with sink_errors("cannot read the directory", directory, reading=True):
        try:
            opened = open_folder(directory)
        except (FileNotFoundError, NotADirectoryError):
            return PriorRun("", 0, "", {}, {})
    with opened as folder:
        return _read_trail(folder, (session, boot_id), since_ns, subbuf_bytes)


def _read_trail(
    folder: Folder, process: tuple[str, str], since_ns: int, step_bytes: int
) -> PriorRun:
    found: list[tuple[Path, Manifest]] = []
    for group in group_files(folder):
        if group.paths.format != TRACE_DAT or not group.sealed:
            continue
        with sink_errors("cannot read the manifest", group.paths.manifest, reading=True):
            manifest = decode(read_other_manifest(folder, group.paths.manifest), Manifest)
        if manifest is not None and (manifest.session, manifest.boot_id) == process:
            found.append((group.paths.data, manifest))
    others = {manifest.run for _, manifest in found if manifest.started_ns < since_ns}
    found = [(path, manifest) for path, manifest in found if manifest.run not in others]
    if not found:
        return PriorRun("", 0, "", {}, {})
    _, first = min(found, key=lambda one: one[1].started_ns)
    stored = 0
    pages: dict[int, bytes] = {}
    by_cpu: Counter[int] = Counter()
    for path, manifest in found:
        if manifest.run == first.run:
            stored = max(stored, manifest.stored_before + manifest.samples)
            pages |= _last_pages(folder, path, manifest, step_bytes)
            for ring in manifest.rings:
                by_cpu[ring.cpu] = max(by_cpu[ring.cpu], ring.stored_total)
    return PriorRun(first.run, stored, first.scope, pages, by_cpu)


def _last_pages(
    folder: Folder, path: Path, manifest: Manifest, step_bytes: int
) -> dict[int, bytes]:
    with sink_errors("cannot read the segment", path, reading=True), ExitStack() as stack:
        fd = folder.open(path.name)
        stack.callback(os.close, fd)
        return {
            ring.cpu: os.pread(fd, step_bytes, ring.offset + ring.bytes - step_bytes)
            for ring in manifest.rings
            if ring.bytes >= step_bytes
        }
