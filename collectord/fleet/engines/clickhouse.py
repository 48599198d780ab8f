# SPDX-License-Identifier: Apache-2.0
"""Asks ClickHouse: a server by its HTTP interface, or chDB, its engine in this process.

Each table is a part of the statement's WITH, over `s3()` or `file()`: nothing is created there.
"""

from __future__ import annotations

import importlib
import json
import os
import urllib.error
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlencode, urlsplit

import sqlglot
from sqlglot import exp

from collectord.errors import CollectordError, UsageError, install_command
from collectord.fleet import dialect, sql_tree
from collectord.fleet.engines.conditions import backslashed, conditions
from collectord.fleet.engines.duck import RunFailed, reading, refusal
from collectord.fleet.per_host_statement import HOST
from collectord.fleet.question import DATE, EVENT, MAP, TIMESTAMP, Rows
from collectord.fleet.store_keys import event_prefix
from collectord.reader.event_tables import GAPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from collectord.fleet.engines.place import Place
    from collectord.fleet.question import Chosen, Objects, Question
    from collectord.reader.fixed_tables import FixedTable

    Run = Callable[[str], Iterable[str]]

_NAME: Final = "ClickHouse"
_FORMAT: Final = "JSONCompactEachRow"
_SETTINGS: Final[Mapping[str, int | str]] = {
    # Settings for what DuckDB does by itself.
    "aggregate_functions_null_for_empty": 1,
    "cast_keep_nullable": 1,
    "join_use_nulls": 1,
    "prefer_column_name_to_alias": 1,
    "session_timezone": "UTC",
    "input_format_parquet_allow_missing_columns": 1,
    "input_format_null_as_default": 1,
    "allow_experimental_correlated_subqueries": 1,
    # The parts of a key are read from it as text, whatever they look like.
    "use_hive_partitioning": 0,
    "date_time_output_format": "unix_timestamp",
    "output_format_json_quote_64bit_integers": 0,
}
_QUERY_BYTES: Final = 256 << 20
_TIMEOUT_S: Final = 3600
# More are chosen by their name, and not by the pattern of keys.
_HOSTS_IN_PATTERN: Final = 100
_TYPES: Final = {
    "BIGINT": "Int64",
    "BLOB": "String",
    "BOOLEAN": "Bool",
    "DATE": "Date",
    "DOUBLE": "Float64",
    "FLOAT": "Float32",
    "HUGEINT": "Int128",
    "INTEGER": "Int32",
    "SMALLINT": "Int16",
    TIMESTAMP: "DateTime64(9, 'UTC')",
    "TINYINT": "Int8",
    "UBIGINT": "UInt64",
    "UINTEGER": "UInt32",
    "USMALLINT": "UInt16",
    "UTINYINT": "UInt8",
    "VARCHAR": "String",
}


class _RefusedError(CollectordError):
    """ClickHouse does not carry a statement out."""


def ask(
    question: Question, place: Place, shape: Sequence[tuple[str, str]], stack: ExitStack
) -> Rows:
    """Carry a question out, by the server at the place's address, or here."""
    tree = question.tree.copy()
    hexed = _hexed(tree, shape)
    run = partial(_by_http, place.address, stack) if place.address else _here(stack)
    lines = _lines(run, question._replace(tree=tree), place)
    rows = (_row(line, shape, hexed) for line in lines)
    return Rows(shape, reading(rows, question.keys, place))


def _lines(run: Run, question: Question, place: Place) -> Iterator[str]:
    """Yield what a question gives.

    chDB's errors are text alone. So what was refused is asked again without rows: the statement is
    at fault if that is refused, too.

    Raises:
        RunFailed: ClickHouse carries the statement out, but not over these objects.
        CollectordError: it does not carry it out at all.
    """
    ending = f"\nSETTINGS {_settings()}\nFORMAT {_FORMAT}"
    try:
        yield from run(text_of(question, place) + ending)
    except _RefusedError as error:
        try:
            for _ in run(text_of(question, None) + ending):
                pass
        except _RefusedError:
            raise error from None
        raise RunFailed(str(error)) from error


def _hexed(tree: exp.Query, shape: Sequence[tuple[str, str]]) -> frozenset[int]:
    """Have bytes in the last columns come as digits, as JSON has none; return their numbers."""
    if not isinstance(tree, exp.Select) or tree.is_star:
        return frozenset()
    numbers = [number for number, (_, kind) in enumerate(shape) if kind == "BLOB"]
    for number in numbers:
        value = tree.expressions[number].unalias()
        value.replace(exp.func("hex", value.copy()))
    return frozenset(numbers)


