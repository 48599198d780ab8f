# SPDX-License-Identifier: Apache-2.0
"""Questions to a store of several hosts, in a folder and by S3."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from collectord.cli import answer_file
from collectord.errors import NotStored, UsageError
from collectord.fleet.engines import ENGINES, duck
from collectord.fleet.engines.place import Place
from collectord.fleet.questions import Asking
from collectord.fleet.required_events import NotShipped, RequiredEvents
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.store import Store
from collectord.programs.parameter import values_of
from collectord.reader.event_file import Window
from tests.support.answer_records import of_all_answers
from tests.support.fleets import (
    BEGIN_NS,
    COMPLETE,
    DAY,
    ISSUE,
    MINUTE,
    SCHED,
    SECOND,
    WAKING,
    Host,
    Shipped,
    requests,
    switches,
    wakings,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from collectord.fleet.question import Question
    from tests.support.object_stores import S3Server

    Rows = list[tuple[Any, ...]]
    RunCli = Callable[..., subprocess.CompletedProcess[str]]

# It makes a store of several hosts for most tests.
pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

_SWITCHES: Final = 400
_REQUESTS: Final = 30


def _fill(store: Store) -> None:
    """Put two days of three hosts, and a segment without a commit."""
    with Shipped(store) as shipped:
        for number, (name, kernel, role) in enumerate(
            (("web-1", "6.12.0", "web"), ("web-2", "6.1.0", "web"), ("db-1", "6.12.0", "db"))
        ):
            host = Host(name, kernel, {"role": role}, clock_off_ns=number * 1000)
            for day in range(2):
                shipped.segment(host, _events(number), BEGIN_NS + day * DAY, MINUTE)
        events = {f"sched:{SCHED}": switches(0, 7)}
        shipped.segment(host, events, BEGIN_NS + MINUTE, MINUTE, is_committed=False)


def _events(number: int) -> dict[str, str]:
    return {
        f"sched:{SCHED}": switches(number, _SWITCHES),
        f"block:{ISSUE}": requests(number, _REQUESTS, step=1),
        f"block:{COMPLETE}": requests(number, _REQUESTS, step=2),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Store:
    """Return a store in a folder with two days of three hosts."""
    store = Store.open(str(tmp_path / "store"), make=True)
    _fill(store)
    return store


def _rows(
    store: Store, sql: str, wanted: Wanted | None = None, session: str | None = None
) -> Rows:
    asking = _asking(store, wanted, session)
    return _asked(asking, asking.of_statement(sql))


def _asking(store: Store, wanted: Wanted | None = None, session: str | None = None) -> Asking:
    selection = Selection(store, wanted or Wanted(Window()))
    return Asking(selection, Place(store), ENGINES["duckdb"], session)


def _asked(asking: Asking, question: Question) -> Rows:
    with ExitStack() as stack:
        rows = ENGINES["duckdb"].ask(question, asking.place, (), stack)
        return [row for batch in rows.batches() for row in batch]


def _answered(store: Store, name: str, wanted: Wanted | None = None, *by: str) -> Rows:
    one = answer_file.load(name)
    asking = _asking(store, wanted)
    head = one.head
    needs = RequiredEvents(head.needs, head.optional, head.columns, head.call_chains)
    values = values_of(name, one.head.parameter, {})
    return _asked(asking, asking.of_answer(one.text, needs, values, by or ("host",)))


_COUNT: Final = "SELECT host, count(*) FROM sched_switch GROUP BY host ORDER BY host"
_ALL: Final = [("db-1", 800), ("web-1", 800), ("web-2", 800)]


def test_rows_of_all_hosts_are_one_table(folder: Store) -> None:
    """Host and day are columns, and rows of what has no commit are not there."""
    assert _rows(folder, _COUNT) == _ALL
    days = "SELECT DISTINCT date, event FROM Sched_Switch ORDER BY date"
    assert _rows(folder, days) == [("2026-11-20", SCHED), ("2026-11-21", SCHED)]


def _write(store: Store, sql: str, path: Path) -> Rows:
    """Write the result of a statement to a file, and return what is in it."""
    asking = _asking(store)
    with ExitStack() as stack:
        rows = duck.write(asking.of_statement(sql), asking.place, str(path), stack)
    with duckdb.connect(":memory:") as connection:
        found = connection.execute("FROM read_parquet($path)", {"path": str(path)}).fetchall()
    assert len(found) == rows
    return found


def test_a_result_is_written_to_a_file(folder: Store, run_cli: RunCli, tmp_path: Path) -> None:
    """A Parquet file has the rows of the statement; a file that is there is left as it is."""
    path = tmp_path / "out.parquet"
    assert _write(folder, _COUNT, path) == _ALL
    words = ("fleet", "query", _COUNT, "--store", folder.url, "--parquet")
    refused = run_cli(*words, str(path))
    assert refused.returncode == 2
    assert "out.parquet" in refused.stderr
    done = run_cli(*words, str(tmp_path / "new.parquet"))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "wrote 3 rows" in done.stderr
    spark = run_cli(*words, str(tmp_path / "no.parquet"), "--engine", "spark")
    assert spark.returncode == 2
    assert "--parquet is written by DuckDB" in spark.stderr


def test_s3_has_the_same_rows(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB reads ranges of objects in a store that is no folder."""
    options = s3_server.options()
    for name, value in options.items():
        monkeypatch.setenv(name.upper(), value)
    store = Store.open(s3_server.new_bucket(), options)
    _fill(store)
    assert _rows(store, _COUNT) == _ALL
    assert _write(store, _COUNT, tmp_path / "out.parquet") == _ALL
    joined = (
        "SELECT role, count(*) FROM block_rq_issue JOIN hosts USING (host) GROUP BY 1 ORDER BY 1"
    )
    assert _rows(store, joined) == [("db", 60), ("web", 120)]


