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
    "missing", "stamp", "utc", "cpu", "pid", "tid", "comm", "inline", "data_loc", "rel_loc"
]
Where: TypeAlias = tuple[Place, int, int, int, bool]

class Scan:
    """A table that is read anew from files for each stream.

    Args:
        wanted: records of one event, or the losses or the damage that the files tell of.
        columns: name and kind: `i8` to `u64`, `list_` and one of these, `text`, `bytes`, `time`.

    Raises:
        OSError: there is no such kind.
    """

    def __init__(
        self, wanted: Literal["events", "losses", "damage"], columns: Iterable[tuple[str, str]]
    ) -> None: ...
    def add(
        self,
        fd: int,
        kind: Literal["ftrace"],
        fields: Sequence[Where | str],
        spans: Iterable[tuple[int, int, int]],
        *,
        page_bytes: int = 4096,
        event: int = 0,
        tid_offset: int = 4,
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
            page_bytes: size of a sub-buffer.
            event: `common_type` of the records.
            tid_offset: of `common_pid` in them.
            since_ns: the first stamp that is asked for; None: any.
            until_ns: the last one; None: any.
            comms: the names of tasks by thread.
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
