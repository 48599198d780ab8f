# SPDX-License-Identifier: Apache-2.0
"""Readers that are not ours have, by Iceberg tables, the rows that `fleet query` has.

`make test-engines` runs this: pyiceberg reads rows by pyarrow, and chDB has `icebergLocal()`.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import chdb
import pytest
from pyiceberg.table import StaticTable

from collectord.fleet.engines import ENGINES, duck
from collectord.fleet.engines.place import Place
from collectord.fleet.iceberg.registration import Registration
from collectord.fleet.questions import Asking
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.store import Store
from collectord.reader.event_file import Window
from tests.support.fleets import BEGIN_NS, DAY, MINUTE, SCHED, Host, Shipped, switches

if TYPE_CHECKING:
    Rows = list[tuple[Any, ...]]

_ALL: Final = Wanted(Window())
_ODD: Final = (
    "SELECT i AS n, 'c' || i AS comm, CASE WHEN i > 0 THEN 'it''s \\ \"x\"' END AS text, "
    "4000000000::UINTEGER AS middle, 200::UTINYINT AS small, i > 0 AS flag, "
    "18446744073709551615::UBIGINT AS big, [i] AS list, {more} i AS after FROM range(3) r(i)"
)
# More columns, which differ between the days.
_MORE: Final = ("1::INTEGER AS wider,", "2::BIGINT AS wider, 'x' AS new,")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store in a folder, of two hosts and two days, with its tables.

    The second day has a column more, and another column is wider; each host has a segment without
    a commit.
    """
    store = Store.open(str(tmp_path_factory.mktemp("iceberg") / "store"), make=True)
    with Shipped(store) as shipped:
        for number, name in enumerate(("a b", "c")):
            host = Host(name)
            for day, more in enumerate(
                ("1::INTEGER AS wider,", "2::BIGINT AS wider, 'x' AS new,")
            ):
                events = {
                    f"sched:{SCHED}": switches(number, 300),
                    "some:odd": _ODD.format(more=more),
                }
                shipped.segment(host, events, BEGIN_NS + day * DAY, MINUTE)
            events = {f"sched:{SCHED}": switches(number, 7)}
            shipped.segment(host, events, BEGIN_NS + DAY, MINUTE, is_committed=False)
    registration = Registration(Selection(store, _ALL), Place(store), f"file://{store.url}")
    for event in registration.events():
        registration.register(event)
    return store


def _asked(store: Store, sql: str) -> Rows:
    """Return the rows of `fleet query`, with times as ns."""
    asking = Asking(Selection(store, _ALL), Place(store), ENGINES["duckdb"])
    question = asking.of_statement(sql)
    with ExitStack() as stack:
        rows = duck.ask(question, asking.place, asking.shape(question), stack)
        return sorted((row for batch in rows.batches() for row in batch), key=str)


@pytest.mark.parametrize("event", [SCHED, "odd"])
def test_pyiceberg_has_the_same_rows(folder: Store, event: str) -> None:
    """Each value, those of columns that a file lacks, and of keys; ns too."""
    table = StaticTable.from_metadata(f"file://{folder.url}/iceberg/event={event}")
    found = table.scan().to_arrow()
    names = [name for name in found.column_names if name != "time"]
    columns = [found[name].to_pylist() for name in names]
    columns[names.index("date")] = [str(day) for day in found["date"].to_pylist()]
    times = found["time"].cast("int64").to_pylist()
    listed = ", ".join(f'"{name}"' for name in names)
    expected = _asked(folder, f"SELECT epoch_ns(time), {listed} FROM {event}")  # noqa: S608
    assert expected
    assert sorted(zip(times, *columns, strict=True), key=str) == expected


@pytest.mark.parametrize("event", [SCHED, "odd"])
def test_clickhouse_has_the_same_rows(
    folder: Store, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own reader of Iceberg, which finds the newest version by itself."""
    monkeypatch.chdir(folder.url)  # it reads no table elsewhere
    table = f"icebergLocal('{folder.url}/iceberg/event={event}')"
    described = chdb.query(f"DESCRIBE TABLE {table}", "JSONCompactEachRow")
    names = [json.loads(line)[0] for line in str(described).splitlines()]
    chosen = [f'"{name}"' for name in names if name not in {"time", "date"}]
    statement = (
        f"SELECT toUnixTimestamp64Nano(assumeNotNull(time)), toString(date), {', '.join(chosen)} "  # noqa: S608
        f"FROM {table} SETTINGS output_format_json_quote_64bit_integers = 0"
    )
    lines = str(chdb.query(statement, "JSONCompactEachRow")).splitlines()
    found = map(tuple, map(json.loads, lines))
    expected = _asked(
        folder,
        f"SELECT epoch_ns(time), date::VARCHAR, {', '.join(chosen)} FROM {event}",  # noqa: S608
    )
    assert expected
    assert sorted(found, key=str) == expected