def test_an_object_that_goes_while_it_is_asked_is_not_damaged(folder: Store) -> None:
    """The error says which is not there any more."""
    asking = _asking(folder)
    question = asking.of_statement(_COUNT)
    key = question.keys[3]
    Path(folder.url, key).unlink()
    with pytest.raises(NotStored, match="has no") as told:
        _asked(asking, question)
    assert told.value.key == key


@pytest.mark.parametrize(
    ("wanted", "hosts"),
    [
        (Wanted(Window(), "web-*"), {"web-1": 800, "web-2": 800}),
        (Wanted(Window(), "db-1"), {"db-1": 800}),
        (Wanted(Window(), labels={"kernel": "6.12*"}), {"db-1": 800, "web-1": 800}),
        (Wanted(Window(), labels={"kernel": "6.12*", "role": "web"}), {"web-1": 800}),
        (Wanted(Window(BEGIN_NS + DAY)), {"db-1": 400, "web-1": 400, "web-2": 400}),
        (
            Wanted(Window(BEGIN_NS, BEGIN_NS + 100_000_000)),
            {"db-1": 100, "web-1": 100, "web-2": 100},
        ),
    ],
)
def test_hosts_labels_and_times_choose(
    folder: Store, wanted: Wanted, hosts: dict[str, int]
) -> None:
    """Only rows of what is asked for are there."""
    assert dict(_rows(folder, _COUNT, wanted)) == hosts


