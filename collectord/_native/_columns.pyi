# SPDX-License-Identifier: Apache-2.0
"""Records of files as Arrow columns, decoded by the C core (`columns/scan.h`).

The stream and the schema are those of the Arrow C data interface, in capsules: whoever takes such
an object reads them, and no Arrow library is needed.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

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
    "comm_of",
    "label",
    "inline",
    "data_loc",
    "rel_loc",
    "chain",
    "tail",
    "rwbs",
    "device",
    "cgroup",
]
Where: TypeAlias = tuple[Place, int, int, int, bool]
# An event of a perf.data file: {sample_type, read_format, sample_id_all, wanted?, ids}.
Attr: TypeAlias = tuple[int, int, bool, bool, Sequence[int]]
# Those of perf come first, then those of blktrace; the first stands for none.
Rows: TypeAlias = Literal[
    "", "raw", "samples", "tasks", "mmap", "mmap2", "build_id", "aux", "requests", "notes"
]

class Scan:
    """A table that is read anew from files for each stream.

    Args:
        wanted: records of one event, or the losses or the damage that the files tell of; all of
            them, for `Lines`.
        columns: name and kind: `i8` to `u64`, `f32`, `f64`, `list_` and one of these, `text`,
            `bytes`, `time`.

    Raises:
        OSError: there is no such kind.
    """

    def __init__(
        self,
        wanted: Literal["events", "losses", "damage", "all"],
        columns: Iterable[tuple[str, str]],
    ) -> None: ...
    def add(
        self,
        fd: int,
        kind: Literal["ftrace", "perf", "blktrace"],
        fields: Sequence[Where | str],
        spans: Iterable[tuple[int, int, int]],
        *,
        page_bytes: int = 4096,
        event: int = 0,
        tid_offset: int = 4,
        rows: Rows = "",
        attrs: Iterable[Attr] = (),
        labels: Iterable[str] = (),
        since_ns: int | None = None,
        until_ns: int | None = None,
        comms: Iterable[tuple[int, int, str]] = (),
        clock: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Add a file, whose descriptor is duplicated.

        Args:
            fd: the file.
            kind: how records lie in it.
            fields: one for each column.
            spans: parts of the file: {CPU or -1, offset, bytes}.
            page_bytes: of ftrace, the size of a sub-buffer; else what is read at once at least.
            event: of ftrace, `common_type` of the records.
            tid_offset: of ftrace, of `common_pid` in them.
            rows: of perf and blktrace, which records: of `raw` the payload is the raw data of
                samples, else the whole record.
            attrs: of perf, all events of the file, at least one.
            labels: the names of perf's events, or the kinds of `enum perf_task` or `perf_aux`; of
                blktrace, the names of actions by the keys of `columns/blktrace.h`.
            since_ns: the first stamp that is asked for; None: any.
            until_ns: the last one; None: any.
            comms: {thread, stamp from which it has the name, name}; perf's records tell them.
            clock: the stamp and UTC of readings of both, the earliest first.

        Raises:
            OSError: the file cannot be held, or there is no such kind.
            OverflowError: a number does not fit.
        """

    def counts(self) -> list[tuple[int, int, int, int, frozenset[int], frozenset[int]]]:
        """Return what was found in each file by the stream that has read the most of it.

        Each has {rows, lost records, losses of an unknown number, damaged places,
        CPUs of the losses at places, CPUs of those that are counted for an event in all}, within
        the time that is asked for. -1 is a CPU that is not known.
        """

    def __arrow_c_schema__(self) -> object:
        """Return a capsule `arrow_schema`."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule `arrow_array_stream`, which outlives this object."""

# An operation of a program: {name, a, b, c, d} of `lines/machine.h`.
Op: TypeAlias = tuple[str, int, int, int, int]

class Note(NamedTuple):
    """What is no line: damage, or losses, in a count or of one event in the whole file.

    Attributes:
        kind: of it.
        cpu: of it, -1 if it is not known.
        label: the key of the event, -1 if it is not known.
        lost: events; None: nothing tells their number.
        offset: of damage, in the file.
        reason: of damage.
    """

    kind: Literal["damaged", "lost", "lost_in_all"]
    cpu: int
    label: int
    lost: int | None
    offset: int
    reason: str

