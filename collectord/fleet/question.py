# SPDX-License-Identifier: Apache-2.0
"""A statement over the fleet with the tables that it names, and the rows of an answer."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.fleet.per_host_statement import HOST
from collectord.fleet.store_keys import CommitKey, parse_event_key
from collectord.text.units import NS_DIGITS, NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from sqlglot import exp

    from collectord.reader.event_file import Window
    from collectord.reader.fixed_tables import FixedTable

DATE: Final = "date"
EVENT: Final = "event"
SESSION: Final = "session"
TIME: Final = "time"
TIMESTAMP: Final = "TIMESTAMP_NS"
# The name of a map, as DuckDB writes it: types of keys and values.
MAP: Final = re.compile(r"MAP\((\w+), (\w+)\)")
_ROWS: Final = 2048
_INTEGER: Final = re.compile(r"U?(?:TINY|SMALL|BIG)?INT(?:EGER)?")
# DuckDB's own answers have them as text.
_WIDE: Final = re.compile(r"U?HUGEINT|BIGNUM|DECIMAL.*")


class Objects(NamedTuple):
    """The objects of one event that are asked: a table of the statement.

    Attributes:
        name: of the table.
        columns: DuckDB's types by name, of what is in the objects.
        keys: of the objects, each of which is committed.
        bytes: of the objects.
        left_out: keys of objects of the same hosts and days that are not asked.
        of_events: only rows whose column `event` has one of these; none: all.
    """

    name: str
    columns: Mapping[str, str]
    keys: Sequence[str]
    bytes: int = 0
    left_out: Sequence[str] = ()
    of_events: Sequence[str] = ()

    @property
    def event(self) -> str:
        """The name of the event in the keys."""
        return next(filter(None, map(parse_event_key, self.keys))).event

    @property
    def hosts(self) -> set[str]:
        """The hosts that have put them."""
        return {parts.host for parts in filter(None, map(parse_event_key, self.keys))}

    def of(self, hosts: Collection[str], segments: Collection[CommitKey] | None = None) -> Objects:
        """Return the objects of some hosts, and of some of their segments only (None: of all)."""
        parsed = ((key, parse_event_key(key)) for key in self.keys)
        of_hosts = {
            key: CommitKey(parts.date, parts.host, parts.source)
            for key, parts in parsed
            if parts is not None and parts.host in hosts
        }
        keys = [key for key, one in of_hosts.items() if segments is None or one in segments]
        others = sorted(of_hosts.keys() - {*keys})
        return self._replace(keys=keys, left_out=[*self.left_out, *others])

    @property
    def of_keys(self) -> dict[str, str]:
        """DuckDB's types of the columns that the key of an object tells, by name.

        Tables such as `samples` have a column `event` of their own, which comes first.
        """
        told = {EVENT: "VARCHAR", DATE: "DATE", HOST: "VARCHAR"}
        return {name: kind for name, kind in told.items() if name not in self.columns}


class Chosen(NamedTuple):
    """The rows of the objects that are asked for: of a time, UTC, and of a session."""

    window: Window
    session: str | None = None


class Question(NamedTuple):
    """A question to an engine.

    Attributes:
        tree: the statement.
        sql: the same as text of DuckDB.
        objects: the tables of events that it names.
        rows: the other tables that it names, by name.
        chosen: the rows of the events.
    """

    tree: exp.Query
    sql: str
    objects: Sequence[Objects]
    rows: Mapping[str, FixedTable]
    chosen: Chosen

    @property
    def keys(self) -> list[str]:
        """The keys of all objects that are asked."""
        return [key for one in self.objects for key in one.keys]


class Rows:
    """The rows of a result of any engine, in the form that DuckDB's have.

    Attributes:
        columns: names of the columns.
        types: of the columns, as DuckDB names them.

    Args:
        shape: name and type of the columns.
        rows: as the engine has them.
    """

    def __init__(self, shape: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]]) -> None:
        self.columns: tuple[str, ...] = tuple(name for name, _ in shape)
        self.types: tuple[str, ...] = tuple(kind for _, kind in shape)
        self._rows = rows

    def batches(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows, some at a time. Raises CollectordError."""
        forms = [*map(_form, self.types)]
        batch: list[tuple[Any, ...]] = []
        for row in self._rows:
            cells = zip(forms, row, strict=True)
            batch.append(tuple(None if value is None else form(value) for form, value in cells))
            if len(batch) == _ROWS:
                yield batch
                batch = []
        if batch:
            yield batch


def time_as_text(utc_ns: int | str) -> str:
    """Return a time as DuckDB writes it."""
    seconds, rest_ns = divmod(int(utc_ns), NS_PER_SECOND)
    text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    return f"{text}.{rest_ns:0{NS_DIGITS}}".rstrip("0") if rest_ns else text


def _form(kind: str) -> Callable[[Any], Any]:
    """Return what makes a value of an engine one of a column of DuckDB."""
    if kind == TIMESTAMP:
        return time_as_text
    if _INTEGER.fullmatch(kind):
        return int
    if _WIDE.fullmatch(kind):
        return str
    return _FORMS.get(kind, lambda value: value)


def _blob_text(data: bytes | bytearray) -> str:
    """Return bytes as DuckDB writes them."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in "\\'\"" else f"\\x{byte:02X}"  # noqa: PLR2004
        for byte in data
    )


_FORMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "BLOB": _blob_text,
    "BOOLEAN": bool,
    "DATE": str,
    "DOUBLE": float,
    "FLOAT": float,
}