def test_objects_of_other_hosts_and_days_are_not_asked_for(folder: Store) -> None:
    """The keys of what a question reads are of its hosts, days and events."""
    wanted = Wanted(Window(BEGIN_NS + 3 * DAY // 2), "web-*")
    objects = _asking(folder, wanted).of_statement(_COUNT).objects
    keys = [key for one in objects for key in one.keys]
    assert [re.sub(r"[0-9a-f]{64}", "S", key) for key in keys] == [
        f"events/event=sched_switch/date={day}/host={host}/S-0.parquet"
        for day in ("2026-11-20", "2026-11-21")
        for host in ("web-1", "web-2")
    ]


def test_labels_and_ledger_are_tables(folder: Store) -> None:
    """They can be joined with records, and with each other."""
    sums = "SELECT kernel, sum(stored), sum(produced) FROM ledger JOIN hosts USING (host)"
    sql = f"{sums} GROUP BY 1 ORDER BY 1"
    each = 2 * (_SWITCHES + 2 * _REQUESTS)
    assert _rows(folder, sql) == [
        ("6.1.0", str(each), str(each)),
        ("6.12.0", str(2 * each), str(2 * each)),
    ]


def test_two_groups_of_hosts_are_compared(folder: Store) -> None:
    """A label tells the groups apart, and a statement has their difference."""
    one, other = (f"count(*) FILTER (WHERE role = '{role}')" for role in ("db", "web"))
    sql = f"SELECT next_comm, {one} - {other} AS more FROM sched_switch JOIN hosts USING (host) "  # noqa: S608
    assert _rows(folder, f"{sql} GROUP BY 1 ORDER BY 1") == [("even", -400), ("odd", -400)]


def test_a_session_is_chosen(folder: Store) -> None:
    """Records of other sessions are not there."""
    assert _rows(folder, _COUNT, session="exec") == _ALL
    assert _rows(folder, _COUNT, session="other") == []


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        (
            "SELECT * FROM shed_switch",
            'there is no table shed_switch; did you mean "sched_switch"',
        ),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("DELETE FROM sched_switch", "not a SELECT"),
        ("SELECT * FROM sched_switch, read_csv('/etc/passwd')", "passwd"),
    ],
)
def test_a_wrong_statement_is_told(folder: Store, sql: str, problem: str) -> None:
    """A name that there is not gives the nearest one; no file of this host is read."""
    with pytest.raises(UsageError, match=re.escape(problem)):
        _rows(folder, sql)


@pytest.mark.parametrize("name", ["slow-io", "cpu-share", "off-cpu", "io-latency"])
def test_an_answer_has_the_rows_of_each_host_alone(folder: Store, name: str) -> None:
    """Two hosts whose requests have the same places, and threads the same numbers, stay apart."""
    hosts = ("web-1", "web-2", "db-1")
    alone = [row for host in hosts for row in _answered(folder, name, Wanted(Window(), host))]
    together = _answered(folder, name)
    limited = sorted(map(str, together))
    assert together
    assert limited == sorted(map(str, alone))[: len(limited)] or {*limited} <= {*map(str, alone)}
    assert {row[0] for row in alone} == {*hosts}


def test_an_answer_has_labels(folder: Store) -> None:
    """Rows may begin with labels of their host, and groups may be of labels."""
    assert {row[:2] for row in _answered(folder, "slow-io", None, "host", "kernel")} <= {
        ("web-1", "6.12.0"),
        ("web-2", "6.1.0"),
        ("db-1", "6.12.0"),
    }
    by_kernel = _answered(folder, "io-latency", None, "kernel")
    assert sum(row[-1] for row in by_kernel) == 6 * _REQUESTS
    assert {row[0] for row in by_kernel} == {"6.1.0", "6.12.0"}


def test_what_was_not_shipped_is_named(folder: Store) -> None:
    """An answer whose events no host has shipped says which."""
    with pytest.raises(NotShipped, match="sched:sched_process_exec"):
        _answered(folder, "exec-storm")


