# SPDX-License-Identifier: Apache-2.0
"""Read stage: the tables of a query about call chains, with the names of functions.

A statement that names one has the chains of all samples named first, each different one of a file
once. The database holds them and a row for each sample, and puts both together as it is asked.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import xxhash

from collectord.codec.ftrace_columns import CGROUP
from collectord.reader.embedded_db import literal
from collectord.reader.event_file import Window
from collectord.reader.event_tables import FRAMES, STACKS, tables_of
from collectord.reader.fixed_tables import FixedTable
from collectord.reader.sql import Database
from collectord.reader.symbols.frame import folded, frames_of
from collectord.reader.symbols.sample_names import CHAIN, names_of, of_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from collectord.reader.event_file import EventFile
    from collectord.reader.event_tables import TableScan
    from collectord.reader.sql import Nearest
    from collectord.reader.symbols.frame import Place
    from collectord.reader.symbols.sample_names import SampleNames
    from collectord.reader.symbols.symbol_cache import SymbolCache

_ROWS: Final = 512  # chains at a time
# Places that are told once; of more some are told again.
_PLACES_MAX: Final = 1 << 18
# {type, what it is} by name.
_OF_SAMPLES: Final = {
    "time": ("TIMESTAMP_NS", "UTC"),
    "mono_ns": ("UBIGINT", "ns, the stamp of the sample"),
    "cpu": ("INTEGER", "number"),
    "pid": ("INTEGER", "process"),
    "tid": ("INTEGER", "thread"),
    "comm": ("VARCHAR", "name of the thread"),
    "event": ("VARCHAR", "text"),
    "session": ("VARCHAR", "text, empty if nothing tells it"),
    CGROUP: ("VARCHAR", "text, the path of the cgroup, null if it was not recorded"),
}
_OF_STACKS: Final = ("session", "event", "comm", CGROUP)
_STACK_ID: Final = {"stack_id": ("UBIGINT", "u64, the same for the same stack")}
_OF_FRAMES: Final = {
    "position": ("UINTEGER", "u32, 0 is the innermost"),
    "address": ("UBIGINT", "u64"),
    "function": ("VARCHAR", "text"),
    "offset": ("UBIGINT", "bytes from the beginning of the function"),
    "module": ("VARCHAR", "text, the file or the kernel's module"),
    "in_kernel": ("BOOLEAN", "true or false"),
    "build_id": ("VARCHAR", "text of hexadecimal digits"),
    "source": ("VARCHAR", "text, the file of the source code"),
    "line": ("UINTEGER", "number, in the source code"),
    "inlined": ("BOOLEAN", "true or false"),
}
_MEANINGS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    FRAMES: _OF_SAMPLES | _STACK_ID | _OF_FRAMES,
    STACKS: {
        **{name: _OF_SAMPLES[name] for name in _OF_STACKS},
        **_STACK_ID,
        "count": ("BIGINT", "samples"),
        "stack": ("VARCHAR", "text, its frames from the outermost on, with ; between them"),
    },
}
# The tables that they are made of.
_SAMPLES: Final = "samples with chains"
_STACKS: Final = "stacks of chains"
_FRAMES: Final = "frames of chains"
_PLACES: Final = "places of frames"
_CHAINS: Final = "chains of a file"
_NUMBERS: Final = "chain numbers"
_TABLES: Final = {
    _SAMPLES: FixedTable(
        {"chain": "BIGINT"} | {name: kind for name, (kind, _) in _OF_SAMPLES.items()}
    ),
    _STACKS: FixedTable({"chain": "BIGINT", "stack_id": "UBIGINT", "stack": "VARCHAR"}),
    _FRAMES: FixedTable(
        {
            "chain": "BIGINT",
            "position": "UINTEGER",
            "address": "UBIGINT",
            "offset": "UBIGINT",
            "place": "BIGINT",
        }
    ),
    _PLACES: FixedTable(
        {
            "place": "BIGINT",
            "function": "VARCHAR",
            "module": "VARCHAR",
            "in_kernel": "BOOLEAN",
            "build_id": "VARCHAR",
            "source": "VARCHAR",
            "line": "UINTEGER",
            "inlined": "BOOLEAN",
        }
    ),
}
_VIEWS: Final = {
    FRAMES: f"""
SELECT {", ".join(f'"{name}"' for name in _MEANINGS[FRAMES])}
FROM "{_SAMPLES}"
JOIN "{_FRAMES}" USING (chain) JOIN "{_STACKS}" USING (chain) JOIN "{_PLACES}" USING (place)
""",  # noqa: S608  # of this module
    STACKS: f"""
