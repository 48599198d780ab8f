# SPDX-License-Identifier: Apache-2.0
"""ClickHouse's engine and Spark have the rows that DuckDB has.

`make test-engines` runs this; no other lane does, as both are large and Spark needs Java.
"""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import answer_file
from collectord.errors import CollectordError, StoreError, UsageError
from collectord.fleet.comparison import NO_LIMIT, Columns
from collectord.fleet.engines import ENGINES, spark
from collectord.fleet.engines.place import Place
from collectord.fleet.groups import groups_of
from collectord.fleet.questions import AskedAnswer, Asking
from collectord.fleet.required_events import RequiredEvents
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.store import Store
from collectord.programs.parameter import values_of
from collectord.reader.event_file import Window
from tests.support import object_stores, shipping
from tests.support.answer_records import SAMPLED, of_all_answers
from tests.support.fleets import BEGIN_NS, DAY, MINUTE, SCHED, Host, Shipped, switches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from collectord.fleet.question import Question
    from tests.support.object_stores import S3Server

    Rows = list[tuple[Any, ...]]

_CLUSTER: Final = "local-cluster[2,1,1024]"
_ALL: Final = Wanted(Window())
_STATEMENTS: Final = (
    "SELECT host, date, event, count(*) FROM sched_switch GROUP BY ALL",
    (
        "SELECT kernel, count(*), min(time), max(time) FROM sched_switch JOIN hosts USING (host) "
        "GROUP BY kernel"
    ),
    "SELECT host, sum(produced) AS n, max(until) AS last FROM ledger GROUP BY host",
    "SELECT comm, text, blob, big, flag FROM odd ORDER BY comm",
    "SELECT host, event, count(*) FROM samples WHERE event = 'cycles' GROUP BY host, event",
    # A name by which rows are grouped is rounded by the engine, half of these at a half.
    "SELECT host, round(ns / 1e6, 3) AS ms, count(*) AS n FROM half GROUP BY host, ms",
    (
        "SELECT list_transform(range(n, 8, 2), lambda i: i)[4] AS last, "
        "['a', 'b'][n + 2] AS beyond, range(9, n, -4)[2] AS down, "
        "generate_series(n, 7, 3)[3] AS with_end "
        "FROM (SELECT flag::INTEGER AS n FROM odd)"
    ),
)