def test_call_chains_must_be_there_of_the_events_themselves(folder: Store) -> None:
    """Those of another event are none; hosts without are left out, as each would refuse alone."""
    told = of_all_answers(1)
    chains = {name: told[name] for name in ("frames", "stacks")}
    other = {name: sql.replace("'sched:sched_switch'", "'cycles'") for name, sql in chains.items()}
    with Shipped(folder) as shipped:
        shipped.segment(Host("web-1"), other, BEGIN_NS + DAY // 2, MINUTE)
        with pytest.raises(NotShipped, match="call chains of sched:sched_switch, which no host"):
            _answered(folder, "off-cpu-stacks")
        shipped.segment(Host("db-1"), chains, BEGIN_NS + DAY // 2, MINUTE)
    assert {row[0] for row in _answered(folder, "off-cpu-stacks")} == {"db-1"}


def test_samples_of_other_events_are_no_software_events(folder: Store) -> None:
    """Manifests tell which were recorded, and by which aliases and modifiers."""
    with Shipped(folder) as shipped:
        samples = {"samples": of_all_answers(1)["samples"]}
        shipped.segment(Host("db-1"), samples, BEGIN_NS, MINUTE, sampled=["cpu-clock"])
        with pytest.raises(NotShipped, match="exceptions:page_fault_user, or software:page-fault"):
            _answered(folder, "page-faults")
        shipped.segment(Host("web-1"), samples, BEGIN_NS, MINUTE, sampled=["faults:u"])
    rows = _answered(folder, "page-faults", Wanted(Window(), "web-1"))
    assert {row[0] for row in rows} == {"web-1"}


def test_hosts_with_other_events_are_left_out_and_known(tmp_path: Path) -> None:
    """The events are those that most hosts have recorded in the time, and each host has all."""
    store = Store.open(str(tmp_path / "store"), make=True)
    some = wakings({("a", "b"): 3})
    later = BEGIN_NS + DAY
    with Shipped(store) as shipped:
        for name in ("web-1", "web-2"):
            shipped.segment(Host(name), {"sched:sched_wakeup": some}, BEGIN_NS, MINUTE)
        db = Host("db-1")
        shipped.segment(db, {f"sched:{WAKING}": some}, BEGIN_NS, MINUTE)
        shipped.segment(db, {"sched:sched_wakeup": some}, later, MINUTE)
        shipped.segment(Host("idle-1"), _events(1), BEGIN_NS, MINUTE)
    early, late = Window(BEGIN_NS, BEGIN_NS + MINUTE), Window(later, later + MINUTE)
    for wanted, hosts, lacking in (
        (Wanted(early), {"web-1", "web-2"}, ["db-1", "idle-1"]),
        (Wanted(early, "db-1"), {"db-1"}, []),
        (Wanted(late), {"db-1"}, []),
    ):
        asking = _asking(store, wanted)
        one = answer_file.load("who-woke-whom")
        needs = RequiredEvents(one.head.needs, one.head.optional, one.head.columns)
        values = values_of(one.name, one.head.parameter, {})
        rows = _asked(asking, asking.of_answer(one.text, needs, values, ("host",)))
        assert ({row[0] for row in rows}, sorted(asking.left_out.lacking)) == (hosts, lacking)


def test_a_host_with_a_part_of_what_is_needed_is_left_out(tmp_path: Path) -> None:
    """It would refuse alone, so it has no rows beside others."""
    store = Store.open(str(tmp_path / "store"), make=True)
    told = of_all_answers(1)
    both = {name: told[name] for name in ("sched:sched_switch", "sched:sched_wakeup")}
    part = {"sched:sched_switch": told["sched:sched_switch"]}
    with Shipped(store) as shipped:
        shipped.segment(Host("both"), both, BEGIN_NS, MINUTE)
        shipped.segment(Host("part"), part, BEGIN_NS, MINUTE)
    with pytest.raises(NotShipped):
        _answered(store, "run-queue", Wanted(Window(), "part"))
    assert {row[0] for row in _answered(store, "run-queue")} == {"both"}


def test_what_is_needed_is_named_with_all_that_may_take_its_place(folder: Store) -> None:
    """Any list of events is enough, and all of them are in the message."""
    lists = "page_fault_user, or software:page-faults, or software:minor-faults and software:ma"
    with pytest.raises(NotShipped, match=lists):
        _answered(folder, "page-faults")


def test_an_event_that_two_sessions_recorded_is_refused(tmp_path: Path) -> None:
    """Each record would count twice; one of the sessions is an answer."""
    store = Store.open(str(tmp_path / "store"), make=True)
    with Shipped(store) as shipped:
        host = Host("one")
        for session in ("exec", "more"):
            shipped.segment(host, _events(1), BEGIN_NS, MINUTE, session=session)
        later = BEGIN_NS + 10 * MINUTE
        shipped.segment(host, _events(1), later, MINUTE)
    with pytest.raises(UsageError, match="several sessions of one at the same time: exec, more"):
        _answered(store, "cpu-share")
    assert _answered(store, "cpu-share", Wanted(Window(later)))


def test_what_lasted_over_a_gap_does_not_count(tmp_path: Path) -> None:
    """A request that was issued before a gap of one host and completed behind it is left out."""
    store = Store.open(str(tmp_path / "store"), make=True)
    with Shipped(store) as shipped:
        for number, name in enumerate(("whole", "torn")):
            host = Host(name)
            issue = {f"block:{ISSUE}": requests(number, 1, step=1)}
            complete = {f"block:{COMPLETE}": requests(number, 1, step=2)}
            shipped.segment(
                host, {**issue, f"block:{COMPLETE}": requests(0, 0, step=2)}, BEGIN_NS, SECOND
            )
            if name == "torn":
                host.run_number += 1
            begins = BEGIN_NS + 2 * SECOND
            shipped.segment(
                host, {**complete, f"block:{ISSUE}": requests(0, 0, step=1)}, begins, SECOND
            )
    assert {row[0] for row in _answered(store, "slow-io")} == {"whole"}


def test_columns_that_only_some_kernels_have_are_there(folder: Store) -> None:
    """Objects of an event need not have the same columns: what one lacks is null."""
    with Shipped(folder) as shipped:
        wider = f"SELECT *, 5::INTEGER AS fresh FROM ({switches(9, 3)})"  # noqa: S608
        shipped.segment(Host("new-1"), {f"sched:{SCHED}": wider}, BEGIN_NS, MINUTE)
    found = _rows(folder, "SELECT count(fresh), count(*) FROM sched_switch")
    assert found == [(3, 2403)]


def test_tables_have_an_own_column_of_the_event(folder: Store) -> None:
    """`samples` and the like have the event of each row, and not that of their key."""
    with Shipped(folder) as shipped:
        rows = "SELECT i AS n, 'cycles' AS event, i AS after FROM range(5) r(i)"
        shipped.segment(Host("p-1"), {"samples": rows}, BEGIN_NS, MINUTE)
    assert _rows(folder, "SELECT DISTINCT event, host, date FROM samples") == [
        ("cycles", "p-1", "2026-11-20")
    ]


def test_duckdb_itself_reads_the_objects_as_partitions(tmp_path: Path) -> None:
    """The objects can be read without this program."""
    store = Store.open(str(tmp_path / "store"), make=True)
    _fill(store)
    pattern = tmp_path / "store/events/event=sched_switch/*/*/*.parquet"
    with duckdb.connect(":memory:") as connection:
        found = connection.execute(
            f"SELECT count(DISTINCT host) FROM read_parquet('{pattern}', hive_partitioning = true)"  # noqa: S608
        ).fetchall()
    assert found == [(3,)]


def test_a_label_may_be_called_as_a_column_is(tmp_path: Path) -> None:
    """`page-faults` has a column `kernel` of its own, and rows may begin with that label."""
    store = Store.open(str(tmp_path / "store"), make=True)
    with Shipped(store) as shipped:
        columns = (
            "1::INTEGER AS pid, 2::INTEGER AS tid, 'a' AS comm, i::UBIGINT AS address, "
            "3::UBIGINT AS ip, 2::UBIGINT AS error_code"
        )
        faults = f"SELECT i AS n, {columns}, i AS after FROM range(5) r(i)"  # noqa: S608
        events = {"exceptions:page_fault_user": faults}
        labels = {"comm": "label"}
        shipped.segment(Host("one", labels=labels), events, BEGIN_NS, SECOND)
    assert _answered(store, "page-faults", None, "kernel", "comm") == [
        ("6.12.0", "label", "a", 1, 5, 1, 5, 0, "3")
    ]