SELECT {", ".join(_OF_STACKS)}, stack_id, count(*) AS "count", any_value(stack) AS stack
FROM "{_SAMPLES}" JOIN "{_STACKS}" USING (chain)
GROUP BY {", ".join(_OF_STACKS)}, stack_id
""",  # noqa: S608  # of this module
}


class Wishes(NamedTuple):
    """The time that is asked for, and where names are kept.

    Attributes:
        window: of time.
        cache: of symbols.
        shown: makes unprintable characters visible.
        nearest: says which name may have been meant.
    """

    window: Window
    cache: SymbolCache | None
    shown: Callable[[str], str]
    nearest: Nearest


class ChainTable(NamedTuple):
    """One of the tables, which share what was read."""

    columns: Mapping[str, str]
    chains: Chains

    def make(self, connection: Any, name: str) -> Sequence[TableScan]:  # noqa: ANN401
        """Create the table in a database, and return the scans that it was made from."""
        scans = self.chains.put_into(connection)
        connection.execute(f'CREATE VIEW "{name}" AS {_VIEWS[name]}')
        return scans


class Chains:
    """The call chains of the samples in some files.

    Attributes:
        tables: by name.
        is_read: a statement has named a table.
        nameless: files of whose kernel no list of functions is known.
        left_out: mappings that were too many to be remembered.
    """

    def __init__(self, files: Sequence[EventFile], wishes: Wishes) -> None:
        self._files = files
        self._wishes = wishes
        self._into: Any = None
        self._places: dict[Place, int] = {}
        self._told = 0
        self.is_read = False
        self.nameless: list[EventFile] = []
        self.left_out = 0
        self.tables = {
            name: ChainTable({column: kind for column, (kind, _) in columns.items()}, self)
            for name, columns in _MEANINGS.items()
        }

    def put_into(self, connection: Any) -> Sequence[TableScan]:  # noqa: ANN401  # of DuckDB
        """Put the chains into a database, once, and return the scans that this took."""
        if self._into is connection:
            return ()
        self._into, self.is_read = connection, True
        self._places.clear()
        for name, table in _TABLES.items():
            table.make(connection, name)
        connection.execute(f'CREATE SEQUENCE "{_NUMBERS}"')
        scans: list[TableScan] = []
        for file in self._files:
            events = [event.full_name for event in file.events if event.is_placed]
            span = file.window(self._wishes.window)
            if events and (span is None or not file.is_outside(span)):
                with ExitStack() as stack:
                    scans += self._put_file(connection, file, events, stack)
        return scans

    def _put_file(
        self,
        connection: Any,  # noqa: ANN401
        file: EventFile,
        events: Sequence[str],
        stack: ExitStack,
    ) -> Sequence[TableScan]:
        tables = tables_of([file])
        nearest = self._wishes.nearest
        whole = Database(tables, {}, Window(), nearest, stack, base=connection)
        in_time = Database(tables, {}, self._wishes.window, nearest, stack, base=connection)
        chosen = of_events(events)
        pids = f"SELECT DISTINCT pid FROM samples WHERE {chosen} AND pid IS NOT NULL"  # noqa: S608
        named = names_of(
            file,
            whole.rows,
            [pid for (pid,) in in_time.rows(pids)],
            cache=self._wishes.cache,
            shown=self._wishes.shown,
        )
        connection.execute(
            f'CREATE OR REPLACE TABLE "{_CHAINS}" '
            f"(chain BIGINT DEFAULT nextval('{_NUMBERS}'), process INTEGER, epoch UBIGINT, "
            "addresses UBIGINT[])"
        )
        place = f"s.pid AS process, {named.since} AS epoch, {CHAIN}"
        source = f"FROM {named.samples} WHERE {chosen}"
        found = (
            f"SELECT DISTINCT process, epoch, chain AS addresses FROM (SELECT {place} {source}) "  # noqa: S608
            "WHERE chain IS NOT NULL"
        )
        in_time.keep(f"{named.head}{found}", _CHAINS)
        columns = f"s.time, s.mono_ns, s.cpu, s.pid, s.tid, s.comm, event, s.{CGROUP}"
        joined = (
            f"SELECT c.chain, time, mono_ns, cpu, pid, tid, comm, event, {CGROUP}, "  # noqa: S608  # as above
            f"{literal(file.session)} AS session FROM (SELECT {columns}, {place} {source}) q "
            f'JOIN "{_CHAINS}" c ON c.process IS NOT DISTINCT FROM q.process '
            "AND c.epoch IS NOT DISTINCT FROM q.epoch AND c.addresses = q.chain"
        )
        in_time.keep(f"{named.head}{joined}", _SAMPLES)
        self._put_names(connection, named)
        if named.symbolizer.lacks_kernel and not named.knows_kernel:
            self.nameless.append(file)
        self.left_out += named.left_out
        return in_time.scans

    def _put_names(self, connection: Any, named: SampleNames) -> None:  # noqa: ANN401
        """Name the chains of a file."""
        reading = connection.cursor()
        reading.execute(f'SELECT chain, process, epoch, addresses FROM "{_CHAINS}"')  # noqa: S608
        while chains := reading.fetchmany(_ROWS):
            stacks: list[Sequence[object]] = []
            frames: list[Sequence[object]] = []
            places: list[Sequence[object]] = []
            for chain, pid, since_ns, addresses in chains:
                located = [*named.symbolizer.located(pid, since_ns, addresses)]
                text = folded(frames_of(located))
                stacks.append((chain, xxhash.xxh3_64_intdigest(text.encode()), text))
                for position, (address, offset, place) in enumerate(located):
                    number = self._number(place, places)
                    frames.append((chain, position, address, offset, number))
            for name, rows in ((_STACKS, stacks), (_FRAMES, frames), (_PLACES, places)):
                _TABLES[name].append(connection, name, rows)
        reading.close()

    def _number(self, place: Place, new: list[Sequence[object]]) -> int:
        """Return the number of a place, which is added to the new ones if it was not told."""
        number = self._places.get(place)
        if number is None:
            if len(self._places) >= _PLACES_MAX:
                self._places.clear()
            number = self._places[place] = self._told
            self._told += 1
            frame = place.frame
            new.append(
                (
                    number,
                    frame.name,
                    frame.module or None,
                    frame.is_kernel,
                    place.build_id.hex() or None,
                    place.source or None,
                    place.line or None,
                    place.is_inlined,
                )
            )
        return number


def described_chains() -> Iterator[tuple[str, str, str]]:
    """Yield {table, column, what it is} of the tables."""
    for table, columns in _MEANINGS.items():
        for name, (_, meaning) in columns.items():
            yield table, name, meaning
