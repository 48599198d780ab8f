# SPDX-License-Identifier: Apache-2.0
"""Read stage: the tables that files have together: one for each event, and losses and damage."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from collectord._native._columns import Scan
from collectord.codec.event_names import find_named
from collectord.codec.file_formats import BLKTRACE
from collectord.codec.ftrace_columns import COMMON, MISSING, fits, widest
from collectord.codec.perf_attr import EventType
from collectord.codec.perf_columns import FIXED, SAMPLES, SOFTWARE, SOFTWARE_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from collectord.codec.ftrace_columns import Where
    from collectord.reader.event_file import EventFile, Records, Source, Window

LOSSES: Final = "losses"
DAMAGE: Final = "damage"
SEGMENTS: Final = "segments"
SYSCALL_NAMES: Final = "syscall_names"
ERRNO_NAMES: Final = "errno_names"
GAPS: Final = "gaps"
LEDGER: Final = "ledger"
CLOCKS: Final = "clocks"
COVERAGE: Final = "coverage"
SNAPSHOTS: Final = "snapshots"
FRAMES: Final = "frames"
STACKS: Final = "stacks"
# Names that no table of records has.
_TAKEN: Final = (
    *(SEGMENTS, LEDGER, CLOCKS, COVERAGE, SNAPSHOTS, SYSCALL_NAMES, ERRNO_NAMES, GAPS),
    *(FRAMES, STACKS),
)
# The tables whose rows are no events; their payloads are `struct incident` of the decoder.
_INCIDENTS: Final[Mapping[str, Mapping[str, tuple[str, Where]]]] = {
    LOSSES: {
        "time": ("time", ("utc", 0, 0, 0, False)),
        "mono_ns": ("u64", ("stamp", 0, 0, 0, False)),
        "cpu": ("i32", ("cpu", 0, 0, 0, False)),
        "events": ("u64", ("inline", 8, 8, 8, False)),
        "event": ("text", ("label", 0, 0, 0, False)),
    },
    DAMAGE: {
        "time": ("time", ("utc", 0, 0, 0, False)),
        "mono_ns": ("u64", ("stamp", 0, 0, 0, False)),
        "cpu": ("i32", ("cpu", 0, 0, 0, False)),
        "byte": ("u64", ("inline", 0, 8, 8, False)),
        "reason": ("text", ("inline", 8, 24, 1, False)),
    },
}
_OF_LOSSES: Final = {"how": "text"}
_OF_FILES: Final = {"session": "text", "file": "text"}


class Found(NamedTuple):
    """Counts of one file in the time that was asked for.

    Attributes:
        rows: of the table.
        lost: events that the file says were lost.
        lost_untold: losses whose number the file does not say.
        damaged: places that could not be read.
        cpus: that lost them; -1 is one that is not known. None may be known.
        counted_cpus: those of them that the counters of events tell.
    """

    rows: int = 0
    lost: int = 0
    lost_untold: int = 0
    damaged: int = 0
    cpus: frozenset[int] = frozenset()
    counted_cpus: frozenset[int] = frozenset()

    def and_also(self, other: Found) -> Found:
        """Return what was found in two places together."""
        return self._with(other, operator.add)

    def or_more(self, other: Found) -> Found:
        """Return the larger figures of two readings of one place, each of which may miss some."""
        return self._with(other, max)

    def _with(self, other: Found, join: Callable[[int, int], int]) -> Found:
        return Found(
            join(self.rows, other.rows),
            join(self.lost, other.lost),
            join(self.lost_untold, other.lost_untold),
            join(self.damaged, other.damaged),
            self.cpus | other.cpus,
            self.counted_cpus | other.counted_cpus,
        )


class Reading(Protocol):
    """A reading of files, of which it says afterwards what was found in them."""

    @property
    def untimed(self) -> Sequence[EventFile]:
        """The files without a clock beside UTC, which a window of time leaves out."""

    def found(self) -> Mapping[EventFile, Found]:
        """Return what was found in each file so far."""


@dataclass(frozen=True, slots=True)
class EventTable:
    """A table of all records of one name.

    Attributes:
        name: of the table.
        system: of the event, "" for the other tables.
        event: its name within the system; the table's own for the others.
        columns: kind by name.
    """

    name: str
    system: str
    event: str
    columns: Mapping[str, str]
    _rows_of: Sequence[tuple[EventFile, Records | None]] = field(repr=False)

    @property
    def full_name(self) -> str:
        """SYSTEM:NAME of the event."""
        return f"{self.system}:{self.event}"

    @property
    def is_of_event(self) -> bool:
        """Whether its rows are of one event, with the event's own fields."""
        return self.system not in {"", BLKTRACE}

    @property
    def files(self) -> Sequence[EventFile]:
        """The files that have records of the table."""
        return [*dict.fromkeys(file for file, _ in self._rows_of)]

    def scan(self, names: Iterable[str], window: Window, *, with_comms: bool = True) -> TableScan:
        """Return a scan of some columns, in the table's order; at least one is read.

        Args:
            names: of the columns.
            window: of time.
            with_comms: it knows the names of tasks itself, if its records do not tell them.
        """
        asked = {*names}
        chosen = {name: kind for name, kind in self.columns.items() if name in asked}
        # Rows are counted by a column that costs least.
        chosen = chosen or {"cpu": self.columns["cpu"]}
        return TableScan(self, chosen, self._rows_of, window, with_comms=with_comms)


