# SPDX-License-Identifier: Apache-2.0
"""ClickHouse's engine and Spark have the rows that DuckDB has.

`make test-engines` runs this; no other lane does, as both are large and Spark needs Java.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import answer_file
from collectord.errors import CollectordError, UsageError
from collectord.fleet.compare import NO_LIMIT, Columns
from collectord.fleet.engines import ENGINES, spark
from collectord.fleet.engines.place import Place
from collectord.fleet.groups import groups_of
from collectord.fleet.questions import AskedAnswer, Asking, Needs
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.store import Store
from collectord.programs.parameter import values_of
from collectord.reader.event_file import Window
from tests.support import object_stores, shipping
from tests.support.fleets import (
    BEGIN_NS,
    COMPLETE,
    DAY,
    ISSUE,
    SCHED,
    SECOND,
    Host,
    Shipped,
    requests,
    switches,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectord.fleet.question import Question
    from tests.support.object_stores import S3Server

    Rows = list[tuple[Any, ...]]

_CLUSTER: Final = "local-cluster[2,1,1024]"
_MINUTE: Final = 60 * SECOND
_ALL: Final = Wanted(Window())
_STATEMENTS: Final = (
    "SELECT host, date, event, count(*) FROM sched_switch GROUP BY ALL",
    (
        "SELECT kernel, count(*), min(time), max(time) FROM sched_switch JOIN hosts USING (host) "
        "GROUP BY kernel"
    ),
    "SELECT host, sum(produced) AS n, max(until) AS last FROM ledger GROUP BY host",
    "SELECT comm, text, blob, big, flag FROM odd ORDER BY comm",
    "SELECT event, count(*) FROM samples WHERE event = 'cycles' GROUP BY event",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store in a folder with two days of three hosts, which another host's gap parts."""
    store = Store.open(str(tmp_path_factory.mktemp("fleet") / "store"), make=True)
    _fill(store)
    return store


def _fill(store: Store) -> None:
    with Shipped(store) as shipped:
        for number, (name, kernel) in enumerate(
            (("a b", "6.12.0"), ("c", "6.1.0"), ("d", "6.1.0"))
        ):
            host = Host(name, kernel, clock_off_ns=number * 1000)
            for day in range(2):
                shipped.segment(host, _events(number + 3 * day), BEGIN_NS + day * DAY, _MINUTE)
                host.run_number += number  # the first one has no gap
            events = {f"sched:{SCHED}": switches(1, 5)}
            shipped.segment(host, events, BEGIN_NS + DAY, _MINUTE, is_committed=False)


def _events(number: int) -> dict[str, str]:
    odd = (
        "SELECT i AS n, 'c' || i AS comm, CASE WHEN i > 0 THEN 'it''s \\ \"x\"' END AS text, "
        "'\\x00\\xFFa'::BLOB AS blob, (18446744073709551615 - i)::UBIGINT AS big, i > 0 AS flag, "
        "i AS after FROM range(2) r(i)"
    )
    event = "CASE WHEN i < 3 THEN 'cycles' ELSE 'x:y' END AS event"
    samples = f"SELECT i AS n, {event}, i AS after FROM range(5) r(i)"  # noqa: S608
    return {
        f"sched:{SCHED}": switches(number, 300),
        f"block:{ISSUE}": requests(number, 40, step=1),
        f"block:{COMPLETE}": requests(number, 40, step=2),
        "some:odd": odd,
        "samples": samples,
    }


@pytest.fixture(scope="module", autouse=True)
def _one_session() -> Iterator[None]:
    """Have all tests share a session of Spark: its start takes most of the time."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        made = spark._session(_CLUSTER, stack)
        patch.setattr(spark, "_session", lambda _address, _stack: made)
        yield


def _asking(store: Store, engine: str, wanted: Wanted = _ALL) -> Asking:
    return Asking(Selection(store, wanted), Place(store), ENGINES[engine])


def _asked(asking: Asking, engine: str, question: Question) -> Rows:
    shape = asking.shape(question)
    with ExitStack() as stack:
        rows = ENGINES[engine].ask(question, asking.place, shape, stack)
        return sorted((row for batch in rows.batches() for row in batch), key=str)


def _statement(store: Store, engine: str, sql: str, wanted: Wanted = _ALL) -> Rows:
    asking = _asking(store, engine, wanted)
    return _asked(asking, engine, asking.of_statement(sql))


def _answer(store: Store, engine: str, name: str) -> Rows:
    one = answer_file.load(name)
    asking = _asking(store, engine)
    needs = Needs(one.head.needs, one.head.optional, one.head.columns)
    values: dict[str, int | str] = {**values_of(name, one.head.parameter, {})}
    if "limit" in values:
        values["limit"] = 10_000
    return _asked(asking, engine, asking.of_answer(one.text, needs, values, ("host", "kernel")))


@pytest.mark.parametrize("engine", ["clickhouse", "spark"])
@pytest.mark.parametrize("sql", _STATEMENTS)
def test_a_statement_has_the_rows_of_duckdb(folder: Store, engine: str, sql: str) -> None:
    """Values of each type come as they are."""
    expected = _statement(folder, "duckdb", sql)
    assert expected
    assert _statement(folder, engine, sql) == expected


@pytest.mark.parametrize("engine", ["clickhouse", "spark"])
def test_a_segment_that_a_host_has_shipped(engine: str, tmp_path: Path) -> None:
    """Engines read the files that the core has laid out."""
    host = shipping.Host(tmp_path / "host")
    host.record(2)
    store = Store.open(str(tmp_path / "store"), make=True)
    assert shipping.ship(host, store.url).shipped == 2
    sql = (
        "SELECT comm, cpu, session, count(*), count(pid), sum(tid), min(mono_ns), max(mono_ns) "
        "FROM sys_enter_getppid GROUP BY comm, cpu, session"
    )
    expected = _statement(store, "duckdb", sql)
    assert sum(row[3] for row in expected) == 2 * shipping.SAMPLES
    assert _statement(store, engine, sql) == expected


@pytest.mark.parametrize("engine", ["clickhouse", "spark"])
@pytest.mark.parametrize("name", ["slow-io", "io-latency", "cpu-share", "off-cpu", "cpu-timeline"])
def test_an_answer_has_the_rows_of_duckdb(folder: Store, engine: str, name: str) -> None:
    """Gaps, windows, pairs and rounded numbers come out alike."""
    expected = _answer(folder, "duckdb", name)
    assert expected
    assert _answer(folder, engine, name) == expected


def _comparison(store: Store, engine: str, name: str) -> Rows:
    """Return the rows of an answer's difference between two hosts and one of other kernels."""
    wanted = Wanted(Window(), labels={"kernel": "6.1.*"})
    wanted = wanted._replace(also=Wanted(Window(), labels={"kernel": "6.12.*"}))
    one = answer_file.load(name)
    compare = one.head.compare
    assert compare is not None
    values: dict[str, int | str] = {**values_of(name, one.head.parameter, {})}
    if "limit" in values:
        values["limit"] = NO_LIMIT
    needs = Needs(one.head.needs, one.head.optional, one.head.columns)
    asking = _asking(store, engine, wanted)
    groups = groups_of(Selection(store, wanted), "6.1", "6.12")
    columns = Columns.of(compare.keys, compare.measures)
    asked = AskedAnswer(one.text, needs, values)
    made = asking.of_comparison(asked, columns, groups, None)
    return _asked(asking, engine, made.question)


