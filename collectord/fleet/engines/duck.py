# SPDX-License-Identifier: Apache-2.0
"""Asks DuckDB, in this process: it reads a folder itself, and any other store by obstore."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from collectord.errors import CollectordError, NotStored, StoreError
from collectord.fleet.engines.conditions import conditions
from collectord.fleet.per_host_statement import HOST
from collectord.fleet.question import DATE, EVENT
from collectord.reader.embedded_db import connect, errors_of_duckdb, literal
from collectord.reader.event_file import Window
from collectord.reader.sql import Database
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from collectord.fleet.engines.place import Place
    from collectord.fleet.question import Chosen, Objects, Question
    from collectord.reader.event_tables import TableScan
    from collectord.reader.sql import Answered, MadeTable

PROTOCOL: Final = "collectord"
_MEMORY: Final = "2GB"
_LOOKED_AT: Final = 1000
_REASON_CHARS: Final = 300
_REFUSAL_CHARS: Final = 400
T = TypeVar("T")
_PARTITIONS: Final = f"{{'{EVENT}': VARCHAR, '{DATE}': DATE, '{HOST}': VARCHAR}}"
_PATH: Final = "key_of_object"
_OF_PATH: Final = (
    f"url_decode(regexp_extract({_PATH}, '/host=([^/]+)/', 1)) AS {HOST}, "
    f"regexp_extract({_PATH}, '/date=([^/]+)/', 1)::DATE AS {DATE}"
)


class RunFailed(CollectordError):
    """An error of an engine that may come from an object that it reads."""


def refusal(engine: str, told: str) -> str:
    """Return what is said of an error of another engine, in its words."""
    words = " ".join(told.split())
    return f"{engine} refuses the statement: {words[:_REFUSAL_CHARS]}"


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
        with errors_of_duckdb():
            connection.execute(f'CREATE VIEW "{name}" AS FROM {source}{where}')
        return ()


@contextmanager
def damage_named(keys: Sequence[str], place: Place) -> Iterator[None]:
    """Name the object where an engine cannot read one of some objects in a block.

    It is one that DuckDB cannot read alone, whichever engine has failed.

    Raises:
        StoreError: an object is damaged, or the store itself fails; other errors stay as they are.
    """
    try:
        yield
    except CollectordError as error:
        damaged = _unreadable(keys, place) if _may_be_damage(error) else None
        if damaged is None:
            raise
        key, told = damaged
        (reason, *_) = told.splitlines() or [""]
        raise StoreError(
            f"an object is damaged: {key}: {reason[:_REASON_CHARS]}",
            key=key,
            hint="`collectord fleet ledger --verify` names each that is not what was shipped",
        ) from error


def _may_be_damage(error: CollectordError) -> bool:
    """Whether an error is of the kind that damaged objects cause; a few statements do, too.

    DuckDB has classes of their own for what is wrong with a statement or its values.
    """
    import duckdb  # noqa: PLC0415  # what only questions to a fleet need

    cause = error.__cause__
    return (
        isinstance(error, RunFailed)
        or type(cause) is duckdb.Error  # what its reader of Parquet has no class for
        or isinstance(
            cause,
            (
                duckdb.InvalidInputException,
                duckdb.IOException,
                duckdb.InternalException,
                duckdb.SerializationException,
            ),
        )
    )


def _unreadable(keys: Sequence[str], place: Place) -> tuple[str, str] | None:
    """Return the first of some objects that cannot be read, and why; None if all can.

    Of many only the first are looked at.

    Raises:
        StoreError: the store does not give an object.
    """
    import duckdb  # noqa: PLC0415

    with ExitStack() as stack:
        connection = opened(place, stack)
        for key in keys[:_LOOKED_AT]:
            source = _read([key], place, "hive_partitioning = false")
            try:
                connection.execute(f"SELECT max(hash(o)) FROM {source} o")  # noqa: S608  # quoted
            except duckdb.Error as error:
                if place.store.head(key) is None:
                    raise NotStored(f"{place.store.url} has no {key}", key=key) from error
                return key, str(error)
    return None


def reading(rows: Iterable[T], keys: Sequence[str], place: Place) -> Iterator[T]:
    """Yield rows that an engine reads from objects. Raises StoreError for one that is damaged."""
    with damage_named(keys, place):
        yield from rows


class _Rows:
    """The rows of a result, which are read as they are asked for; it is an `Answered`."""

    def __init__(self, answer: Answered, keys: Sequence[str], place: Place) -> None:
        self.columns: tuple[str, ...] = answer.columns
        self.types: tuple[str, ...] = answer.types
        self._read = reading(answer.batches(), keys, place)

    def batches(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows, some at a time. Raises CollectordError."""
        return self._read


def text_of(question: Question, _place: Place) -> str:
    """Return the statement; its tables are views."""
    return question.sql


def ask(
    question: Question, place: Place, _shape: Sequence[tuple[str, str]], stack: ExitStack
) -> Answered:
    """Carry a question out."""
    database = _database(question, place, opened(place, stack), stack)
    with damage_named(question.keys, place):
        answer = database.ask(question.sql)
    return _Rows(answer, question.keys, place)


def write(question: Question, place: Place, path: str, stack: ExitStack) -> int:
    """Write the result of a question to a Parquet file, and return its rows.

    Raises:
        CollectordError: it cannot be carried out, or the file not written.
    """
    base = opened(place, stack, path)
    with damage_named(question.keys, place):
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
    with damage_named(keys, place), errors_of_duckdb():
        told = connection.execute(f"DESCRIBE FROM {source}").fetchall()
    return {row[0]: row[1] for row in told}


def values_of(column: str, objects: Objects, place: Place, chosen: Chosen) -> set[str]:
    """Return the values of a column in the rows of objects.

    Raises:
        StoreError: one of them is damaged.
    """
    with ExitStack() as stack:
        connection = opened(place, stack)
        with damage_named(objects.keys, place), errors_of_duckdb():
            _View(objects, place, chosen).make(connection, objects.name)
            statement = f'SELECT DISTINCT "{column}" FROM "{objects.name}"'  # noqa: S608  # of this program
            found = connection.execute(statement).fetchall()
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