def text_of(question: Question, place: Place | None) -> str:
    """Return the statement that the engine gets, without settings; over no objects for None."""
    sources = {one.name: _objects(one, place, question.chosen) for one in question.objects}
    sources |= {name: _rows(table) for name, table in question.rows.items()}
    gaps = question.rows.get(GAPS)
    tree = question.tree if gaps is None else _without_gaps(question.tree, gaps)
    if gaps is not None and GAPS not in sql_tree.tables_of(tree):
        del sources[GAPS]
    return sql_tree.text_for(tree, dialect.CLICKHOUSE, sources)


def _without_gaps(tree: exp.Query, gaps: FixedTable) -> exp.Query:
    """Return a statement whose EXISTS over the gaps of a host looks into arrays.

    ClickHouse has no subquery about the row where an expression is, and the gaps are known.
    """
    by_host: dict[str, list[tuple[int, int]]] = {}
    for host, since_ns, until_ns in gaps.rows:
        by_host.setdefault(str(host), []).append((int(str(since_ns)), int(str(until_ns))))

    def times(index: int, host: exp.Expr) -> str:
        pairs = ", ".join(
            f"{backslashed(name)}, [{', '.join(str(times[index]) for times in found)}]"
            for name, found in by_host.items()
        )
        of_host = f"map({pairs})[{host.sql(dialect.CLICKHOUSE)}]"
        return f"arrayMap(ns -> fromUnixTimestamp64Nano(ns, 'UTC'), {of_host})"

    def rewrite(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Exists) or node.this.args["from_"].this.name != GAPS:
            return node
        if not by_host:
            return exp.false()
        terms = [*node.this.args["where"].this.flatten()]
        same = next(term for term in terms if term.find(exp.EQ) and term.this.name == HOST)
        others = exp.and_(*(term for term in terms if term is not same))
        condition = others.transform(_of_lambda).sql(dialect.CLICKHOUSE)
        host = same.expression
        text = (
            f"arrayExists((gap_since, gap_until) -> ifNull({condition}, false), "
            f"{times(0, host)}, {times(1, host)})"
        )
        return sqlglot.parse_one(text, read=dialect.CLICKHOUSE)

    return sql_tree.transformed(tree, rewrite)


def _of_lambda(node: exp.Expr) -> exp.Expr:
    """Have a column of the gaps be an argument of a lambda."""
    if isinstance(node, exp.Column) and node.table == GAPS:
        return exp.column(f"gap_{node.name}")
    return node


def _objects(objects: Objects, place: Place | None, chosen: Chosen) -> str:
    """Return a SELECT of all rows of objects, of none without a place."""
    columns = ", ".join(_quoted(name) for name in objects.columns)
    structure = ", ".join(
        f"{_quoted(name)} {type_of(kind)}" for name, kind in objects.columns.items()
    )
    pattern, terms = _pattern(objects)
    table = (
        f"{_table(place, pattern)}'Parquet', {backslashed(structure)})"
        if place is not None
        else f"null({backslashed(f'{structure}, _path String, _file String')})"
    )
    terms += conditions(objects, chosen, moment=_moment, text=backslashed)
    of_keys = {
        HOST: "decodeURLComponent(extract(_path, '/host=([^/]+)/'))",
        DATE: "toDate(extract(_path, '/date=([^/]+)/'))",
        EVENT: backslashed(objects.event),
    }
    of_key = ", ".join(f"{of_keys[name]} AS {name}" for name in objects.of_keys)
    return (
        f"SELECT {columns}, {of_key} "  # noqa: S608  # quoted
        f"FROM {table}{' WHERE ' + ' AND '.join(terms) if terms else ''}"
    )


