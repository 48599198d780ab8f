# SPDX-License-Identifier: Apache-2.0
"""Asks Spark: a cluster at its master's address, or one in processes of this host.

Its workers read the objects: all of them must have the same folder, or its connector for S3.
Spark's times have µs, so the time of a record is a number of ns there.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from collectord.errors import CollectordError, install_command
from collectord.fleet import dialect, sql_tree
from collectord.fleet.engines.conditions import backslashed, conditions
from collectord.fleet.engines.duck import RunFailed, reading, refusal
from collectord.fleet.per_host_statement import HOST
from collectord.fleet.question import DATE, EVENT, MAP, TIMESTAMP, Rows
from collectord.fleet.store_keys import EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from collectord.fleet.engines.place import Place
    from collectord.fleet.question import Chosen, Objects, Question
    from collectord.reader.fixed_tables import FixedTable

LOCAL: Final = "local[*]"
_SETTINGS: Final = {
    "spark.app.name": "collectord fleet",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # The same as in DuckDB: a number that does not fit is an error, and names differ by their
    # letters.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    # With it, a NOT EXISTS over a UNION has "an invalid plan" in 4.3.
    "spark.sql.optimizer.excludedRules": (
        "org.apache.spark.sql.catalyst.optimizer.RemoveRedundantAliases"
    ),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# The path is that of an address: what the key of an object has as %XX is %25XX there.
_OF_PATH: Final = (
    f"url_decode(url_decode(regexp_extract(_metadata.file_path, '/host=([^/]+)/', 1))) AS {HOST}",
    f"CAST(regexp_extract(_metadata.file_path, '/date=([^/]+)/', 1) AS DATE) AS {DATE}",
)
# Compressed bytes of objects for each part into which rows are sorted.
_PART_BYTES: Final = 8 << 20
_PARTS_MIN: Final = 4
_PARTS_MAX: Final = 4000
_LIBRARIES: Final = ("pyspark", "py4j")
_STDERR: Final = 2
# By SQL's standard the state of an error begins with these: a value does not fit, or the
# statement.
_OF_STATEMENT: Final = ("22", "42")
_TYPES: Final = {
    "BIGINT": "BIGINT",
    "BLOB": "BINARY",
    "BOOLEAN": "BOOLEAN",
    "DATE": "DATE",
    "DOUBLE": "DOUBLE",
    "FLOAT": "FLOAT",
    "INTEGER": "INT",
    "SMALLINT": "SMALLINT",
    TIMESTAMP: "BIGINT",
    "TINYINT": "TINYINT",
    "UBIGINT": "DECIMAL(20,0)",
    "UINTEGER": "BIGINT",
    "USMALLINT": "INT",
    "UTINYINT": "SMALLINT",
    "VARCHAR": "STRING",
}


def text_of(question: Question, _place: Place) -> str:
    """Return the statement; its tables are views."""
    return sql_tree.text_for(question.tree, dialect.SPARK)


def ask(
    question: Question, place: Place, shape: Sequence[tuple[str, str]], stack: ExitStack
) -> Rows:
    """Carry a question out by a cluster, whose connection ends with the stack."""
    statement = text_of(question, place)
    session = _session(place.address or LOCAL, stack)
    size_bytes = sum(objects.bytes for objects in question.objects)
    parts = min(max(size_bytes // _PART_BYTES, _PARTS_MIN), _PARTS_MAX)
    with _errors():
        session.conf.set("spark.sql.shuffle.partitions", str(parts))
        for objects in question.objects:
            _view(session, objects, place, question.chosen)
        for name, table in question.rows.items():
            _given(session, name, table)
        found = session.sql(statement)
    return Rows(shape, reading(_rows(found), question.keys, place))


def _session(address: str, stack: ExitStack) -> Any:  # noqa: ANN401  # of Spark
    try:
        spark: Any = importlib.import_module("pyspark.sql")  # of this engine alone, and large
    except ImportError as error:
        raise CollectordError(
            "Spark needs PySpark, which is not installed",
            hint=f"{install_command('spark')}, and a Java run-time of version 17",
        ) from error
    # Workers that are started here have this interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = spark.SparkSession.builder.master(address)
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    with _errors(), _quiet():
        session = builder.getOrCreate()
    stack.callback(session.stop)
    return session


@contextmanager
def _quiet() -> Iterator[None]:
    """Have the Java that a block starts write nowhere: it tells of its start, and of each retry.

    What it refuses is in its answers.
    """
    kept = os.dup(_STDERR)
    null = os.open(os.devnull, os.O_WRONLY)
    sys.stderr.flush()
    os.dup2(null, _STDERR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
        os.close(null)


def _view(session: Any, objects: Objects, place: Place, chosen: Chosen) -> None:  # noqa: ANN401
    """Make a view of objects by the name of their table."""
    folder = place.folder
    root = f"file://{folder}" if folder is not None else place.store.url.replace("s3:", "s3a:", 1)
    root = root.rstrip("/")
    columns = {name: type_of(kind) for name, kind in objects.columns.items()}
    paths = [f"{root}/{key}" for key in objects.keys]
    reader = session.read
    if EVENT in columns:  # its own, which a partition of the name would hide
        frame = reader.schema(_schema(columns)).parquet(*paths).selectExpr("*", *_OF_PATH)
    else:
        columns |= dict.fromkeys((EVENT, DATE, HOST), "STRING")
        frame = (
            reader.schema(_schema(columns))
            .option("basePath", f"{root}/{EVENTS}")
            .parquet(*paths)
            .selectExpr(f"* EXCEPT ({DATE})", f"CAST({DATE} AS DATE) AS {DATE}")
        )
    for term in conditions(objects, chosen, moment=str, text=backslashed):
        frame = frame.where(term)
    frame.createOrReplaceTempView(_quoted(objects.name))


def _schema(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns.items())


def _given(session: Any, name: str, table: FixedTable) -> None:  # noqa: ANN401  # of Spark
    """Make a view of given rows; as a text they need no worker of Python."""
    columns = {column: type_of(kind) for column, kind in table.columns.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in table.rows]
    text = backslashed(json.dumps(rows))
    fields = ", ".join(f"{_quoted(column)}: {kind}" for column, kind in columns.items())
    frame = session.sql(f"SELECT inline(from_json({text}, 'ARRAY<STRUCT<{fields}>>'))")
    frame.createOrReplaceTempView(_quoted(name))


def type_of(kind: str) -> str:
    """Return the type of Spark for one of DuckDB."""
    if kind.endswith("[]"):
        return f"ARRAY<{type_of(kind.removesuffix('[]'))}>"
    match = MAP.fullmatch(kind)
    if match is not None:
        return f"MAP<{type_of(match[1])}, {type_of(match[2])}>"
    return _TYPES.get(kind, "STRING")


def _rows(found: Any) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401  # of Spark
    with _errors():
        yield from map(tuple, found.toLocalIterator())


@contextmanager
def _errors() -> Iterator[None]:
    """Turn errors of Spark in a block into ours."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(_LIBRARIES):
            raise
        # Py4J's, which an error of a worker comes as, has no state.
        state = error.getSqlState() if hasattr(error, "getSqlState") else None
        kind = CollectordError if (state or "").startswith(_OF_STATEMENT) else RunFailed
        raise kind(refusal("Spark", str(error))) from error


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
