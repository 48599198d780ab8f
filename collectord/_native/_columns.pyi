# SPDX-License-Identifier: Apache-2.0
"""Records of files as Arrow columns, decoded by the C core (`columns/scan.h`).

The stream and the schema are those of the Arrow C data interface, in capsules: whoever takes such
an object reads them, and no Arrow library is needed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

# Where a column's value is: {place, offset, bytes, bytes of an element, signed?}; a text is the
# same for all rows.
Place: TypeAlias = Literal[
    "missing",
    "stamp",
    "utc",
    "cpu",
    "pid",
    "tid",
    "comm",
    "label",
    "inline",
    "data_loc",
    "rel_loc",
    "chain",
]
Where: TypeAlias = tuple[Place, int, int, int, bool]
# An event of a perf.data file: {sample_type, read_format, sample_id_all, wanted?, ids}.
Attr: TypeAlias = tuple[int, int, bool, bool, Sequence[int]]
Rows: TypeAlias = Literal["raw", "samples", "tasks", "mmap", "mmap2", "build_id"]

class Scan:
    """A table that is read anew from files for each stream.

    Args:
        wanted: records of one event, or the losses or the damage that the files tell of.
        columns: name and kind: `i8` to `u64`, `f32`, `f64`, `list_` and one of these, `text`,
            `bytes`, `time`.

    Raises:
        OSError: there is no such kind.
    """

    def __init__(
        self, wanted: Literal["events", "losses", "damage"], columns: Iterable[tuple[str, str]]
    ) -> None: ...
    def add(
        self,
        fd: int,
        kind: Literal["ftrace", "perf"],
        fields: Sequence[Where | str],
        spans: Iterable[tuple[int, int, int]],
        *,
        page_bytes: int = 4096,
        event: int = 0,
        tid_offset: int = 4,
        rows: Rows = "raw",
        attrs: Iterable[Attr] = (),
        labels: Iterable[str] = (),
        since_ns: int | None = None,
        until_ns: int | None = None,
        comms: Mapping[int, str] = {},
        clock: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Add a file, whose descriptor is duplicated.

        Args:
            fd: the file.
            kind: how records lie in it.
            fields: one for each column.
            spans: parts of the file: {CPU or -1, offset, bytes}.
            page_bytes: of ftrace, the size of a sub-buffer.
            event: of ftrace, `common_type` of the records.
            tid_offset: of ftrace, of `common_pid` in them.
            rows: of perf, which records: of `raw` the payload is the raw data of samples, else the
                whole record.
            attrs: of perf, all events of the file, at least one.
            labels: of perf, the names of the events, or the four kinds of `enum perf_task`.
            since_ns: the first stamp that is asked for; None: any.
            until_ns: the last one; None: any.
            comms: of ftrace, the names of tasks by thread; perf's records tell them.
            clock: the stamp and UTC of readings of both, the earliest first.

        Raises:
            OSError: the file cannot be held, or there is no such kind.
            OverflowError: a number does not fit.
        """

    def counts(self) -> list[tuple[int, int, int, int]]:
        """Return what was found in each file by the stream that has read the most of it.

        Each has {rows, lost records, losses of an unknown number, damaged places}, within the
        time that is asked for.
        """

    def __arrow_c_schema__(self) -> object:
        """Return a capsule `arrow_schema`."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule `arrow_array_stream`, which outlives this object."""
