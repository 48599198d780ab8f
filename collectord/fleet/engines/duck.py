# SPDX-License-Identifier: Apache-2.0
"""Asks DuckDB, in this process: it reads a folder itself, and any other store by obstore."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.errors import StoreError
from collectord.fleet.engines.conditions import conditions
from collectord.fleet.lift import HOST
from collectord.fleet.question import DATE, EVENT
from collectord.reader.embedded_db import connect, literal
from collectord.reader.event_file import Window
from collectord.reader.sql import Answer, Database
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from collectord.fleet.engines.place import Place
    from collectord.fleet.question import Chosen, Objects, Question
    from collectord.reader.event_tables import TableScan
    from collectord.reader.sql import MadeTable

PROTOCOL: Final = "collectord"
_MEMORY: Final = "2GB"
_PARTITIONS: Final = f"{{'{EVENT}': VARCHAR, '{DATE}': DATE, '{HOST}': VARCHAR}}"
_PATH: Final = "key_of_object"
_OF_PATH: Final = (
    f"url_decode(regexp_extract({_PATH}, '/host=([^/]+)/', 1)) AS {HOST}, "
    f"regexp_extract({_PATH}, '/date=([^/]+)/', 1)::DATE AS {DATE}"
)


class _View(NamedTuple):
    """A table over objects; it is a `MadeTable`."""

    objects: Objects
    place: Place
    chosen: Chosen

    @property
    def columns(self) -> Mapping[str, str]:
        """DuckDB's types by name."""
        return self.objects.columns

    def make(self, connection: Any, name: str) -> Sequence[TableScan]:  # noqa: ANN401
        """Create the view in a database; nothing is scanned for it."""
        if EVENT in self.columns:  # its own, which a partition of the name would hide
            how = f"hive_partitioning = false, filename = '{_PATH}'"
            read = _read(self.objects.keys, self.place, how)
            source = f"(SELECT * EXCLUDE ({_PATH}), {_OF_PATH} FROM {read})"  # noqa: S608  # quoted
        else:
            how = f"hive_partitioning = true, hive_types = {_PARTITIONS}"
            source = _read(self.objects.keys, self.place, how)
        terms = conditions(self.objects, self.chosen, moment=_moment, text=literal)
        where = f" WHERE {' AND '.join(terms)}" if terms else ""
        with _damage_named(self.objects.keys):
            connection.execute(f'CREATE VIEW "{name}" AS FROM {source}{where}')
        return ()


@contextmanager
def _damage_named(keys: Sequence[str]) -> Iterator[None]:
    """Say that an object is damaged where DuckDB cannot read what it has at its end."""
    import duckdb  # noqa: PLC0415  # what only questions to a fleet need

    try:
        yield
    except (duckdb.InvalidInputException, duckdb.IOException) as error:
        (reason, *_) = str(error).splitlines() or [""]
        raise StoreError(
            f"an object is damaged: {reason}",
            key=keys[0] if len(keys) == 1 else "",
            hint="`collectord fleet ledger --verify` names each that is not what was shipped",
        ) from error


def text_of(question: Question, _place: Place) -> str:
    """Return the statement; its tables are views."""
    return question.sql


def ask(
    question: Question, place: Place, _shape: Sequence[tuple[str, str]], stack: ExitStack
) -> Answer:
    """Carry a question out."""
    return _database(question, place, opened(place, stack), stack).ask(question.sql)


def write(question: Question, place: Place, path: str, stack: ExitStack) -> int:
    """Write the result of a question to a Parquet file, and return its rows.

    Raises:
        CollectordError: it cannot be carried out, or the file not written.
    """
    base = opened(place, stack, path)
    return _database(question, place, base, stack).write_parquet(question.sql, path)


def _database(question: Question, place: Place, base: Any, stack: ExitStack) -> Database:  # noqa: ANN401
    tables: dict[str, MadeTable] = {**question.rows}
    for one in question.objects:
        tables[one.name] = _View(one, place, question.chosen)
    return Database({}, tables, Window(), did_you_mean, stack, base=base)


def columns_of(keys: Sequence[str], place: Place, stack: ExitStack) -> dict[str, str]:
    """Return DuckDB's types of the columns that are in some objects, by name.

    Raises:
        StoreError: one of them is damaged.
    """
    connection = opened(place, stack)
    source = _read(keys, place, "hive_partitioning = false")
    with _damage_named(keys):
        told = connection.execute(f"DESCRIBE FROM {source}").fetchall()
    return {row[0]: row[1] for row in told}


def values_of(column: str, objects: Objects, place: Place, chosen: Chosen) -> set[str]:
    """Return the values of a column in the rows of objects.

    Raises:
        StoreError: one of them is damaged.
    """
    with ExitStack() as stack:
        connection = opened(place, stack)
        _View(objects, place, chosen).make(connection, objects.name)
        found = connection.execute(f'SELECT DISTINCT "{column}" FROM "{objects.name}"').fetchall()  # noqa: S608  # of this program
        return {value for (value,) in found}


def opened(place: Place, stack: ExitStack, written: str | None = None) -> Any:  # noqa: ANN401  # of DuckDB
    """Return a database in memory that reads the objects of a store, and no other file.

    Args:
        place: of the store.
        stack: the database ends with it.
        written: path of the one file that may be written.
    """
    folder = place.folder
    if folder is not None:
        return connect(stack, written, folder=f"{folder}/", memory=_MEMORY)
    from collectord.fleet.engines.store_files import StoreFiles  # noqa: PLC0415  # fsspec

    return connect(stack, written, files=StoreFiles(place.store, PROTOCOL), memory=_MEMORY)


def root_of(place: Place) -> str:
    """Return what the names of files begin with that such a database reads, before the key."""
    folder = place.folder
    return f"{PROTOCOL}://" if folder is None else f"{folder}/"


def _read(keys: Sequence[str], place: Place, how: str) -> str:
    root = root_of(place)
    paths = ", ".join(literal(f"{root}{key}") for key in keys)
    return f"read_parquet([{paths}], union_by_name = true, {how})"


def _moment(time_ns: int) -> str:
    return f"make_timestamp_ns({time_ns})"