def _table(place: Place, pattern: str) -> str:
    """Return the beginning of a table function, before its format."""
    folder = place.folder
    if folder is not None:
        if place.address:
            raise UsageError(
                "a server of ClickHouse reads no folder of this host",
                hint="name a store that is s3://, or leave --engine-address out",
            )
        return f"file({backslashed(f'{folder}/{pattern}')}, "
    words = [backslashed(place.http_url(pattern))]
    keys = [os.environ.get(f"AWS_{name}", "") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")]
    if all(keys):
        token = os.environ.get("AWS_SESSION_TOKEN", "")
        words += map(backslashed, [*keys, *([token] if token else [])])
    return f"s3({', '.join(words)}, "


def _pattern(objects: Objects) -> tuple[str, list[str]]:
    """Return a pattern that all keys match, and the terms that leave other ones out."""
    dates = {_part(key, DATE) for key in objects.keys}
    hosts = {_part(key, HOST) for key in objects.keys}
    event = event_prefix(objects.event)
    few = len(hosts) <= _HOSTS_IN_PATTERN
    pattern = f"{event}/date={_braces(dates)}/host={_braces(hosts) if few else '*'}/*.parquet"
    terms = []
    if not few:
        names = ", ".join(map(backslashed, sorted(hosts)))
        terms.append(f"extract(_path, '/host=([^/]+)/') IN ({names})")
    if objects.left_out:
        is_few = len(objects.left_out) <= len(objects.keys)
        listed = objects.left_out if is_few else objects.keys
        names = ", ".join(backslashed(key.rpartition("/")[2]) for key in listed)
        terms.append(f"_file {'NOT ' if is_few else ''}IN ({names})")
    return pattern, terms


def _moment(time_ns: int) -> str:
    return f"fromUnixTimestamp64Nano({time_ns}, 'UTC')"


def _rows(table: FixedTable) -> str:
    """Return a SELECT of given rows."""
    structure = ", ".join(
        f"{_quoted(name)} {'Nullable(Int64)' if kind == TIMESTAMP else type_of(kind)}"
        for name, kind in table.columns.items()
    )
    shown = ", ".join(
        f"fromUnixTimestamp64Nano({_quoted(name)}, 'UTC') AS {_quoted(name)}"
        if kind == TIMESTAMP
        else _quoted(name)
        for name, kind in table.columns.items()
    )
    lines = "\n".join(map(json.dumps, map(list, table.rows)))
    return f"SELECT {shown} FROM format({_FORMAT}, {backslashed(structure)}, {backslashed(lines)})"  # noqa: S608  # quoted


def type_of(kind: str) -> str:
    """Return the type of ClickHouse for one of DuckDB."""
    if kind.endswith("[]"):
        return f"Array({type_of(kind.removesuffix('[]'))})"
    match = MAP.fullmatch(kind)
    if match is not None:
        return f"Map({_TYPES[match[1]]}, {type_of(match[2])})"
    return f"Nullable({_TYPES.get(kind, 'String')})"


def _here(stack: ExitStack) -> Run:
    """Open chDB, and return what has it carry out a statement."""
    try:
        session: Any = importlib.import_module("chdb.session")  # of this engine alone, and large
    except ImportError as error:
        raise CollectordError(
            "ClickHouse in this process is chDB, which is not installed",
            hint=f"{install_command('clickhouse')}, or name a server by --engine-address",
        ) from error
    opened = session.Session()
    stack.callback(opened.close)

    def run(statement: str) -> Iterable[str]:
        try:
            result = opened.query(statement, _FORMAT)
            text: str = result.bytes().decode(errors="replace")
        except Exception as error:  # chDB raises one class or another
            raise _RefusedError(refusal(_NAME, str(error))) from error
        return text.splitlines()

    return run


def _by_http(address: str, stack: ExitStack, statement: str) -> Iterator[str]:
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{address!r} is not an address of ClickHouse", hint="http://HOST:8123")
    port = f":{parts.port}" if parts.port else ""
    options = urlencode({"max_query_size": _QUERY_BYTES, "wait_end_of_query": 1})
    request = urllib.request.Request(  # noqa: S310  # the scheme is checked
        f"{parts.scheme}://{parts.hostname}{port}/?{options}",
        data=statement.encode(),
        headers={
            f"X-ClickHouse-{name}": unquote(value)
            for name, value in (("User", parts.username), ("Key", parts.password))
            if value is not None
        },
    )
    try:
        answer = stack.enter_context(urllib.request.urlopen(request, timeout=_TIMEOUT_S))  # noqa: S310
    except urllib.error.HTTPError as error:
        told = error.read().decode(errors="replace")
        raise _RefusedError(refusal(_NAME, told)) from error
    except OSError as error:
        raise CollectordError(
            f"ClickHouse at {parts.hostname}{port} does not answer: {error}"
        ) from (error)
    for line in answer:
        yield line.decode(errors="replace")


def _row(line: str, shape: Sequence[tuple[str, str]], hexed: frozenset[int]) -> list[Any]:
    """Return a row of a line of JSON."""
    cells: list[Any] = json.loads(line)
    for number, (cell, (_, kind)) in enumerate(zip(cells, shape, strict=True)):
        if cell is not None and kind == TIMESTAMP:
            cells[number] = _ns(str(cell))
        elif cell is not None and kind == "BLOB":
            cells[number] = bytes.fromhex(cell) if number in hexed else cell.encode()
    return cells


def _ns(text: str) -> int:
    """Return a time in ns, which comes in seconds with a fraction."""
    seconds, _, fraction = text.partition(".")
    return int(f"{seconds}{fraction:0<9}")


def _settings() -> str:
    return ", ".join(
        f"{name} = {backslashed(value) if isinstance(value, str) else value}"
        for name, value in _SETTINGS.items()
    )


def _part(key: str, name: str) -> str:
    """Return the value of a partition in a key, as the key has it."""
    return key.partition(f"{name}=")[2].partition("/")[0]


def _braces(values: set[str]) -> str:
    return next(iter(values)) if len(values) == 1 else f"{{{','.join(sorted(values))}}}"


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"
