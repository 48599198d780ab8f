# SPDX-License-Identifier: Apache-2.0
"""Sink stage: one SQL statement over tables of records, carried out by DuckDB.

The statement is parsed first: only the tables and the columns whose names occur in it are decoded.
It reads them and nothing else: DuckDB may not open a file, load an extension or change a setting.
"""

from __future__ import annotations

import json
import re
import tempfile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.errors import CollectordError, UsageError
from collectord.reader.event_tables import SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import ExitStack
    from types import ModuleType

    from collectord.reader.event_file import Window
    from collectord.reader.event_tables import EventTable, TableScan

    # Returns a hint at the known name that is nearest to another, or "".
    Nearest = Callable[[str, Iterable[str]], str]

_MEMORY: Final = "256MB"
_ROWS: Final = 2048
_QUOTE: Final = "'"
_NO_COLUMN: Final = re.compile(
    r'(?:Referenced column|Table "[^"]*" does not have a column named|column) "([^"]+)"'
)
_SETTINGS: Final = (
    f"SET memory_limit = '{_MEMORY}'",
    "SET python_enable_replacements = false",
    "SET autoload_known_extensions = false",
    "SET autoinstall_known_extensions = false",
)
_LOCKS: Final = ("SET enable_external_access = false", "SET lock_configuration = true")
# Types whose values Python would cut, or has no form for that can be printed.
_AS_TEXT: Final = re.compile(
    r"TIMESTAMP|TIME\b|DATE|INTERVAL|BLOB|BIT|UUID|HUGEINT|BIGNUM|DECIMAL"
)


class Named(NamedTuple):
    """The names in a statement, in lower case.

    Attributes:
        tables: that it reads.
        words: every name and text in it, of columns and others.
        everything: it names columns by a star.
    """

    tables: frozenset[str]
    words: frozenset[str]
    everything: bool


class Segment(NamedTuple):
    """A row of the table `segments`; times are UTC in ns."""

    path: str
    session: str
    format: str
    state: str
    started: int | None
    first: int | None
    last: int | None
    samples: int | None
    bytes: int


SEGMENT_COLUMNS: Final = {
    "path": "VARCHAR",
    "session": "VARCHAR",
    "format": "VARCHAR",
    "state": "VARCHAR",
    "started": "TIMESTAMP_NS",
    "first": "TIMESTAMP_NS",
    "last": "TIMESTAMP_NS",
    "samples": "UBIGINT",
    "bytes": "UBIGINT",
}