class Lines:
    """The records of one file in the order of time, each made into a line by a program.

    Args:
        scan: of "all", without columns, and with the sources of the file.
        texts: that operations name by their numbers.
        tables: of {value, number of its text}.
        widths: of columns, which grow with what they hold.

    Raises:
        OSError: a table is not sound.
    """

    def __init__(
        self,
        scan: Scan,
        texts: Sequence[bytes],
        tables: Sequence[Sequence[tuple[int, int]]],
        widths: Sequence[int],
    ) -> None: ...
    def add(
        self,
        keys: Iterable[int],
        ops: Sequence[Op],
        *,
        role: Literal["event", "loss", "unknown"] = "event",
        of_raw: bool = False,
        least: int = 0,
    ) -> int:
        """Add a program for the records with these keys, and return its number.

        Args:
            keys: `common_type` of ftrace, or the places of the events among those of a perf.data.
            ops: of the program; none: the line is empty.
            role: what it is for: unknown are records with other keys.
            of_raw: of perf, the payload is the raw data of samples, not the whole record.
            least: bytes of a sound payload.

        Raises:
            OSError: an operation is not sound.
        """

    def read(self, size: int, end: int, *, everything: bool = True) -> bytes | None:
        """Return lines of about `size` bytes; None: there is nothing up to an end of the file.

        Args:
            size: in bytes; lines are whole.
            end: of perf.data, the offset up to which records are read.
            everything: False: records are kept back that later ones may be older than.

        Raises:
            OSError: there is no memory, or a program fails.
        """

    def mute(self, key: int) -> None:
        """Say that what is lost of an event with this key is none of the events."""

    @property
    def waiting(self) -> bool:
        """Whether records of perf.data were read and wait for later ones."""

    def limit(self, lines: int) -> None:
        """Have no more than this number of lines made."""

    @property
    def left(self) -> int:
        """The number of lines that may still be made."""

    def count(self, end: int) -> list[tuple[int, int, int]]:
        """Count all records up to an offset, as `read` takes it.

        Returns {number of the program, CPU or -1, records}.
        """

    def notes(self) -> list[Note]:
        """Return what was noted since the last call."""

def settled(fd: int, offset: int) -> int:
    """Return the end of the last FINISHED_ROUND in whole records from `offset` on, else `offset`.

    Raises:
        OSError: there is no memory.
    """

def intact(fd: int, offset: int) -> int:
    """Return the end of the whole records of perf from `offset` on.

    Raises:
        OSError: there is no memory.
    """

class Cut(NamedTuple):
    """What a cut has found and written.

    Attributes:
        end: where it ends in the new file.
        records: events in it.
        first_ns, last_ns: stamps of them, 0 without any.
        lost: records that the file says were lost, in the time.
        lost_untold: losses whose number the file does not say.
        damaged: places that could not be read.
        aux: records about data of AUX areas, which no cut has.
    """

    end: int
    records: int
    first_ns: int
    last_ns: int
    lost: int
    lost_untold: int
    damaged: int
    aux: int

def cut(
    scan: Scan,
    out: int,
    at: int,
    *,
    ids: Iterable[tuple[int, int]] = (),
    unnamed: int = 0,
    adds_id: bool = False,
    keeps_rounds: bool = False,
) -> Cut:
    """Copy what is of the time of a scan's sources into another file.

    Of a perf.data these are its records, in their order, with older ones that name samples; of
    ftrace sub-buffers, those at the edges made anew.

    Args:
        scan: without columns.
        out: the other file.
        at: where the copy begins in it.
        ids: of perf, those of events that change: {in the file, in the copy}, each once.
        unnamed: of perf, the id of records that have none.
        adds_id: of perf, all records get an IDENTIFIER, which none of them has.
        keeps_rounds: of perf, FINISHED_ROUND stays: no other records are put beside these.

    Raises:
        OSError: the copy cannot be written, or there is no memory.
    """

class Chunk(NamedTuple):
    """The values of a column in a group of rows, as the pages of a Parquet file have them.

    Attributes:
        values: with nulls; of lists their elements, and one for each that is null or empty.
        nulls: rows.
        encoding: of the data, as Parquet numbers them.
        data: levels and values.
        entries: of the dictionary, 0 without one.
        dictionary: its values.
        least: the smallest value; None: it is not told.
        most: the largest one, likewise.
    """

    values: int
    nulls: int
    encoding: int
    data: bytes
    entries: int
    dictionary: bytes
    least: bytes | None
    most: bytes | None

class Tables:
    """The records of one file as tables of events, read once and in the order of time.

    Args:
        scan: of "all", without columns, and with the sources of the file and the names of tasks.
        tables: their columns; of ftrace, or the raw data of perf's samples.

    Raises:
        OSError: the number of an event is impossible.
    """

    def __init__(self, scan: Scan, tables: Sequence[Scan]) -> None: ...
    def read(self) -> tuple[int, int, list[Chunk]] | None:
        """Return the next group of rows: {number of the table, rows, columns}; None: all are read.

        Raises:
            OSError: there is no memory.
        """

    @property
    def is_odd(self) -> bool:
        """Whether the file tells of losses, or has damage."""

    def is_unordered(self, number: int) -> bool:
        """Whether a row of a table is older than the one before it."""
