# SPDX-License-Identifier: Apache-2.0
"""Read stage: the records of perf.data files that are of a time, as one perf.data.

Records are copied as they are. The older ones that name samples are among them. A file that is
made of several has no FINISHED_ROUND: readers sort all of its records by their times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.codec import perf_merge, tracing_data
from collectord.codec.file_formats import PERF_DATA
from collectord.codec.perf_data import build_head, build_tail
from collectord.codec.perf_features import Features, decode_build_ids
from collectord.codec.perf_section import Feature
from collectord.errors import CodecError
from collectord.folders.folder import write_all
from collectord.reader.export_cut import choose, scan_of, unlike
from collectord.reader.perf_tables import PerfTables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.codec.perf_data import Head, Tail
    from collectord.reader.event_file import EventFile, Window
    from collectord.reader.export_cut import CutFiles

# Features that are made anew or that no cut has, and so are not copied.
_NOT_COPIED: Final = (
    *(Feature.TRACING_DATA, Feature.EVENT_DESC, Feature.BUILD_ID, Feature.SAMPLE_TIME),
    *(Feature.AUXTRACE, Feature.COMPRESSED),
)


def write_perf_data(files: Sequence[EventFile], window: Window, out: int) -> CutFiles[PerfTables]:
    """Write the records of a time into an empty file.

    Raises:
        UsageError: there is no perf.data among the files, or they do not go into one.
        SinkError: one of them cannot be read.
        OSError: the new file cannot be written.
    """
    chosen = choose(files, PerfTables, PERF_DATA, window)
    parts = chosen.inside
    features = [file.feature_sections() for file, _ in parts]
    try:
        merged = perf_merge.merge([file.attrs for file, _ in parts])
        head = build_head(merged.attrs, _formats(features))
    except CodecError as error:
        raise unlike([file for file, _ in parts], error) from error
    write_all(out, head.image, 0)
    at = head.write_offset
    for (file, span), renaming in zip(parts, merged.renamings, strict=True):
        scan = scan_of(file, file.sources[0], span)
        at = chosen.copy(file, scan, (out, at), renaming, keeps_rounds=len(parts) == 1).end
    tail = _tail(head, at, chosen, features)
    write_all(out, tail.tail, at)
    write_all(out, tail.header, 0)
    return chosen


def _formats(features: Sequence[Mapping[int, bytes]]) -> bytes | None:
    """Return the formats of the tracepoints of all parts. Raises CodecError."""
    key = Feature.TRACING_DATA
    sections = [one[key] for one in features if key in one]
    return tracing_data.merge(sections) if sections else None


def _tail(
    head: Head, at: int, chosen: CutFiles[PerfTables], features: Sequence[Mapping[int, bytes]]
) -> Tail:
    """Return the end of a file whose records end at a place."""
    encoded = {key: section for one in features for key, section in one.items()}
    for key in _NOT_COPIED:
        encoded.pop(key, None)
    if len(features) > 1:
        encoded.pop(Feature.GROUP_DESC, None)  # it counts the events of its own file
    found = [decode_build_ids(one.get(Feature.BUILD_ID, b"")) for one in features]
    build_ids = dict.fromkeys(build_id for of_file in found for build_id in of_file)
    times = (chosen.first_ns, chosen.last_ns) if chosen.records else None
    more = Features(build_ids=tuple(build_ids), sample_time=times)
    return build_tail(head, at - head.data_offset, more, encoded)