# Answers whose last order leaves no two rows of this store alike; in others some are.
_ORDERED: Final = frozenset({"cpu-share", "off-cpu", "off-cpu-stacks", "oom-kills", "processes"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store in a folder with two days of three hosts, which another host's gap parts."""
    store = Store.open(str(tmp_path_factory.mktemp("fleet") / "store"), make=True)
    _fill(store, _events)
    return store


def _fill(store: Store, events_of: Callable[[int], Mapping[str, str]]) -> None:
    with Shipped(store) as shipped:
        for number, (name, kernel) in enumerate(
            (("a b", "6.12.0"), ("c", "6.1.0"), ("d", "6.1.0"))
        ):
            host = Host(name, kernel, clock_off_ns=number * 1000)
            for day in range(2):
                events = events_of(number + 3 * day)
                begins_ns = BEGIN_NS + day * DAY
                shipped.segment(host, events, begins_ns, MINUTE, sampled=SAMPLED)
                host.run_number += number  # the first one has no gap
            events = {f"sched:{SCHED}": switches(1, 5)}
            shipped.segment(host, events, BEGIN_NS + DAY, MINUTE, is_committed=False)


def _switches(number: int) -> Mapping[str, str]:
    return {f"sched:{SCHED}": switches(number, 300)}


def _events(number: int) -> Mapping[str, str]:
    odd = (
        "SELECT i AS n, 'c' || i AS comm, CASE WHEN i > 0 THEN 'it''s \\ \"x\"' END AS text, "
        "'\\x00\\xFFa'::BLOB AS blob, (18446744073709551615 - i)::UBIGINT AS big, i > 0 AS flag, "
        "i AS after FROM range(2) r(i)"
    )
    half = "SELECT i AS n, (i - 5000) * 500 AS ns, i AS after FROM range(100000) r(i)"
    return {**of_all_answers(number), "some:odd": odd, "some:half": half}


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
    """Return the rows in their order."""
    shape = asking.shape(question)
    with ExitStack() as stack:
        rows = ENGINES[engine].ask(question, asking.place, shape, stack)
        return [row for batch in rows.batches() for row in batch]


def _statement(store: Store, engine: str, sql: str, wanted: Wanted = _ALL) -> Rows:
    asking = _asking(store, engine, wanted)
    return sorted(_asked(asking, engine, asking.of_statement(sql)), key=str)


def _needs(name: str) -> list[Sequence[str]]:
    """Return the lists of events that an answer can be given from, and that no other one has."""
    needs = answer_file.load(name).head.needs
    return [one for one in needs if not any({*one} < {*other} for other in needs)]


def _answer(store: Store, engine: str, name: str, need: Sequence[str]) -> Rows:
    """Return the rows of an answer from events of one of its lists, as if no other was there."""
    one = answer_file.load(name)
    asking = _asking(store, engine)
    others = (other for other in one.head.needs if other != need)
    needs = RequiredEvents((need, *others), one.head.optional, one.head.columns)
    values: dict[str, int | str] = {**values_of(name, one.head.parameter, {})}
    if "limit" in values:
        values["limit"] = 10_000
    return _asked(asking, engine, asking.of_answer(one.text, needs, values, ("host", "kernel")))


def _in_line(rows: Rows) -> Rows:
    """Return rows in an order in which a little more or less in a number puts none elsewhere."""
    return sorted(
        rows,
        key=lambda row: [f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row],
    )


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def _different(found: Rows, expected: Rows) -> list[object]:
    """Return the pairs of rows, in their order, of which a value is not the same."""
    if len(found) != len(expected):
        return [f"{len(found)} rows, and not {len(expected)}", found[:5], expected[:5]]
    return [pair for pair in zip(found, expected, strict=True) if not all(map(_is_same, *pair))]


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
@pytest.mark.parametrize(
    ("name", "need"),
    [
        pytest.param(name, need, id=f"{name}-{'+'.join(need)}")
        for name in answer_file.load_all()
        for need in _needs(name)
    ],
)
def test_an_answer_has_the_rows_of_duckdb(
    folder: Store, engine: str, name: str, need: Sequence[str]
) -> None:
    """Each shipped answer has some row, from each list of events that it can be given from."""
    expected = _answer(folder, "duckdb", name, need)
    assert expected, f"the records of the test give no row of {name} from {', '.join(need)}"
    found = _answer(folder, engine, name, need)
    if name not in _ORDERED:
        found, expected = _in_line(found), _in_line(expected)
    assert not _different(found, expected)


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
    needs = RequiredEvents(one.head.needs, one.head.optional, one.head.columns)
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
            shipped.segment(short, events, BEGIN_NS + day * DAY, MINUTE)
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


@pytest.mark.parametrize("engine", ["clickhouse", "spark"])
@pytest.mark.parametrize(
    ("at", "damage", "sql"),
    [
        (4, b"\x0f" * 30, "SELECT * FROM sched_switch"),
        (-8, bytes(8), "SELECT * FROM sched_switch"),
        # ClickHouse carries the inner one out before it begins.
        (
            4,
            b"\x0f" * 30,
            "SELECT host FROM hosts WHERE (SELECT count(DISTINCT time) FROM sched_switch) > 0",
        ),
    ],
)
def test_a_damaged_object_is_named(
    tmp_path: Path, engine: str, at: int, damage: bytes, sql: str
) -> None:
    """A page of it, or its end."""
    store = Store.open(str(tmp_path / "store"), make=True)
    _fill(store, _switches)
    asking = _asking(store, engine)
    question = asking.of_statement(sql)
    key = _damage(tmp_path / "store", at, damage)
    with pytest.raises(StoreError) as told:
        _asked(asking, engine, question)
    assert told.value.key == key


@pytest.mark.parametrize("engine", ["clickhouse", "spark"])
def test_a_statement_that_is_wrong_has_no_object_looked_at(tmp_path: Path, engine: str) -> None:
    """A page that is damaged is not come upon."""
    store = Store.open(str(tmp_path / "store"), make=True)
    _fill(store, _switches)
    _damage(tmp_path / "store", 4, b"\x0f" * 30)
    with pytest.raises(CollectordError) as told:
        _statement(store, engine, "SELECT damerau_levenshtein(next_comm, 'x') FROM sched_switch")
    assert not isinstance(told.value, StoreError)


def _damage(folder: Path, at: int, damage: bytes) -> str:
    """Write other bytes into an object, and return its key."""
    one = min(folder.glob(f"events/event={SCHED}/*/host=c/*"))
    data = one.read_bytes()
    one.write_bytes(data[:at] + damage + data[at % len(data) + len(damage) :])
    return str(one.relative_to(folder))


def test_clickhouse_reads_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own reader, with the credentials of the environment."""
    for server in object_stores.serve():
        _with_environment(server, monkeypatch)
        store = Store.open(server.new_bucket(), server.options())
        _fill(store, _switches)
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
