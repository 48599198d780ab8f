# SPDX-License-Identifier: Apache-2.0
"""Read stage: the pages of trace.dat files that are of a time, as one trace.dat.

Segments of a session are one instance in it, and each of several sessions is an instance with the
session's name. The new file is not compressed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from collectord.codec.file_formats import TRACE_DAT
from collectord.codec.trace_dat import PAGE_BYTES, SECTION
from collectord.codec.trace_merge import NewBuffer, build, merge
from collectord.errors import CodecError
from collectord.folders.folder import write_all
from collectord.reader.export_cut import choose, scan_of, unlike
from collectord.reader.trace_tables import TraceTables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord._native._columns import Scan
    from collectord.reader.event_file import EventFile, Window
    from collectord.reader.export_cut import CutFiles

_TOP: Final = ""
_CPUS_MAX: Final = 1 << 16
_DEFAULT_CLOCK: Final = "local"


@dataclass(slots=True)
class _Instance:
    """The instance of a new file: what it is made of, by CPU, in the order of time."""

    buffer: NewBuffer
    tracks: dict[int, list[tuple[TraceTables, Scan]]] = field(default_factory=dict)


def write_trace_dat(files: Sequence[EventFile], window: Window, out: int) -> CutFiles[TraceTables]:
    """Write the records of a time into an empty file.

    Raises:
        UsageError: there is no trace.dat among the files, or they do not go into one.
        SinkError: one of them cannot be read.
        OSError: the new file cannot be written.
    """
    chosen = choose(files, TraceTables, TRACE_DAT, window)
    inside = sorted(chosen.inside, key=lambda one: one[0].clock[:1])
    parts = [file.parts() for file, _ in inside]
    try:
        sections = merge(parts)
        instances = _instances(inside)
    except CodecError as error:
        raise unlike([file for file, _ in inside], error) from error
    buffers = [
        one.buffer._replace(rows=[(cpu, 0, 0) for cpu in sorted(one.tracks)]) for one in instances
    ]
    at = len(build(parts[0], sections, buffers))
    buffers = []
    for one in instances:
        buffers.append(_copied(one, chosen, out, at))
        at = buffers[-1].end
    os.ftruncate(out, at)
    write_all(out, build(parts[0], sections, buffers), 0)
    for buffer in buffers:
        write_all(out, buffer.header, buffer.at)
    return chosen


def _copied(one: _Instance, chosen: CutFiles[TraceTables], out: int, start: int) -> NewBuffer:
    """Copy the pages of an instance, whose section begins at an offset."""
    align = max(one.buffer.page_bytes, PAGE_BYTES)
    at = -(-(start + SECTION.size) // align) * align
    rows = []
    for cpu, scans in sorted(one.tracks.items()):
        first = at
        for file, scan in scans:
            at = chosen.copy(file, scan, (out, at)).end
        rows.append((cpu, first, at - first))
    return one.buffer._replace(at=start, end=at, rows=rows)


def _instances(files: Sequence[tuple[TraceTables, Window]]) -> list[_Instance]:
    """Return the instances of a new file. Raises CodecError."""
    found: dict[tuple[str, str], _Instance] = {}
    for file, span in files:
        for buffer, source in file.buffers:
            key = file.session or file.path_text, buffer.name
            like = buffer.clock, buffer.page_bytes
            new = found.setdefault(key, _Instance(NewBuffer(buffer.name, *like)))
            if (new.buffer.clock, new.buffer.page_bytes) != like:
                raise CodecError(
                    f"clocks or sub-buffers of {key[0]} differ", offset=0, reason="layout"
                )
            for cpu in (track.cpu for track in buffer.tracks if track.cpu < _CPUS_MAX):
                new.tracks.setdefault(cpu, [])  # readers count those without records, too
            for track in file.contents(source)[1]:
                scan = scan_of(file, source, span, [track])
                new.tracks.setdefault(track[0], []).append((file, scan))
    if not found:  # no file has pages
        found[_TOP, _TOP] = _Instance(NewBuffer(_TOP, _DEFAULT_CLOCK, PAGE_BYTES))
    return [*_named(found)]


def _named(found: dict[tuple[str, str], _Instance]) -> Iterator[_Instance]:
    """Yield the instances with names that tell them apart."""
    if len({owner for owner, _ in found}) == 1:
        yield from found.values()
        return
    for (owner, name), one in found.items():
        told = f"{owner}/{name}" if name else owner
        one.buffer = one.buffer._replace(name=told)
        yield one
