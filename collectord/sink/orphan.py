# SPDX-License-Identifier: Apache-2.0
"""Sink stage: a data file whose writer died: its sound data are sealed, or it is removed."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from collectord.model import ClockReading
from collectord.sink.earlier_run import manifests_of_run
from collectord.sink.manifest import (
    COUNT_MAX,
    Clocks,
    Damage,
    Link,
    Manifest,
    OpenManifest,
    RingEntry,
    common_fields,
    encode,
    layout_faults,
    link,
)
from collectord.sink.outcome import (
    Action,
    Outcome,
    kept_text,
    recovered,
    recovered_fields,
    refused,
    with_tracks,
)
from collectord.sink.segment import (
    MANIFEST,
    PARTIAL,
    SegmentPaths,
    group_files,
    read_other_manifest,
)
from collectord.sink.segment_steps import publish, remove

if TYPE_CHECKING:
    from collections.abc import Generator

    from collectord.folders.folder import Folder
    from collectord.sink.stored_file import StoredFile, Survey

_RECOVERED: Final = ".recovered"
_UNKNOWN_CLOCK: Final = ClockReading(monotonic_ns=0, realtime_ns=0, perf_ns=0, bracket_ns=0)


class Orphan(NamedTuple):
    """A data file whose writer died."""

    folder: Folder
    source: SegmentPaths
    fd: int
    file: StoredFile
    opened: OpenManifest | None
    found: Survey
    damage: Damage | None  # of the open manifest


def repair_orphan(orphan: Orphan) -> Generator[str, None, Outcome]:
    """Seal its sound data, remove it, or leave it alone; yields as `repair.repair_steps`."""
    folder, paths = orphan.folder, orphan.source
    if not orphan.found.bytes and not _set_has_data(folder, paths):
        remove(folder, paths)
        return Outcome(paths.partial, Action.REMOVED, "it held no record")
    contradiction = _contradiction(orphan)
    if contradiction:
        hint = "move the manifest away; repair then keeps what can be read from the data alone"
        return refused(paths, f"{contradiction}; {hint}")
    target = paths
    while folder.stat(target.data.name) is not None:
        target = SegmentPaths(target.directory, target.name + _RECOVERED)
    return (yield from _seal(orphan, target))


def _contradiction(orphan: Orphan) -> str:
    """Return what is impossible in its manifest: then it, or the data, is not what it seems."""
    opened, file = orphan.opened, orphan.file
    if orphan.damage is not None and orphan.damage.readable:
        return f"its manifest cannot be true: {orphan.damage.reason}"
    if opened is None:
        return ""
    if (opened.format, opened.data_offset) != (file.format, file.data_offset):
        return (
            f"its manifest has {opened.format} with data at byte {opened.data_offset}, the "
            f"file is {file.format} with data at byte {file.data_offset}"
        )
    return next(layout_faults(opened), "")


def _set_has_data(folder: Folder, paths: SegmentPaths) -> bool:
    """Whether other files of its set hold data: then an empty one stays in its place."""
    if not paths.set_format:
        return False
    for entry in folder.entries():
        name = entry.name.removesuffix(PARTIAL)
        if name == paths.name or SegmentPaths(folder.path, name).set_name != paths.set_name:
            continue
        status = folder.stat(entry.name)
        if status is not None and status.st_size:
            return True
    return False


def _seal(orphan: Orphan, target: SegmentPaths) -> Generator[str, None, Outcome]:
    """Seal it as `target`, which differs from its own name if that is taken."""
    folder, found = orphan.folder, orphan.found
    file = yield from orphan.file.finish(found)
    opened = orphan.opened or _without_manifest(orphan)
    rings = with_tracks(opened.rings, orphan.file.offsets, found)
    before = _before(folder, target)
    run_so_far = _sealed_of_run(folder, target, opened.run)
    stored_before = [opened.stored_before, *(m.stored_before + m.samples for m in run_so_far)]
    manifest = Manifest(
        **common_fields(opened)
        | {
            "segment": target.name,
            "rings": _with_totals(rings, run_so_far),
            "stored_before": min(max(stored_before), COUNT_MAX),
        },
        **recovered_fields(file, found),
        lost_samples={},
        build_ids={},
        previous=before,
    )
    detail = kept_text(found)
    set_aside = None
    if orphan.damage is not None:
        set_aside = target.damaged_manifest
        folder.rename(orphan.source.open_manifest.name, set_aside.name)
        why = orphan.damage.reason
        detail += f"; its open manifest was damaged ({why}), and was renamed to {set_aside.name}"
        yield "damaged manifest set aside"
    yield from publish(folder, orphan.source, target, encode(manifest))
    return recovered(target.data, file, found, detail, set_aside)


def _without_manifest(orphan: Orphan) -> OpenManifest:
    """Return a manifest for an orphan whose open manifest is gone."""
    return OpenManifest(
        format=orphan.file.format,
        segment=orphan.source.name,
        host="",
        boot_id="",
        kernel="",
        session="",
        source=orphan.file.source,
        scope="",
        started_ns=max(os.fstat(orphan.fd).st_mtime_ns, 0),
        direct=False,
        data_offset=orphan.file.data_offset,
        events=orphan.file.events,
        rings=(),
        clocks=Clocks(open=_UNKNOWN_CLOCK),
    )


def _before(folder: Folder, paths: SegmentPaths) -> Link | None:
    """Return the link to the newest manifest before this one in the folder, for the chain."""
    if not paths.rotated:
        return None
    before = [
        group.paths.manifest
        for group in group_files(folder)
        if group.paths.format == paths.format
        and MANIFEST in group.suffixes
        and group.paths < paths
    ]
    raw = read_other_manifest(folder, before[-1]) if before else b""
    return link(before[-1].name, raw) if raw else None


def _sealed_of_run(folder: Folder, paths: SegmentPaths, name: str) -> list[Manifest]:
    """Return the run's manifests, for its counts: each may be newer than this open manifest."""
    if not paths.rotated or not name:
        return []
    groups = (group for group in group_files(folder) if group.paths != paths)
    return manifests_of_run(
        folder, [group for group in groups if group.paths.format == paths.format], name
    )


def _with_totals(
    rings: tuple[RingEntry, ...], run_so_far: list[Manifest]
) -> tuple[RingEntry, ...]:
    """Continue each ring's total. Ring ids belong to one process; role, CPU and thread stay."""
    before: Counter[tuple[str, int, int]] = Counter()
    for entry in (entry for manifest in run_so_far for entry in manifest.rings):
        before[_place(entry)] = max(before[_place(entry)], entry.stored_total)
    return tuple(
        msgspec.structs.replace(
            entry,
            stored_total=min(
                max(entry.stored_total, before[_place(entry)]) + entry.amount, COUNT_MAX
            ),
        )
        for entry in rings
    )


def _place(entry: RingEntry) -> tuple[str, int, int]:
    return entry.role, entry.cpu, entry.tid