@pytest.mark.parametrize("engine", ["clickhouse", "spark"])
@pytest.mark.parametrize("name", ["slow-io", "io-latency", "cpu-share", "off-cpu"])
def test_a_difference_of_groups_has_the_rows_of_duckdb(
    folder: Store, engine: str, name: str
) -> None:
    """Sums per host, maxima, means, differences and ratios come out alike."""
    expected = _comparison(folder, "duckdb", name)
    assert expected
    assert _comparison(folder, engine, name) == expected


@pytest.mark.parametrize("engine", ["clickhouse", "spark"])
def test_hosts_and_times_choose(folder: Store, engine: str) -> None:
    """Only rows of what is asked for are there."""
    sql = "SELECT host, count(*) FROM sched_switch GROUP BY host"
    wanted = Wanted(Window(BEGIN_NS, BEGIN_NS + 100_000_000), "[ac]*")
    found = _statement(folder, engine, sql, wanted)
    assert found == _statement(folder, "duckdb", sql, wanted) == [("a b", 100), ("c", 100)]


@pytest.mark.parametrize("engine", ["clickhouse", "spark"])
def test_a_segment_that_lasts_is_found(tmp_path: Path, engine: str) -> None:
    """Its object has a day of days before the time, and no other of that day is named."""
    store = Store.open(str(tmp_path / "store"), make=True)
    rows = f"SELECT i AS n, i * {DAY} AS after FROM range(6) r(i)"  # noqa: S608
    with Shipped(store) as shipped:
        shipped.segment(Host("long"), {"x": rows}, BEGIN_NS, 6 * DAY)
        short = Host("short")
        for day in range(6):
            events = {"x": "SELECT 0 AS n, 0 AS after"}
            shipped.segment(short, events, BEGIN_NS + day * DAY, _MINUTE)
    wanted = Wanted(Window(BEGIN_NS + 4 * DAY))
    sql = "SELECT host, count(*) AS n FROM x GROUP BY host"
    assert _statement(store, engine, sql, wanted) == [("long", 2), ("short", 2)]
    question = _asking(store, engine, wanted).of_statement(sql)
    assert len(question.objects[0].keys) == 4


@pytest.mark.parametrize("engine", ["clickhouse", "spark"])
def test_what_an_engine_refuses_is_told(folder: Store, engine: str) -> None:
    """DuckDB has a function that the engine lacks: its words are in the error."""
    with pytest.raises(CollectordError, match=r"refuses the statement|has nothing for"):
        _statement(folder, engine, "SELECT damerau_levenshtein(next_comm, 'x') FROM sched_switch")


def test_clickhouse_reads_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own reader, with the credentials of the environment."""
    for server in object_stores.serve():
        _with_environment(server, monkeypatch)
        store = Store.open(server.new_bucket(), server.options())
        _fill(store)
        for sql in _STATEMENTS[:2]:
            assert _statement(store, "clickhouse", sql) == _statement(store, "duckdb", sql)


def _with_environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.options().items():
        monkeypatch.setenv(name.upper(), value)
    assert os.environ["AWS_ENDPOINT"]


def test_a_server_of_clickhouse_reads_no_folder(folder: Store) -> None:
    """It would be a folder of its own host."""
    asking = _asking(folder, "clickhouse")
    question = asking.of_statement(_STATEMENTS[0])
    with pytest.raises(UsageError, match="reads no folder of this host"):
        ENGINES["clickhouse"].text_of(question, Place(folder, "http://127.0.0.1:1"))
