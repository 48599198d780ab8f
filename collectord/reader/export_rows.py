# SPDX-License-Identifier: Apache-2.0
"""Read stage: the records of many files on one time line, table by table, for other formats."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.reader.embedded_db import connect
from collectord.reader.event_file import Window
from collectord.reader.event_tables import tables_of
from collectord.reader.sql import Database
from collectord.reader.symbols.sample_names import CHAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from collectord.reader.event_file import EventFile
    from collectord.reader.event_tables import EventTable, TableScan
    from collectord.reader.sql import Nearest
    from collectord.reader.symbols.address_space_reader import Ask
    from collectord.reader.symbols.frame import Frame
    from collectord.reader.symbols.sample_names import SampleNames

    NamesOf = Callable[[EventFile, Ask, Iterable[int]], SampleNames]

# The fields of `losses` beside the common ones.
LOSS_FIELDS: Final = ("events", "event", "how", "session", "file")
_COMMON: Final = ("cpu", "pid", "tid", "comm")
_TIMES: Final = ("time", "mono_ns")
_SAMPLES: Final = "samples"


class Row(NamedTuple):
    """A record.

    Attributes:
        at_ns: on the time line.
        cpu: -1 if it is not known.
        pid: of the process, None if it is not known.
        tid: of the thread, None if it is not known.
        comm: of the thread, None if it is not known.
        values: of the fields that were asked for, None for those that the record does not have.
    """

    at_ns: int
    cpu: int
    pid: int | None
    tid: int | None
    comm: str | None
    values: tuple[Any, ...]


class TimeLine:
    """The records of files, with times since the first boot that they are of.

    The times follow UTC. A file that does not tell UTC has stamps since a boot, which are taken
    as they are.

    Args:
        files: all of them.
        tables: their tables, by name.
        window: the time that is asked for.
        nearest: says which name may have been meant.
        stack: closes all that is made for it.

    Attributes:
        base_ns: UTC of the time 0, in ns; 0 if no file tells UTC.
        tables: by name.

    Raises:
        CollectordError: DuckDB is not installed.
    """

    def __init__(
        self,
        files: Sequence[EventFile],
        tables: Mapping[str, EventTable],
        window: Window,
        nearest: Nearest,
        stack: ExitStack,
    ) -> None:
        boots = [utc_ns - stamp_ns for file in files for stamp_ns, utc_ns in file.clock[-1:]]
        self.base_ns = max(min(boots, default=0), 0)
        self.tables = tables
        self._files = files
        self._window = window
        self._nearest = nearest
        self._base = connect(stack)
        self._database = Database(tables, {}, window, nearest, stack, base=self._base)
        self._at = f"coalesce(epoch_ns(time) - {self.base_ns}, try_cast(mono_ns AS BIGINT))"

    @property
    def scans(self) -> Sequence[TableScan]:
        """The scans of the tables that were read."""
        return self._database.scans

    @property
    def events(self) -> Iterator[EventTable]:
        """The tables of tracepoints and of events of BPF programs."""
        return (table for table in self.tables.values() if table.system)

    def fields(self, table: EventTable) -> list[str]:
        """Return the columns that are a table's own."""
        return [name for name in table.columns if name not in {*_COMMON, *_TIMES}]

    def rows(self, table: EventTable, fields: Sequence[str]) -> Iterator[Row]:
        """Yield the records of a table in the order of the files; one without a time is left out.

        Raises CollectordError.
        """
        known = [quoted(name) if name in table.columns else "NULL" for name in _COMMON]
        names = [*known, *map(quoted, fields)]
        statement = f"SELECT {self._at} AS at_ns, {', '.join(names)} FROM {quoted(table.name)}"  # noqa: S608  # names are quoted
        for at_ns, cpu, pid, tid, comm, *values in self._database.rows(statement):
            if at_ns is not None and at_ns >= 0:
                yield Row(at_ns, -1 if cpu is None else cpu, pid, tid, comm, tuple(values))

    def records(self) -> Iterator[tuple[str, str, Row, dict[str, Any]]]:
        """Yield {name of the event, system, record, its fields} of all records.

        Samples of events that have a table are not there a second time. Raises CollectordError.
        """
        for table in self.events:
            fields = self.fields(table)
            for row in self.rows(table, fields):
                yield table.name, table.system, row, dict(zip(fields, row.values, strict=True))
        for event, row, values in self.samples():
            yield event, _SAMPLES, row, values

    def samples(self) -> Iterator[tuple[str, Row, dict[str, Any]]]:
        """Yield {event, record, fields} of the samples whose event has no table of its own.

        Raises CollectordError.
        """
        table = self.tables.get(_SAMPLES)
        if table is None:
            return
        fields = [name for name in self.fields(table) if name != "event"]
        own = self._own_events()
        for row in self.rows(table, ["event", *fields]):
            event, *values = row.values
            if event not in own:
                yield str(event), row, dict(zip(fields, values, strict=True))

    def _own_events(self) -> Collection[str]:
        """Return the names of samples whose events have tables of their own."""
        return {name for file in self._files for name in file.tabled}

    def stacks(self, named: NamesOf) -> Iterator[tuple[Row, list[Frame]]]:
        """Yield those samples with their frames, the outermost first. Raises CollectordError.

        Args:
            named: gives the names for the samples of some processes of a file.
        """
        own = self._own_events()
        for file in self._files:
            span = file.window(self._window)
            if span is None or file.is_outside(span):
                continue
            tables = tables_of([file])
            with ExitStack() as stack:
                window = (self._window, self._nearest, stack)
                in_time = Database(tables, {}, *window, base=self._base)
                whole = Database(tables, {}, Window(), *window[1:], base=self._base)
                yield from self._stacks_of(file, in_time, whole, own, named)

    def _stacks_of(
        self,
        file: EventFile,
        in_time: Database,
        whole: Database,
        own: Collection[str],
        named: NamesOf,
    ) -> Iterator[tuple[Row, list[Frame]]]:
        pids = in_time.rows("SELECT DISTINCT pid FROM samples WHERE pid IS NOT NULL")
        names = named(file, whole.rows, [pid for (pid,) in pids])
        columns = ["s.cpu AS cpu", "s.pid AS process", "s.tid AS thread", "s.comm AS comm"]
        columns += ["event", f"{names.since} AS epoch", CHAIN]
        statement = f"{names.head}SELECT {self._at} AS at_ns, {', '.join(columns)} "
        for at_ns, cpu, pid, tid, comm, event, epoch, chain in in_time.rows(
            f"{statement}FROM {names.samples}"
        ):
            if at_ns is None or at_ns < 0 or event in own:
                continue
            row = Row(at_ns, -1 if cpu is None else cpu, pid, tid, comm, ())
            yield row, names.symbolizer.frames(pid, epoch, chain or ())

    def running(self) -> Iterator[tuple[int, int | None, int, int, str]]:
        """Yield {start, end, CPU, thread, its name} of what ran, by the task switches.

        The end is None where no later switch of the CPU is known. Raises CollectordError.
        """
        table = self.tables.get("sched_switch")
        if table is None or not {"next_pid", "next_comm"} <= table.columns.keys():
            return
        statement = (
            f"SELECT {self._at} AS at_ns, lead({self._at}) OVER (PARTITION BY cpu ORDER BY "  # noqa: S608  # of this module
            f"{self._at}), cpu, next_pid, next_comm FROM sched_switch"
        )
        for at_ns, end_ns, cpu, tid, comm in self._database.rows(statement):
            if at_ns is not None and at_ns >= 0 and tid != 0:
                yield at_ns, end_ns, cpu, tid, comm or ""


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'
