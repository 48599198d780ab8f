# SPDX-License-Identifier: Apache-2.0
"""The rows of a segment as Parquet files, one for each table that has any."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from collectord.fleet.event_rows import EventRows
from collectord.fleet.table_file import TableFile
from collectord.reader.any_events import open_any
from collectord.reader.chain_tables import Chains, Wishes
from collectord.reader.embedded_db import connect, errors_of_duckdb, literal
from collectord.reader.event_file import EventFile, Window
from collectord.reader.event_lines import tables_in
from collectord.reader.event_tables import tables_of
from collectord.reader.export_rows import quoted
from collectord.reader.sql import Database
from collectord.reader.symbols.sample_names import of_events
from collectord.text.foreign import visible
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from collectord.fleet.redaction import Redaction
    from collectord.fleet.table_file import Place
    from collectord.reader.event_tables import EventTable
    from collectord.reader.sql import MadeTable
    from collectord.reader.symbols.symbol_cache import SymbolCache

# Engines pass over groups of rows whose smallest and largest values tell that none is asked for.
ROW_GROUP: Final = 122_880
_OPTIONS: Final = f", ROW_GROUP_SIZE {ROW_GROUP}, COMPRESSION_LEVEL 1, PARQUET_VERSION v2"
_SAMPLES: Final = "samples"
_TIME: Final = "mono_ns"


def write_rows(
    place: Place,
    redaction: Redaction,
    stack: ExitStack,
    *,
    cache: SymbolCache | None = None,
    after_each: Callable[[], object] = lambda: None,
) -> Iterator[TableFile]:
    """Write the rows of a segment; yield each file, which may be removed then.

    Args:
        place: the segment.
        redaction: what is left out or replaced.
        stack: closes what is opened.
        cache: of symbols.
        after_each: called behind each table, also of one without rows.

    Raises:
        CollectordError: the segment cannot be read, or a file not written.
    """
    file = open_any(place.path, stack)
    if not isinstance(file, EventFile):
        return  # its bytes are of nobody's format
    tables = tables_of([file])
    events = EventRows(file, tables, place, redaction)
    yield from events.write(after_each)
    rest = {
        name: table for name, table in tables.items() if table.files and name not in events.done
    }
    wishes = Wishes(Window(), cache, visible, did_you_mean)
    placed = [event.full_name for event in file.events if event.is_placed]
    fixed: Mapping[str, MadeTable] = Chains([file], wishes).tables if placed else {}
    # Each of these is a reading of the whole file.
    columns = {name: table.columns for name, table in rest.items() if name != _SAMPLES or placed}
    columns |= {name: table.columns for name, table in fixed.items()}
    absent = _absent(file, rest)
    if columns.keys() <= absent:
        return
    base = connect(stack, folder=str(place.folder), threads=1)
    database = Database(rest, fixed, Window(), did_you_mean, stack, base=base)
    for number, (name, kinds) in enumerate(columns.items()):
        if name in absent:
            continue
        condition = f" WHERE {of_events(placed)}" if name == _SAMPLES else ""
        path = place.folder / f"{number}.parquet"
        chosen = _chosen(name, kinds, place, redaction)
        order = f" ORDER BY {_TIME}" if _TIME in kinds else ""
        rows = database.write_parquet(
            f"SELECT {', '.join(chosen.values())} FROM {quoted(name)}{condition}{order}",  # noqa: S608  # names are quoted
            str(path),
            more=_OPTIONS,
        )
        after_each()
        if rows:
            dropped = tuple(column for column in kinds if column not in chosen)
            yield TableFile(name, path, rows, tuple(chosen), dropped)
        path.unlink(missing_ok=True)


def _absent(file: EventFile, tables: Mapping[str, EventTable]) -> frozenset[str]:
    """Return the tables of events that have no rows: each would be a reading of the whole file."""
    of_events = {name: table for name, table in tables.items() if table.is_of_event}
    if not of_events:
        return frozenset()
    there = tables_in(file)
    return frozenset(name for name, table in of_events.items() if table.full_name not in there)


def _chosen(
    table: str, kinds: Mapping[str, str], place: Place, redaction: Redaction
) -> dict[str, str]:
    """Return the columns of a table as SQL, by name, with those that all files have."""
    found = {name: redaction.expression(table, name, kind) for name, kind in kinds.items()}
    chosen = {name: text for name, text in found.items() if text is not None}
    for name, value in place.constants(kinds).items():
        chosen[name] = f"{literal(value)} AS {quoted(name)}"
    return chosen


def rows_in(path: Path) -> int:
    """Return the number of rows in a Parquet file. Raises CollectordError."""
    return int(_ask("SELECT num_rows FROM parquet_file_metadata($path)", path)[0][0])


def columns_in(path: Path) -> tuple[str, ...]:
    """Return the names of the columns of a Parquet file. Raises CollectordError."""
    return tuple(row[0] for row in _ask("DESCRIBE FROM read_parquet($path)", path))


def _ask(sql: str, path: Path) -> list[Any]:
    with ExitStack() as stack:
        connection = connect(stack, folder=str(path.parent), threads=1)
        with errors_of_duckdb():
            found: list[Any] = connection.execute(sql, {"path": str(path)}).fetchall()
            return found
