# SPDX-License-Identifier: Apache-2.0
"""Read stage: one SQL statement over tables of records, carried out by DuckDB.

The statement is parsed first: only the tables and the columns whose names occur in it are decoded.
It reads them and nothing else: DuckDB may not open a file, load an extension or change a setting.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from collectord.errors import UsageError
from collectord.reader.embedded_db import DatabaseErrors, connect, literal, load_duckdb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from collectord.reader.event_file import Window
    from collectord.reader.event_tables import EventTable, TableScan

    # Returns a hint at the known name that is nearest to another, or "".
    Nearest = Callable[[str, Iterable[str]], str]

_ROWS: Final = 2048
# Types whose values Python would cut, or has no form for that can be printed.
_AS_TEXT: Final = re.compile(
    r"TIMESTAMP|TIME\b|DATE|INTERVAL|BLOB|BIT|UUID|HUGEINT|BIGNUM|DECIMAL"
)


class Named(NamedTuple):
    """The names in a statement, in lower case.

    Attributes:
        tables: that it reads.
        columns: that it refers to as columns.
        given: that it gives to tables and columns itself.
        words: every name and text in it, of columns and others.
        everything: it names columns by a star.
    """

    tables: frozenset[str]
    columns: frozenset[str]
    given: frozenset[str]
    words: frozenset[str]
    everything: bool


class MadeTable(Protocol):
    """A table that is made when a statement names it.

    Attributes:
        columns: DuckDB's types by name.
    """

    @property
    def columns(self) -> Mapping[str, str]: ...  # noqa: D102  # see above

    def make(self, connection: Any, name: str) -> Sequence[TableScan]:  # noqa: ANN401
        """Create the table in a database, and return the scans that it was made from."""


class Answered(Protocol):
    """The result of a statement, whose rows are read once.

    Attributes:
        columns: names of the columns.
        types: of the columns, as DuckDB names them.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]

    def batches(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows, some at a time. Raises CollectordError."""


class Answer:
    """The result of a statement of DuckDB, whose rows are read once.

    Attributes:
        columns: names of the columns.
        types: of the columns, as DuckDB names them.
    """

    def __init__(
        self,
        duckdb: ModuleType,
        connection: Any,  # noqa: ANN401
        source: str,
        values: Mapping[str, int | str],
    ) -> None:
        self._duckdb = duckdb
        described = connection.execute(f"DESCRIBE FROM {source}", values).fetchall()
        self.columns: tuple[str, ...] = tuple(row[0] for row in described)
        self.types: tuple[str, ...] = tuple(row[1] for row in described)
        names = [f"c{number}" for number in range(len(described))]
        shown = (
            f"{name}::VARCHAR" if _AS_TEXT.search(kind) else name
            for name, kind in zip(names, self.types, strict=True)
        )
        wrapped = f"SELECT {', '.join(shown)} FROM {source} AS r({', '.join(names)})"  # noqa: S608
        self._connection = connection.execute(wrapped, values)

    def batches(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows, some at a time. Raises CollectordError."""
        while True:
            with DatabaseErrors(self._duckdb):
                rows = self._connection.fetchmany(_ROWS)
            if not rows:
                return
            yield rows


class Database:
    """A database in memory with the tables of a catalogue.

    Args:
        tables: of records, by name.
        fixed: the other tables, by name; they come before those of records.
        window: the time that is asked for.
        nearest: says which name may have been meant.
        stack: closes all that is made for it.
        base: a connection of `connect`, which several share whose statements this program writes
            itself: to make one takes as long as a small statement. None: each statement has its
            own, in which no value of the program has a name.

    Attributes:
        scans: of the tables that the statement named.

    Raises:
        CollectordError: DuckDB is not installed.
    """

    def __init__(
        self,
        tables: Mapping[str, EventTable],
        fixed: Mapping[str, MadeTable],
        window: Window,
        nearest: Nearest,
        stack: ExitStack,
        *,
        base: Any = None,  # noqa: ANN401  # of DuckDB
    ) -> None:
        self._base = base
        self._nearest = nearest
        self._duckdb = load_duckdb()
        self._tables = {name.lower(): table for name, table in tables.items()}
        self._fixed = {name.lower(): table for name, table in fixed.items()}
        self._window = window
        self._stack = stack
        self.scans: list[TableScan] = []

    def ask(self, sql: str, values: Mapping[str, int | str] | None = None) -> Answer:
        """Begin one SELECT.

        Args:
            sql: the statement.
            values: of its parameters, `$NAME` in the statement; they never become part of it.

        Raises:
            UsageError: it is no SELECT, or names something that does not exist.
            CollectordError: it cannot be carried out.
        """
        connection, source, bound, hint = self._prepare(sql, values or {}, self._stack)
        with DatabaseErrors(self._duckdb, hint):
            return Answer(self._duckdb, connection, source, bound)

    def rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of one SELECT. Raises as `ask`."""
        for batch in self.ask(sql).batches():
            yield from batch

    def write_parquet(
        self,
        sql: str,
        path: str,
        values: Mapping[str, int | str] | None = None,
        *,
        more: str = "",
    ) -> int:
        """Write the result of one SELECT to a file, and return its rows. Raises as `ask`.

        Args:
            sql: the statement.
            path: of the file; with a base, within its folder.
            values: of the statement's parameters.
            more: options of the file, as DuckDB has them, behind a comma.
        """
        with ExitStack() as stack:  # an export writes hundreds
            connection, source, bound, hint = self._prepare(sql, values or {}, stack, written=path)
            options = f"FORMAT parquet, COMPRESSION zstd{more}"
            with DatabaseErrors(self._duckdb, hint):
                copied = connection.execute(
                    f"COPY (FROM {source}) TO {literal(path)} ({options})", bound
                )
                return int(copied.fetchall()[0][0])

    def keep(self, sql: str, table: str) -> None:
        """Append the rows of one SELECT to a table of the base, by the names of the columns.

        Raises as `ask`.
        """
        connection, source, bound, hint = self._prepare(sql, {}, self._stack)
        with DatabaseErrors(self._duckdb, hint):
            connection.execute(f'INSERT INTO "{table}" BY NAME FROM {source}', bound)

    def _prepare(
        self,
        sql: str,
        values: Mapping[str, int | str],
        stack: ExitStack,
        written: str | None = None,
    ) -> tuple[Any, str, dict[str, int | str], Callable[[Exception], str]]:
        """Return a connection with the tables, the statement as a source, and its parameters.

        The last part gives a hint at a name that the statement may have meant.
        """
        if self._base is None:
            connection = connect(stack, written)
        else:
            connection = self._base.cursor()
            stack.callback(connection.close)
        with DatabaseErrors(self._duckdb):
            statements = connection.extract_statements(sql)
        if len(statements) != 1:
            raise UsageError(f"{len(statements)} statements", hint="give one SELECT")
        statement = statements[0].query
        named = self._named(connection, statement)
        hint = partial(self._hint, named)
        for name in sorted(named.tables):
            self._make(connection, name, named)
        bound = {name: values[name] for name in statements[0].named_parameters if name in values}
        if bound:  # which `query` does not take
            return connection, f"(\n{statement}\n)", bound, hint
        # Text of its own, whatever comments it has.
        return connection, f"query({literal(statement)})", bound, hint

    def _named(self, connection: Any, statement: str) -> Named:  # noqa: ANN401
        with DatabaseErrors(self._duckdb):
            answered = connection.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
        try:
            parsed = json.loads(answered[0][0])
        except RecursionError as error:
            raise UsageError("the statement is nested too deeply") from error
        if parsed.get("error"):
            raise UsageError(
                "the statement is not a SELECT", hint="records are read and never changed"
            )
        return named_in(parsed)

    def _make(self, connection: Any, name: str, named: Named) -> None:  # noqa: ANN401
        """Make a table that the statement names."""
        if name in self._fixed:
            # With a base it is made once for all statements.
            self.scans += self._fixed[name].make(self._base or connection, name)
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

    def _hint(self, named: Named, error: Exception) -> str:
        """Return the name that may have been meant by one in the statement that is not known."""
        if isinstance(error, self._duckdb.CatalogException):
            what, used, known = "tables", named.tables, {*self._tables, *self._fixed}
        elif isinstance(error, self._duckdb.BinderException):
            scanned = (name for scan in self.scans for name in scan.table.columns)
            fixed = (name for table in self._fixed.values() for name in table.columns)
            what, used, known = "columns", named.columns, {*scanned, *fixed}
        else:
            return ""
        unknown = sorted(used - named.given - {name.lower() for name in known})
        near = (self._nearest(name, sorted(known)) for name in unknown)
        general = f"`collectord query --schema` lists the {what}" if unknown else ""
        return next(filter(None, near), general)


def named_in(parsed: Any) -> Named:  # noqa: ANN401  # a parsed statement as plain data
    """Return the names in a statement, as `json_serialize_sql` of DuckDB parses it.

    A column may be named wherever a text is; one that is not there is not read. The name of a
    table, or another name for it, stands for a whole row where a column may be: then all are read.
    """
    tables: set[str] = set()
    aliases: set[str] = set()
    given: set[str] = set()
    words: set[str] = set()
    columns: set[str] = set()
    references: set[str] = set()
    everything = False
    waiting = [parsed]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            kind = str(node.get("type"))  # of a cast it is a type as DuckDB 1 has it
            if kind == "BASE_TABLE":
                tables.add(str(node.get("table_name", "")).lower())
            path = [str(part).lower() for part in node.get("column_names", ())]
            if kind == "COLUMN_REF" and path:
                columns.add(path[-1])
                references |= {path[0]} if len(path) == 1 else set()
            # An alias, and in the map of common table expressions the name of each.
            given |= {str(node[key]).lower() for key in ("alias", "key") if node.get(key)}
            if kind.endswith(("TABLE", "SUBQUERY", "JOIN")) and node.get("alias"):
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
    return Named(
        frozenset(tables),
        frozenset(columns),
        frozenset(given),
        frozenset(words - tables),
        everything or bool(whole),
    )
