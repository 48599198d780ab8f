# SPDX-License-Identifier: Apache-2.0
"""The ends of Parquet files: they tell rows, columns, and the times of the first and last row."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.fleet.engines import duck
from collectord.fleet.iceberg.columns import UNSIGNED
from collectord.fleet.question import TIME, TIMESTAMP
from collectord.reader.embedded_db import errors_of_duckdb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from collectord.fleet.engines.place import Place

_SIGNED_MAX: Final = 2**63 - 1
# One reading of each file. Of chunks those that are of 64 bits: others fit into what they become.
_ENDS: Final = f"""
SELECT
    parquet_file_metadata[1].file_name,
    parquet_file_metadata[1].num_rows,
    [(one.name, one.duckdb_type, coalesce(one.num_children, 0)) FOR one IN parquet_schema],
    [
        (
            one.path_in_schema,
            epoch_ns(TRY_CAST(one.stats_min_value AS {TIMESTAMP})),
            epoch_ns(TRY_CAST(one.stats_max_value AS {TIMESTAMP})),
            TRY_CAST(one.stats_max_value AS UBIGINT),
            one.stats_null_count = one.num_values
        )
        FOR one IN parquet_metadata IF one.type = 'INT64'
    ]
FROM parquet_full_metadata($files)"""  # noqa: S608


# Column, first and last value as times, largest value, whether all are null.
_Chunk = tuple[str, int | None, int | None, int | None, bool | None]


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
    with ExitStack() as stack:
        connection = duck.opened(place, stack)
        with errors_of_duckdb():
            found = connection.execute(_ENDS, {"files": [*names]}).fetchall()
    return {names[file]: _footer(rows, tree, chunks) for file, rows, tree, chunks in found}


def _footer(rows: int, tree: Sequence[tuple[str, str, int]], chunks: Sequence[_Chunk]) -> Footer:
    columns = dict(_outer(tree))
    # Or nothing tells that they are not.
    large = {name for name, _, _, most, empty in chunks if not empty and not _is_less(most)}
    times = [chunk[1:3] for chunk in chunks if chunk[0] == TIME]
    known = [(first, last) for first, last in times if first is not None and last is not None]
    is_known = columns.get(TIME) == TIMESTAMP and times and len(known) == len(times)
    return Footer(
        rows,
        {name: (kind, kind != UNSIGNED or name not in large) for name, kind in columns.items()},
        (min(first for first, _ in known), max(last for _, last in known)) if is_known else None,
    )


def _is_less(most: int | None) -> bool:
    return most is not None and most <= _SIGNED_MAX


def _outer(tree: Sequence[tuple[str, str, int]]) -> Iterator[tuple[str, str]]:
    """Yield {name, type} of the columns of a file, and not of what is in lists and maps."""
    inner = 0
    for name, kind, children in tree[1:]:  # without the root
        if not inner:
            yield name, kind
            inner = children
        else:
            inner += children - 1