class TableScan:
    """Some columns of a table, which DuckDB and others read as an Arrow stream.

    Attributes:
        table: that it reads.
        columns: kind by name.
        scan: what the decoder reads.
        untimed: files without a clock beside UTC, which a window of time leaves out.
    """

    def __init__(
        self,
        table: EventTable,
        columns: Mapping[str, str],
        rows_of: Sequence[tuple[EventFile, Records | None]],
        window: Window,
        *,
        with_comms: bool,
    ) -> None:
        self.table = table
        self.columns = columns
        wanted: Any = table.name if table.name in _INCIDENTS else "events"
        self.scan = Scan(wanted, columns.items())
        self._sources: list[tuple[EventFile, Source]] = []
        self.untimed: list[EventFile] = []
        for file, records in rows_of:
            span = file.window(window)
            if span is None:
                if file not in self.untimed:
                    self.untimed.append(file)
                continue
            if file.is_outside(span) and table.name != DAMAGE:
                continue
            if records is None:
                places, sources = _incident_places(table.name, file), file.sources
            else:
                places = {column.name: (column.kind, column.where) for column in records.columns}
                sources = records.sources
            fields: list[Any] = [
                places[name][1] if name in places and fits(places[name][0], kind) else MISSING
                for name, kind in columns.items()
            ]
            for source in sources:
                fd, spans = file.contents(source)
                self._sources.append((file, source))
                self.scan.add(
                    fd,
                    source.kind,  # type: ignore[arg-type]  # of the decoder
                    fields,
                    spans,
                    since_ns=span.since_ns,
                    until_ns=span.until_ns,
                    comms=file.comms() if with_comms and "comm" in columns else (),
                    clock=file.clock,
                    **source.options,
                )

    def found(self) -> dict[EventFile, Found]:
        """Return what was found in each file so far."""
        by_place: dict[tuple[EventFile, int, object], list[Found]] = {}
        for (file, source), counts in zip(self._sources, self.scan.counts(), strict=True):
            by_place.setdefault((file, source.fd, source.spans), []).append(Found(*counts))
        totals: dict[EventFile, Found] = {}
        for (file, *_), found in by_place.items():
            # Each of several reads of one place finds its losses and its damage.
            once = reduce(Found.or_more, found)
            once = once._replace(rows=sum(one.rows for one in found))
            totals[file] = totals.get(file, Found()).and_also(once)
        return {file: _as_counted(file, one) for file, one in totals.items()}

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule with a new stream."""
        return self.scan.__arrow_c_stream__(requested_schema)


def _as_counted(file: EventFile, found: Found) -> Found:
    """Return what was found in a file, with its losses as the kernel counted them."""
    if file.lost_known is None:
        return found._replace(cpus=found.cpus | found.counted_cpus)
    # A note of losses may come in the next file: a ring has room for it only then.
    noted = found.cpus if found.lost == file.lost_known else frozenset()
    return found._replace(lost=file.lost_known, cpus=found.counted_cpus or noted)


def tables_of(files: Sequence[EventFile]) -> dict[str, EventTable]:
    """Return the tables of some files by name.

    An event is a table by its name; two of different systems are SYSTEM:NAME each.
    """
    by_event: dict[tuple[str, str], list[tuple[EventFile, Records | None]]] = {
        ("", name): [] for name in FIXED
    }
    for file in files:
        for records in file.records:
            by_event.setdefault((records.system, records.name), []).append((file, records))
    taken = Counter(name.lower() for _, name in by_event)
    taken.update([*_INCIDENTS, *_TAKEN])
    tables = {}
    for (system, name), rows_of in by_event.items():
        is_alone = taken[name.lower()] == 1 or not system
        shown = name if is_alone else f"{system}:{name}"
        columns = _columns(rows_of) if system else FIXED[name]
        tables[shown] = EventTable(shown, system, name, columns, rows_of)
    for name, places in _INCIDENTS.items():
        more = (_OF_LOSSES if name == LOSSES else {}) | _OF_FILES
        columns = {column: kind for column, (kind, _) in places.items()} | more
        tables[name] = EventTable(name, "", name, columns, [(file, None) for file in files])
    return tables


def software_tables(files: Iterable[EventFile]) -> list[EventTable]:
    """Return a table of the samples of each software event: answers read it, queries `samples`."""
    by_name: dict[str, list[tuple[EventFile, Records | None]]] = {}
    for file in files:
        for records in file.software:
            by_name.setdefault(records.name, []).append((file, records))
    columns = FIXED[SAMPLES]
    return [
        EventTable(name, SOFTWARE, name, columns, rows_of) for name, rows_of in by_name.items()
    ]


def software_event(name: str) -> str:
    """Return SOFTWARE:NAME for an alias of a software event with modifiers; "" for any other."""
    found = find_named(name.partition(":")[0])
    if found is None or found.type != EventType.SOFTWARE or found.config not in SOFTWARE_NAMES:
        return ""
    return f"{SOFTWARE}:{SOFTWARE_NAMES[found.config]}"


def table_of_samples(event: str) -> str:
    """Return the table with the rows of a software event SOFTWARE:NAME; "" for any other event."""
    return SAMPLES if event.startswith(f"{SOFTWARE}:") else ""


def _columns(rows_of: Iterable[tuple[EventFile, Records | None]]) -> dict[str, str]:
    """Return the columns that the layouts of an event have together."""
    kinds: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for _, records in rows_of:
        for column in records.columns if records else ():
            # SQL does not tell names apart that differ in case.
            name = names.setdefault(column.name.lower(), column.name)
            kinds.setdefault(name, []).append(column.kind)
    return {name: widest(found) for name, found in kinds.items()}


def _incident_places(table: str, file: EventFile) -> dict[str, tuple[str, Where | str]]:
    return {
        **_INCIDENTS[table],
        "how": ("text", "overwritten" if file.wraps else "lost"),
        "session": ("text", file.session),
        "file": ("text", file.path_text),
    }


def described(tables: Mapping[str, EventTable]) -> Iterator[tuple[str, str, str]]:
    """Yield the table, the name and the description of each column of all tables."""
    for table in tables.values():
        is_fixed = not table.is_of_event
        for name, kind in table.columns.items():
            unit = _UNITS.get(name) if is_fixed else None
            what = kind if unit is None else f"{kind}, {unit}"
            yield table.name, name, _MEANINGS.get(name, what) if name in COMMON else what


# Units of the columns of tables that have the same ones whatever was recorded.
_UNITS: Final = {
    "events": "records",
    "byte": "bytes from the beginning of the file",
    "bytes": "bytes",
    "offset": "bytes",
    "length": "bytes",
    "file_offset": "bytes",
    "sector": "sectors of 512 bytes",
}
_MEANINGS: Final = {
    "time": "UTC",
    "mono_ns": "ns, the stamp of the record",
    "cpu": "number",
    "pid": "process, null if the records have none",
    "tid": "thread",
    "comm": "name of the thread",
}
