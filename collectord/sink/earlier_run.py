# SPDX-License-Identifier: Apache-2.0
"""The segments that an earlier process has left in a session's folder, once they are repaired."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from collectord.folders.folder import opened
from collectord.folders.walk import open_folder
from collectord.model import RingRole
from collectord.sink.manifest import Manifest, decode
from collectord.sink.packing import unpacked
from collectord.sink.scan import mapped
from collectord.sink.segment import (
    MANIFEST,
    PARTIAL,
    group_files,
    read_other_manifest,
    sink_errors,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from collectord.folders.folder import Folder
    from collectord.sink.segment import Group


def manifests_of_run(folder: Folder, groups: Iterable[Group], name: str) -> list[Manifest]:
    """Return the manifests of a run among those of some segments of a folder."""
    raw = (read_other_manifest(folder, group.paths.manifest) for group in groups)
    manifests = [decode(one, Manifest) for one in raw]
    return [manifest for manifest in manifests if manifest is not None and manifest.run == name]


class RunTotals(NamedTuple):
    """The events of a process that its manifests tell of so far, or the bytes of its AUX areas.

    Attributes:
        stored: stored ones.
        overwritten: those that a flight recorder's rings overwrote.
        lost: lost ones by the loss's name; empty if none of them tells of any, as after a kill.
    """

    stored: int
    overwritten: int
    lost: Mapping[str, int]


def run_totals(manifests: Iterable[Manifest], *, in_bytes: bool = False) -> RunTotals:
    """Return what some manifests of a run tell of; all their figures only rise.

    Args:
        manifests: of one run.
        in_bytes: of the trace in AUX areas, and not of events.
    """
    stored = overwritten = 0
    lost: Counter[str] = Counter()
    for one in manifests:
        told = _trace_totals(one) if in_bytes else _event_totals(one)
        stored = max(stored, told.stored)
        overwritten = max(overwritten, told.overwritten)
        lost.update({name: max(0, n - lost[name]) for name, n in told.lost.items()})
    return RunTotals(stored, overwritten, lost)


def _event_totals(manifest: Manifest) -> RunTotals:
    ledger = manifest.ledger
    stored = manifest.stored_before + manifest.samples
    return RunTotals(stored, ledger.get("overwritten") or 0, ledger.get("lost", {}))


def _trace_totals(manifest: Manifest) -> RunTotals:
    lost: Counter[str] = Counter()
    for area in manifest.ledger.get("aux", ()):
        lost.update({name: n or 0 for name, n in area["lost_bytes"].items()})
    areas = (entry for entry in manifest.rings if entry.role == RingRole.AUX)
    return RunTotals(sum(entry.stored_total for entry in areas), 0, lost)


def run_totals_in(directory: Path, name: str, *, in_bytes: bool = False) -> RunTotals:
    """Return what the manifests of a run in a folder tell of, see `run_totals`.

    The files of a set have a run each: a run is that of the first, and of those beside it.

    Raises:
        SinkError: the folder cannot be read.
    """
    with _reading(directory) as folder:
        read = [
            (group.paths, decode(read_other_manifest(folder, group.paths.manifest), Manifest))
            for group in _sealed(folder)
        ]
    sets = {paths.set_name for paths, one in read if one is not None and one.run == name}
    parts: dict[str, list[Manifest]] = {}
    for paths, one in read:
        if one is not None and paths.set_name in sets:
            parts.setdefault(paths.format, []).append(one)
    told = [run_totals(manifests, in_bytes=in_bytes) for manifests in parts.values()]
    lost: Counter[str] = Counter()
    for part in told:  # each of a set tells of the whole session
        lost |= Counter(part.lost)
    return RunTotals(
        sum(part.stored for part in told),
        max((part.overwritten for part in told), default=0),
        {name: lost[name] for part in told for name in part.lost},
    )


@contextmanager
def last_records(directory: Path) -> Iterator[memoryview]:
    """Map the data of the newest sealed segment in a folder; nothing if there is none.

    Raises:
        CodecError: it is compressed, and damaged.
        SinkError: the folder cannot be read.
    """
    with _reading(directory) as folder, last_segment(folder) as last:
        yield last.records


class Last(NamedTuple):
    """The newest sealed segment of a folder.

    Attributes:
        manifest: None if there is none, or it cannot be read.
        fd: the file, not compressed.
        records: its data.
    """

    manifest: Manifest | None = None
    fd: int = -1
    records: memoryview = memoryview(b"")


@contextmanager
def last_segment(folder: Folder) -> Iterator[Last]:
    """Open the newest segment that was sealed. Raises CodecError, SinkError, OSError."""
    groups = [one for one in group_files(folder) if one.sealed or _is_whole(one)]
    paths = groups[-1].paths if groups else None
    manifest = decode(read_other_manifest(folder, paths.manifest), Manifest) if paths else None
    if paths is None or manifest is None:
        yield Last()
        return
    path = paths.data if groups[-1].sealed else paths.partial
    with (
        opened(folder.open(path.name)) as fd,
        unpacked(fd) as plain,
        mapped(plain, os.fstat(plain).st_size) as data,
        data[manifest.data_offset : manifest.data_offset + manifest.data_bytes] as records,
    ):
        yield Last(manifest, plain, records)


@contextmanager
def _reading(directory: Path) -> Iterator[Folder]:
    telling = sink_errors("cannot read the directory", directory, reading=True)
    with telling, open_folder(directory) as folder:
        yield folder


def _is_whole(group: Group) -> bool:
    """Whether a kill has left its file without its name alone, before a repair."""
    return group.suffixes >= {MANIFEST, PARTIAL}


def _sealed(folder: Folder) -> list[Group]:
    return [group for group in group_files(folder) if group.sealed]