class Answer:
    """The result of a statement, whose rows are read once.

    Attributes:
        columns: names of the columns.
        types: of the columns, as DuckDB names them.
    """

    def __init__(self, duckdb: ModuleType, connection: Any, sql: str) -> None:  # noqa: ANN401
        self._duckdb = duckdb
        # Text of its own, whatever comments it has.
        source = f"query('{sql.replace(_QUOTE, _QUOTE * 2)}')"
        described = connection.execute(f"DESCRIBE FROM {source}").fetchall()
        self.columns: tuple[str, ...] = tuple(row[0] for row in described)
        self.types: tuple[str, ...] = tuple(row[1] for row in described)
        names = [f"c{number}" for number in range(len(described))]
        shown = (
            f"{name}::VARCHAR" if _AS_TEXT.search(kind) else name
            for name, kind in zip(names, self.types, strict=True)
        )
        wrapped = f"SELECT {', '.join(shown)} FROM {source} AS r({', '.join(names)})"  # noqa: S608
        self._connection = connection.execute(wrapped)

    def batches(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows, some at a time. Raises CollectordError."""
        while True:
            with _Errors(self._duckdb):
                rows = self._connection.fetchmany(_ROWS)
            if not rows:
                return
            yield rows


class Database:
    """A database in memory with the tables of a catalogue.

    Args:
        tables: of records, by name.
        segments: rows of `segments`.
        window: the time that is asked for.
        nearest: says which name may have been meant.
        stack: closes all that is made for it.

    Attributes:
        scans: of the tables that the statement named.

    Raises:
        CollectordError: DuckDB is not installed.
    """

    def __init__(
        self,
        tables: Mapping[str, EventTable],
        segments: Sequence[Segment],
        window: Window,
        nearest: Nearest,
        stack: ExitStack,
    ) -> None:
        self._nearest = nearest
        self._duckdb = _duckdb()
        self._tables = {name.lower(): table for name, table in tables.items()}
        self._segments = segments
        self._window = window
        self._stack = stack
        self.scans: list[TableScan] = []

    def ask(self, sql: str) -> Answer:
        """Begin one SELECT.

        Raises:
            UsageError: it is no SELECT, or names something that does not exist.
            CollectordError: it cannot be carried out.
        """
        connection, statement = self._prepare(sql, written=None)
        with _Errors(self._duckdb, self._hint):
            return Answer(self._duckdb, connection, statement)

    def write_parquet(self, sql: str, path: str) -> int:
        """Write the result of one SELECT to a file, and return its rows. Raises as `ask`."""
        connection, statement = self._prepare(sql, written=path)
        target = path.replace(_QUOTE, _QUOTE * 2)
        options = "FORMAT parquet, COMPRESSION zstd"
        with _Errors(self._duckdb, self._hint):
            source = f"FROM query('{statement.replace(_QUOTE, _QUOTE * 2)}')"
            copied = connection.execute(f"COPY ({source}) TO '{target}' ({options})")
            return int(copied.fetchall()[0][0])

    def _prepare(self, sql: str, written: str | None) -> tuple[Any, str]:
        """Return a connection that has what the statement names, and the statement."""
        temporary = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="collectord-"))
        connection = self._duckdb.connect(":memory:")
        self._stack.callback(connection.close)
        with _Errors(self._duckdb):
            for setting in _SETTINGS:
                connection.execute(setting)
            connection.execute("SET temp_directory = ?", [temporary])
            if written is not None:
                connection.execute("SET allowed_paths = ?", [[written]])
            for setting in _LOCKS:
                connection.execute(setting)
        with _Errors(self._duckdb):
            statements = connection.extract_statements(sql)
        if len(statements) != 1:
            raise UsageError(f"{len(statements)} statements", hint="give one SELECT")
        statement = statements[0].query
        named = self._named(connection, statement)
        for name in sorted(named.tables):
            self._make(connection, name, named)
        return connection, statement

    def _named(self, connection: Any, statement: str) -> Named:  # noqa: ANN401
        with _Errors(self._duckdb):
            answered = connection.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
        try:
            parsed = json.loads(answered[0][0])
        except RecursionError as error:
            raise UsageError("the statement is nested too deeply") from error
        if parsed.get("error"):
            raise UsageError(
                "the statement is no SELECT", hint="records are read and never changed"
            )
        return named_in(parsed)

    def _make(self, connection: Any, name: str, named: Named) -> None:  # noqa: ANN401
        """Make a table that the statement names."""
        if name == SEGMENTS:
            _make_segments(connection, self._segments)
            return
        table = self._tables.get(name)
        if table is None:
            return  # one that the statement itself makes, or DuckDB's own; else DuckDB refuses
        columns = [
            column
            for column in table.columns
            if named.everything or name in named.words or column.lower() in named.words
        ]
        scan = table.scan(columns, self._window)
        self.scans.append(scan)
        connection.register(table.name, scan)

    def _hint(self, message: str) -> str:
        """Return the name that may have been meant by one that DuckDB does not know."""
        missing = re.search(r"Table with name (\S+) does not exist", message)
        if missing:
            near = self._nearest(missing[1], [*self._tables, SEGMENTS])
            return near or "`collectord query --schema` lists the tables"
        column = _NO_COLUMN.search(message)
        if column:
            scanned = [name for scan in self.scans for name in scan.table.columns]
            near = self._nearest(column[1], [*scanned, *SEGMENT_COLUMNS])
            return near or "`collectord query --schema` lists the columns"
        return ""


def named_in(parsed: Any) -> Named:  # noqa: ANN401  # a parsed statement as plain data
    """Return the names in a statement, as `json_serialize_sql` of DuckDB parses it.

    A column may be named wherever a text is; one that is not there is not read. The name of a
    table, or another name for it, stands for a whole row where a column may be: then all are read.
    """
    tables: set[str] = set()
    aliases: set[str] = set()
    words: set[str] = set()
    references: set[str] = set()
    everything = False
    waiting = [parsed]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            kind = node.get("type")
            if kind == "BASE_TABLE":
                tables.add(str(node.get("table_name", "")).lower())
            if kind == "COLUMN_REF" and len(node.get("column_names", ())) == 1:
                references.add(str(node["column_names"][0]).lower())
            if str(kind).endswith(("TABLE", "SUBQUERY", "JOIN")) and node.get("alias"):
                aliases.add(str(node["alias"]).lower())
            # A NATURAL join, or a kind of table that hides what it reads.
            everything |= (
                kind in {"STAR", "SHOW_REF", "PIVOT"} or node.get("ref_type") == "NATURAL"
            )
            waiting += node.values()
        elif isinstance(node, str):
            words.add(node.lower())
    whole = references & (tables | aliases)
    # The name of a table is no name of a column, unless it stands for a row.
    return Named(frozenset(tables), frozenset(words - tables), everything or bool(whole))


class _Errors:
    """Turns errors of DuckDB in a block into ours."""

    def __init__(self, duckdb: ModuleType, hint: Any = None) -> None:  # noqa: ANN401
        self._duckdb = duckdb
        self._hint = hint

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Raise what stands for an error of DuckDB."""
        if not isinstance(error, self._duckdb.Error):
            return
        message = " ".join(str(error).split("\n\n", 1)[0].split())
        hint = self._hint(message) if self._hint is not None else ""
        if isinstance(error, self._duckdb.OutOfMemoryException):
            raise CollectordError(
                f"the statement needs more than {_MEMORY}", hint="ask for less at a time"
            ) from error
        refused = (self._duckdb.IOException, self._duckdb.InternalException)
        if isinstance(error, refused):
            raise CollectordError(message, hint=hint) from error
        message = re.sub(r"\s*Did you mean .*", "", message) if hint else message
        raise UsageError(message, hint=hint) from error


def _duckdb() -> ModuleType:
    try:
        import duckdb  # noqa: PLC0415  # of this verb alone, and heavy
    except ImportError as error:
        hint = "python3 -m pip install 'collectord[query]', or duckdb beside it"
        raise CollectordError("query needs DuckDB, which is not installed", hint=hint) from error
    return duckdb


def _make_segments(connection: Any, segments: Sequence[Segment]) -> None:  # noqa: ANN401
    columns = ", ".join(f'"{name}" {kind}' for name, kind in SEGMENT_COLUMNS.items())
    connection.execute(f"CREATE TABLE {SEGMENTS} ({columns})")
    places = ", ".join(
        "make_timestamp_ns(?)" if kind == "TIMESTAMP_NS" else "?"
        for kind in SEGMENT_COLUMNS.values()
    )
    if segments:
        insert = f"INSERT INTO {SEGMENTS} VALUES ({places})"  # noqa: S608  # of this module
        connection.executemany(insert, [*map(list, segments)])
