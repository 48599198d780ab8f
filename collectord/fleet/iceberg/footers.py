# SPDX-License-Identifier: Apache-2.0
"""The ends of Parquet files: they tell rows, columns, and the times of the first and last row."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.fleet.engines import duck
from collectord.fleet.iceberg.columns import UNSIGNED
from collectord.fleet.question import TIME, TIMESTAMP
from collectord.reader.embedded_db import errors_of_duckdb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from collectord.fleet.engines.place import Place

_SIGNED_MAX: Final = 2**63 - 1
_ROWS: Final = "SELECT file_name, num_rows FROM parquet_file_metadata($files)"
_SCHEMA: Final = (
    "SELECT file_name, name, duckdb_type, coalesce(num_children, 0) "
    "FROM parquet_schema($files) ORDER BY file_name, column_id"
)
_TIMES: Final = f"""
SELECT file_name,
    min(epoch_ns(stats_min_value::{TIMESTAMP})), max(epoch_ns(stats_max_value::{TIMESTAMP}))
FROM parquet_metadata($files)
WHERE path_in_schema = '{TIME}' AND type = 'INT64'
GROUP BY file_name
HAVING bool_and(stats_min_value IS NOT NULL AND stats_max_value IS NOT NULL)"""  # noqa: S608
_LARGEST: Final = """
SELECT file_name, path_in_schema,
    bool_and(stats_null_count = num_values OR TRY_CAST(stats_max_value AS HUGEINT) <= $most)
FROM parquet_metadata($files)
WHERE type = 'INT64'
GROUP BY ALL"""


class Footer(NamedTuple):
    """The end of a file.

    Attributes:
        columns: DuckDB's type of each, and whether all values fit into 64 bits with a sign.
        times: UTC, of the first and the last row; None if nothing tells them.
    """

    rows: int
    columns: Mapping[str, tuple[str, bool]]
    times: tuple[int, int] | None


def read_footers(keys: Sequence[str], place: Place) -> dict[str, Footer]:
    """Return the ends of some objects, by key. Raises CollectordError if one cannot be read."""
    names = {f"{duck.root_of(place)}{key}": key for key in keys}
    kinds: dict[str, dict[str, str]] = {name: {} for name in names}
    with ExitStack() as stack:
        connection = duck.opened(place, stack)

        def ask(sql: str, files: Iterable[str] = names, **values: int) -> list[Any]:
            with errors_of_duckdb():
                rows: list[Any] = connection.execute(sql, {"files": [*files], **values}).fetchall()
                return rows

        rows = dict(ask(_ROWS))
        for file, name, kind in _outer(ask(_SCHEMA)):
            kinds[file][name] = kind
        fits = {(file, name): is_less for file, name, is_less in ask(_LARGEST, most=_SIGNED_MAX)}
        timed = [file for file, told in kinds.items() if told.get(TIME) == TIMESTAMP]
        told_times = ask(_TIMES, timed) if timed else []
        times = {file: (first, last) for file, first, last in told_times}
    return {
        key: Footer(
            int(rows[file]),
            {
                name: (kind, kind != UNSIGNED or bool(fits.get((file, name))))
                for name, kind in kinds[file].items()
            },
            times.get(file),
        )
        for file, key in names.items()
    }


def _outer(rows: Sequence[tuple[str, str, str, int]]) -> Iterator[tuple[str, str, str]]:
    """Yield {file, name, type} of the columns of files, and not of what is in lists and maps."""
    of_file = ""
    inner = 0
    for file, name, kind, children in rows:
        if file != of_file:
            of_file, inner = file, 0  # the root of its tree
            continue
        if not inner:
            yield file, name, kind
            inner = children
        else:
            inner += children - 1
