# SPDX-License-Identifier: Apache-2.0
"""`fleet` on the command line."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Final

import pytest

from collectord.cli import fleet
from collectord.errors import CollectordError, NotStored, StoreConflict, StoreError, UsageError
from collectord.fleet import selection
from collectord.fleet.commit import Covered
from collectord.fleet.store import Store
from collectord.fleet.store_keys import IncidentKey
from tests.support import object_stores
from tests.support.alerts import FINGERPRINT, alert
from tests.support.fleets import (
    BEGIN_NS,
    COMPLETE,
    ISSUE,
    SCHED,
    SECOND,
    Host,
    Shipped,
    requests,
    switches,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

# It makes a store of several hosts for most tests.
pytestmark = pytest.mark.slow

_STACKS: Final = """
SELECT s AS n, 'run' AS comm, 'cycles' AS event, s::UBIGINT AS stack_id, 2 AS count,
    'main;work_' || s AS stack, NULL AS cgroup, s AS after FROM range(2) r(s)"""
_FRAMES: Final = """
SELECT i AS n, 'run' AS comm, 'cycles' AS event, (i % 2)::UBIGINT AS stack_id,
    0::UINTEGER AS position, i * 1000 AS after FROM range({count}) r(i)"""
# The hosts of the store have recorded long ago.
_SOON: Final = ("--until", "2026-11-20T00:10:00Z")


@pytest.fixture(scope="module", autouse=True)
def _runtime() -> None:
    """Have obstore make what it keeps for the process, which is no leak of a test."""
    object_stores.start_runtime()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store in a folder with a segment of each of two hosts."""
    folder = tmp_path / "store"
    with Shipped(Store.open(str(folder), make=True)) as shipped:
        for number, name in enumerate(("db-1", "web-1")):
            events = {
                f"sched:{SCHED}": switches(number, 100),
                f"block:{ISSUE}": requests(number, 10, step=1),
                f"block:{COMPLETE}": requests(number, 10, step=2),
                "frames": _FRAMES.format(count=6 + 4 * number),
                "stacks": _STACKS,
            }
            host = Host(name, labels={"role": name.partition("-")[0]})
            shipped.segment(host, events, BEGIN_NS, 60 * SECOND)
    return folder


def test_a_query_is_printed_in_each_form(run: Run) -> None:
    """A table, JSON or CSV, as `query` prints them."""
    sql = "SELECT host, count(*) AS n FROM sched_switch GROUP BY 1 ORDER BY 1"
    assert run("query", sql) == (0, "host     n\ndb-1   100\nweb-1  100\n", "")
    rows = [json.loads(line) for line in run("query", sql, "--json")[1].splitlines()]
    assert rows == [{"host": "db-1", "n": 100}, {"host": "web-1", "n": 100}]
    assert run("query", sql, "--csv")[1] == "host,n\r\ndb-1,100\r\nweb-1,100\r\n"


def test_a_query_that_orders_hosts_by_time_says_the_bound(run: Run) -> None:
    """It is on stderr, and one host alone has none."""
    sql = "SELECT time FROM sched_switch ORDER BY time LIMIT 1"
    assert "on one line to within 1.000 ms" in run("query", sql)[2]
    assert run("query", sql, "--host", "db-*")[2] == ""


def test_an_answer_that_orders_hosts_by_time_says_the_bound(run: Run, store: Path) -> None:
    """Its rows of all hosts are in one order; that of an answer by another column says nothing."""
    kills = (
        "SELECT i AS n, 5::INTEGER AS tid, 'sh' AS comm, 7::INTEGER AS event_pid, i AS after "
        "FROM range(2) r(i)"
    )
    with Shipped(Store.open(str(store))) as shipped:
        for name in ("db-1", "web-1"):
            begins_ns = BEGIN_NS + 3600 * SECOND
            shipped.segment(Host(name), {"oom:mark_victim": kills}, begins_ns, SECOND)
    status, text, errors = run("answer", "oom-kills")
    assert (status, len(text.splitlines())) == (0, 5)
    assert "on one line to within 1.000 ms" in errors
    assert run("answer", "slow-io")[2] == ""


def test_the_schema_has_all_tables(run: Run) -> None:
    """Events, and the tables that commits make."""
    _, text, _ = run("query", "--schema")
    tables = {line.split()[0] for line in text.splitlines()[1:]}
    assert tables >= {SCHED, ISSUE, "hosts", "ledger", "coverage", "clocks", "errno_names"}
    lines = run("query", "--schema", "--csv")[1].split("\r\n")
    assert lines[0] == "table,column,type"
    assert "hosts,role,VARCHAR" in lines
    assert {line.partition(",")[0] for line in lines[1:-1]} == tables


def test_an_answer_has_a_host_before_its_columns(run: Run) -> None:
    """And labels, if they are asked for."""
    status, text, errors = run("answer", "slow-io", "--param", "limit=1", "--by", "host,role")
    assert (status, errors) == (0, "")
    assert text.split()[:2] == ["host", "role"]
    lanes = run("answer", "cpu-timeline")[1].splitlines()
    # Pieces of two hosts are equal in what decides their order.
    names = sorted(line.partition("|")[0].strip() for line in lanes)
    assert names == ["db-1 CPU 0", "web-1 CPU 0"]


def test_an_answer_that_nobody_shipped_says_what_it_needs(run: Run) -> None:
    """The status is 1, as that of `answer`."""
    status, text, errors = run("answer", "exec-storm")
    assert (status, text) == (1, "")
    assert "exec-storm needs sched:sched_process_exec, which no host" in errors


@pytest.mark.parametrize(("engine", "word"), [("clickhouse", "FROM file("), ("spark", "`host`")])
def test_the_statement_of_an_engine_is_shown(run: Run, engine: str, word: str) -> None:
    """Without asking it, so that it need not be there."""
    status, text, _ = run("answer", "slow-io", "--engine", engine, "--show")
    assert status == 0
    assert word in text


def test_the_ledger_is_a_table_with_sums(run: Run) -> None:
    """A complete one has no finding."""
    status, text, errors = run("ledger", "--verify", *_SOON)
    assert (status, errors) == (0, "")
    lines = [line.split() for line in text.splitlines()]
    assert lines[1][:5] == ["db-1", "exec", "1", "128", "128"]
    assert lines[3][:5] == ["all", "records", "2", "260", "260"]
    assert json.loads(run("ledger", "--json", *_SOON)[1])["complete"] is True


def test_a_ledger_says_what_to_do_about_damage(run: Run, store: Path) -> None:
    """Once for each kind of it; lines of one kind are many."""
    for path in store.rglob(f"events/event={SCHED}/**/*.parquet"):
        path.unlink()
    status, text, errors = run("ledger", "--verify", *_SOON)
    lines = " ".join(text.split())
    assert status == 1
    assert "object: db-1 exec: events/" in lines
    assert lines.count(".parquet of 000000.perf.data is not in the store, 2026-11-20T") == 2
    assert errors.startswith("collectord: object: put it back from a version that the store keeps")
    assert errors.count("\n") == 1


def test_hosts_of_an_old_store_are_silent(run: Run) -> None:
    """The time ends now, unless it is said to end before."""
    status, text, _ = run("ledger", "--host", "db-1")
    (line,) = " ".join(text.partition("silent: ")[2].split()).splitlines()
    assert status == 1
    assert line.startswith(
        "db-1: it has told nothing of this time, 2026-11-20T00:01:00.000000000Z to 20"
    )
    assert run("ledger", "--host", "db-1", "--silent-after", "36500d")[0] == 0
    document = json.loads(run("ledger", "--json", *_SOON)[1])
    assert document["end_ns"] == BEGIN_NS + 600 * SECOND


def test_a_flame_graph_is_of_hosts_or_labels(run: Run, tmp_path: Path) -> None:
    """Stacks of all hosts are counted together, or below the host; two groups are compared."""
    assert run("flame")[1] == "run;main;work_0 8\nrun;main;work_1 8\n"
    assert run("flame", "--by", "role", "--host", "db-*")[1] == (
        "db;run;main;work_0 3\ndb;run;main;work_1 3\n"
    )
    assert run("flame", "--label", "role=db", "--against", "role=web")[1] == (
        "run;main;work_0 5 3\nrun;main;work_1 5 3\n"
    )
    target = tmp_path / "all.svg"
    assert run("flame", "-o", str(target))[0] == 0
    assert "work_1" in target.read_text()


def test_a_flame_graph_of_a_group_without_samples_says_so(run: Run, store: Path) -> None:
    """Each group of two, and a time without any; the status is that of `collectord flame`."""
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("new-1", labels={"role": "new"})
        shipped.segment(host, {f"sched:{SCHED}": switches(1, 5)}, BEGIN_NS, SECOND)
    status, text, errors = run("flame", "--label", "role=new", "--against", "role=web")
    assert (status, text) == (0, "run;main;work_0 5 0\nrun;main;work_1 5 0\n")
    assert "there are no samples of role=new in what was read" in errors
    assert "of role=web in what" not in errors
    errors = run("flame", "--label", "role=web", "--against", "role=new")[2]
    assert "there are no samples of role=new in what was read" in errors
    status, text, errors = run("flame", "--since", "2026-11-20T00:00:50Z")
    told = "collectord: there are no samples in what was read\n"
    assert (status, text, errors) == (0, "", told)


def test_a_flame_graph_says_what_was_lost(run: Run, store: Path) -> None:
    """It is without the samples that its hosts have lost; a session nobody has is an error."""
    with Shipped(Store.open(str(store))) as shipped:
        events = {"frames": _FRAMES.format(count=2), "stacks": _STACKS}
        shipped.segment(Host("new-1"), events, BEGIN_NS, 60 * SECOND, lost=3)
    told = "3 records of 1 host were lost in what was read: new-1 3"
    assert told in run("flame")[2]
    assert told not in run("flame", "--host", "web-*")[2]
    with pytest.raises(UsageError, match="has shipped the session exce"):
        run("flame", "--session", "exce")


def test_a_flame_graph_is_of_labels_that_there_are(run: Run, store: Path) -> None:
    """A host without one that others have is unknown; one that nobody has is refused."""
    with Shipped(Store.open(str(store))) as shipped:
        events = {"frames": _FRAMES.format(count=2), "stacks": _STACKS}
        shipped.segment(Host("new-1", labels={}), events, BEGIN_NS, 60 * SECOND)
    assert "[unknown];run;main;work_0 1\n" in run("flame", "--by", "role")[1]
    for word, hint in (
        ("rloe", 'did you mean "role"?'),
        ("x", "there are hosts whose kernel is 6.12.0; role is db, web"),
    ):
        with pytest.raises(UsageError, match=f"asked has the label '{word}'") as told:
            run("flame", "--by", word)
        assert told.value.hint.startswith(hint)
    with pytest.raises(UsageError, match="asked has the label 'role'"):
        run("flame", "--by", "role", "--host", "new-1")


def test_a_flame_graph_needs_call_chains_of_one_event(run: Run, store: Path) -> None:
    """The events to choose from are named; without any there are no samples."""
    told = "one event can be counted, and there are: cycles"
    with pytest.raises(UsageError, match=told):
        run("flame", "-e", "cyclse")
    with Shipped(Store.open(str(store))) as shipped:
        events = {f"sched:{SCHED}": switches(1, 5)}
        shipped.segment(Host("new-1"), events, BEGIN_NS, SECOND)
    told = (
        "collectord: no host that is asked has shipped call chains; `call_graph` in a perf source "
        "records them\ncollectord: there are no samples in what was read\n"
    )
    assert run("flame", "--host", "new-1") == (0, "", told)


def test_a_flame_graph_has_what_is_left_of_call_chains(run: Run, store: Path) -> None:
    """Samples whose stacks are gone from the store have no names; what is gone is told."""
    (one,) = store.glob("events/event=stacks/*/host=web-1/*")
    one.unlink()
    status, text, errors = run("flame", "--host", "web-1")
    assert (status, text) == (1, "run;[unknown] 10\n")
    assert errors.count("its records were left out: ") == 1
    shutil.rmtree(store / "events/event=stacks")
    status, text, errors = run("flame", "--by", "host")
    assert (status, text) == (1, "db-1;run;[unknown] 6\nweb-1;run;[unknown] 10\n")
    assert errors.count("has no events/event=stacks/date=2026-11-20/host=") == 2
    shutil.rmtree(store / "events/event=frames")
    status, text, errors = run("flame")
    assert (status, text) == (1, "")
    assert errors.count("has no events/event=frames/date=2026-11-20/host=") == 2
    assert "call_graph" not in errors
    with pytest.raises(NotStored, match="which its commit names"):
        run("query", "FROM stacks")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("query",), "no statement is given"),
        (("query", "SELECT 1", "--verify"), "--verify is an option of fleet ledger"),
        (("ledger", "word"), "fleet ledger takes no words"),
        (("tables", "--host", "db-*"), "--host is an option of fleet query"),
        (("query", "SELECT 1", "--location", "x"), "--location is an option of fleet tables"),
        (("query", "SELECT 1", "--engine-address", "x"), "DuckDB has no address"),
        (("tables", "--previous-versions", "-1"), "--previous-versions is negative"),
        (("ledger", "--previous-versions", "1"), "is an option of fleet tables"),
        (("flame", "--json"), "--json is an option of fleet query"),
        (("flame", "--silent-after", "1h"), "--silent-after is an option of fleet ledger"),
        (("ledger", "-e", "cycles"), "-e is an option of fleet flame"),
        (("incidents", "--session", "exec"), "--session is an option of fleet query"),
        (("query", "SELECT 1", "--schema"), "--schema and a statement do not go together"),
        (("query", "--schema", "--session", "x"), "--schema and --session do not go together"),
        (("answer", "slow-io", "--show", "--json"), "--show and --json do not go together"),
        (("answer", "--json"), "--json is of an answer, and none is named"),
        (("answer", "--since", "-1d"), "--since is of an answer, and none is named"),
        (("flame", "--against", "role=x", "-o", "x.pprof"), "no comparison"),
        (("incidents", "none"), "there is no incident none"),
        (("answer", "slow-oi"), "there is no answer 'slow-oi'"),
    ],
)
def test_what_does_not_go_together_is_told(run: Run, words: tuple[str, ...], problem: str) -> None:
    """In one line, with what to do."""
    with pytest.raises(UsageError, match=problem):
        run(*words)


def _put_incident(store: Path, host: str, name: str, fired_ns: int, **values: object) -> None:
    note = {"id": name, "trigger": "io", "hostname": host, "fired_ns": fired_ns, **values}
    opened = Store.open(str(store))
    opened.put_new(IncidentKey(host, name, "incident.json").key, json.dumps(note).encode())
    opened.put_new(IncidentKey(host, name, "summary.txt").key, f"seen by {host}\n".encode())


def test_each_option_says_of_which_actions_it_is() -> None:
    """So none is taken where it has no effect."""
    options = {action.dest for action in fleet.parser()._actions if action.option_strings}
    assert options - {"help", "store"} == {*fleet._OF}


def test_incidents_are_listed_the_newest_first(run: Run, store: Path) -> None:
    """Their order is that of `incident list`; that there are none is told, and no failure."""
    none = "collectord: no incident of the time and of the hosts that are asked for was shipped\n"
    assert run("incidents") == (0, "", none)
    assert run("incidents", "--json") == (0, '{\n  "incidents": []\n}\n', none)
    for number in (2, 3, 1):
        _put_incident(store, "db-1", f"{number}-io", BEGIN_NS + number * SECOND)
    status, text, errors = run("incidents")
    assert (status, errors) == (0, "")
    names = [line.split()[0] for line in text.splitlines()[1:]]
    assert names == ["3-io@db-1", "2-io@db-1", "1-io@db-1"]
    assert [one["id"] for one in json.loads(run("incidents", "--json")[1])["incidents"]] == names
    assert run("incidents", "--until", "2026-11-19T00:00:00Z") == (0, "", none)


def test_an_incident_is_shown_by_its_name_on_a_host(run: Run, store: Path) -> None:
    """One name of several hosts is of one incident, or is refused with those that there are."""
    for host in ("db-1", "web-1"):
        _put_incident(store, host, "1-io", BEGIN_NS)
        _put_incident(store, host, f"2-{host}", BEGIN_NS, alerts=[alert()])
        _put_incident(store, host, "3-io", BEGIN_NS, alerts=[alert()])
    with pytest.raises(UsageError, match="2 hosts have an incident 1-io") as told:
        run("incidents", "1-io")
    assert told.value.hint == "name one of 1-io@db-1, 1-io@web-1"
    assert "seen by web-1" in run("incidents", "1-io@web-1")[1]
    for word in (FINGERPRINT, "2-db-1", "2-db-1@db-1", "3-io", "3-io@web-1"):
        text = run("incidents", word)[1]
        assert text.count("seen by db-1") == text.count("seen by web-1") == 2
    _put_incident(store, "db-2", "3-io", BEGIN_NS)
    with pytest.raises(UsageError, match="3 hosts have an incident 3-io"):
        run("incidents", "3-io")


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        (("--label", "role=bd"), "no host of role=bd has shipped", "role is db, web"),
        (("--label", "rloe=db"), "no host of rloe=db has shipped", "role is db, web"),
        (("--host", "bd-*"), r"no host of bd-\* has shipped", "host is db-1, web-1; kernel is"),
        (("--session", "exce"), "has shipped the session exce", 'did you mean "exec"'),
        (("--session", "x"), "has shipped the session x", "there are: exec"),
    ],
)
@pytest.mark.parametrize("action", [("query", "FROM sched_switch"), ("answer", "slow-io")])
def test_a_choice_of_nothing_is_told(
    run: Run, action: tuple[str, ...], words: tuple[str, ...], problem: str, hint: str
) -> None:
    """With the labels, the hosts or the sessions that there are."""
    with pytest.raises(UsageError, match=problem) as told:
        run(*action, *words)
    assert hint in told.value.hint


def test_rows_begin_with_labels_that_there_are(run: Run) -> None:
    """A label that no host has is told, with those that they have."""
    for by, hint in (
        ("rloe", 'did you mean "role"?'),
        ("host,x", "there are hosts whose kernel is 6.12.0; role is db, web"),
    ):
        with pytest.raises(UsageError, match="no host that is asked has the label") as told:
            run("answer", "slow-io", "--by", by)
        assert told.value.hint == hint
    assert run("answer", "slow-io", "--by", "all")[0] == 0


@pytest.mark.parametrize(
    "action",
    [
        ("query", "FROM sched_switch"),
        ("answer", "slow-io"),
        ("ledger",),
        ("flame",),
        ("incidents",),
    ],
)
def test_a_time_that_ends_before_it_begins_is_refused(run: Run, action: tuple[str, ...]) -> None:
    """No record is in it, whatever hosts have shipped; the words are those of `ledger`."""
    with pytest.raises(UsageError, match="--since must be before --until"):
        run(*action, "--since", "2026-11-20T00:10:00Z", "--until", "2026-11-20T00:00:00Z")


@pytest.mark.parametrize("words", [(), ("--label", "role=db", "--against", "role=web")])
def test_a_ledger_is_of_a_session_that_there_is(run: Run, words: tuple[str, ...]) -> None:
    """Hosts that never had one are not silent; those that there are are in the hint."""
    with pytest.raises(
        UsageError, match="no host that is asked has shipped the session x"
    ) as told:
        run("ledger", "--session", "x", *words, *_SOON)
    assert told.value.hint == "there are: exec"
    assert run("ledger", "--session", "exec", *words, *_SOON)[0] == 0


@pytest.mark.parametrize("action", [("ledger",), ("flame",), ("incidents",)])
def test_labels_that_no_host_has_are_told_by_each_action(
    run: Run, action: tuple[str, ...]
) -> None:
    """The same options choose hosts for all of them."""
    with pytest.raises(UsageError, match="no host of role=bd has shipped"):
        run(*action, "--label", "role=bd")


@pytest.mark.parametrize(
    "action",
    [
        ("query", "FROM sched_switch"),
        ("answer", "cpu-share"),
        ("ledger",),
        ("flame",),
        ("incidents",),
    ],
)
def test_a_name_that_no_host_has_is_told_by_each_action(run: Run, action: tuple[str, ...]) -> None:
    """It is a mistake, and not a host that recorded nothing; the hint has the names there are."""
    with pytest.raises(UsageError, match="no host of bd-1 has shipped") as told:
        run(*action, "--host", "bd-1")
    assert "host is db-1, web-1" in told.value.hint


def test_a_flame_graph_says_that_records_were_not_shipped(run: Run, store: Path) -> None:
    """Whether they have call chains is not known, so that no option is to be changed."""
    nothing = {f"sched:{SCHED}": f"FROM ({switches(1, 2)}) LIMIT 0"}
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("led-1", labels={"role": "led"})
        shipped.segment(host, nothing, BEGIN_NS, SECOND, rule="ledger")
    why = ": no record of led-1 was shipped\n"
    status, _, errors = run("flame", "--host", "led-1")
    assert status == 0
    assert f"no host that is asked has shipped call chains{why}" in errors
    errors = run("flame", "--label", "role=led", "--against", "role=web")[2]
    assert f"there are no samples of role=led in what was read{why}" in errors


def test_a_flame_graph_needs_no_names_of_threads(run: Run, store: Path) -> None:
    """They may be redacted; another host's are shown."""
    frames = f"SELECT * EXCLUDE (comm) FROM ({_FRAMES.format(count=3)})"  # noqa: S608
    with Shipped(Store.open(str(store))) as shipped:
        events = {f"sched:{SCHED}": switches(1, 2), "frames": frames, "stacks": _STACKS}
        shipped.segment(Host("red-1"), events, BEGIN_NS, SECOND)
    status, text, _ = run("flame", "--host", "red-1")
    assert (status, {line.partition(";")[0] for line in text.splitlines()}) == (0, {"[unknown]"})
    status, text, _ = run("flame", "--host", "*-1")
    assert status == 0
    assert len({line.partition(";")[0] for line in text.splitlines()}) > 1


def test_a_refused_answer_says_what_was_not_shipped(run: Run, store: Path) -> None:
    """A segment whose records could not be made is not one whose rule keeps them."""
    nothing = {f"sched:{SCHED}": f"FROM ({switches(1, 2)}) LIMIT 0"}
    with Shipped(Store.open(str(store))) as shipped:
        shipped.segment(Host("bad-1"), nothing, BEGIN_NS, SECOND, problem="it is damaged")
    status, _, errors = run("answer", "cpu-share", "--host", "bad-1")
    assert status == 1
    assert "which no host that is asked has shipped, though bad-1 recorded it\n" in errors
    assert "the records of 1 segment of 1 host were not shipped, though they should be" in errors


def test_the_name_of_a_host_is_no_label(run: Run) -> None:
    """The hint has the option that chooses by it."""
    with pytest.raises(UsageError, match="host is the name of a host, and no label") as told:
        run("query", "FROM sched_switch", "--label", "host=db-*")
    assert told.value.hint == "--host 'db-*'"


def test_lost_records_and_gaps_are_told(run: Run, store: Path) -> None:
    """They are those of the events, the hosts and the time; a question to commits has none."""
    gap = Covered(what="gap", cause="kill", since_ns=BEGIN_NS, until_ns=BEGIN_NS + SECOND)
    with Shipped(Store.open(str(store))) as shipped:
        for name, lost in (("db-1", 7), ("db-2", 5000), ("db-3", 0), ("web-1", 20)):
            events = {f"sched:{SCHED}": switches(1, 2)}
            covered = (gap,) if name == "db-3" else ()
            host = Host(name)
            begins_ns = BEGIN_NS + 120 * SECOND
            shipped.segment(host, events, begins_ns, SECOND, lost=lost, covered=covered)
            # Each segment of a run tells the gap before it.
            shipped.segment(host, events, begins_ns + SECOND, SECOND, covered=covered)
    losses = (
        "collectord: 5,027 records of 3 hosts were lost in what was read: db-2 5,000, web-1 20 "
        "and 1 more; `collectord fleet ledger` tells when and why\n"
    )
    gaps = (
        "collectord: there is 1 gap in what 1 host recorded: db-3 1; `collectord fleet ledger` "
        "tells when and why\n"
    )
    count = ("query", "SELECT count(*) FROM sched_switch")
    assert (run(*count)[0], run(*count)[2]) == (0, losses + gaps)
    assert run("answer", "cpu-share")[2] == losses + gaps
    assert run(*count, "--since", "2026-11-20T00:01:30Z")[2] == losses
    assert run(*count, "--until", "2026-11-20T00:01:30Z")[2] == gaps
    assert "lost" not in run("query", "FROM block_rq_issue")[2]
    assert run("query", "SELECT count(*) FROM ledger") == (0, "count_star()\n          10\n", "")


def test_segments_whose_rows_were_not_shipped_are_told(run: Run, store: Path) -> None:
    """Those of the tables and the time alone; as for an object that is gone the status is 1."""
    events = {
        f"sched:{SCHED}": switches(1, 2),
        "frames": _FRAMES.format(count=2),
        "stacks": _STACKS,
    }
    without = {f"sched:{SCHED}": f"FROM ({switches(1, 2)}) LIMIT 0"}
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("db-2")
        begins_ns = BEGIN_NS + 120 * SECOND
        shipped.segment(host, events, begins_ns, SECOND)
        shipped.segment(host, without, begins_ns + SECOND, SECOND, problem="it is damaged")
        shipped.segment(host, events, begins_ns + 4 * SECOND, SECOND, passed_over=2)
        # No other segment tells what tables this stream has.
        shipped.segment(Host("db-3"), without, begins_ns, SECOND // 10, problem="it is damaged")
    told = (
        "collectord: the records of {} were not shipped, though they should be: {}; `collectord "
        "fleet ledger` tells when and why\n"
    )
    for words in (
        ("query", "SELECT count(*) FROM sched_switch"),
        ("answer", "cpu-share"),
        ("flame",),
    ):
        status, _, errors = run(*words)
        assert status == 1
        assert errors.endswith(told.format("4 segments of 2 hosts", "db-2 3, db-3 1"))
    count = ("query", "SELECT count(*) FROM sched_switch", "--since")
    for since, until, whose in (
        ("02:01.5", "02:01.7", ("1 segment of 1 host", "db-2 1")),
        ("02:02.5", "02:03.0", ("2 segments of 1 host", "db-2 2")),
    ):
        times = (f"2026-11-20T00:{since}Z", "--until", f"2026-11-20T00:{until}Z")
        assert run(*count, *times)[::2] == (1, told.format(*whose))
    assert run(*count, "2026-11-20T00:02:04.5Z")[::2] == (0, "")
    assert run("query", "SELECT count(*) FROM block_rq_issue")[::2] == (0, "")


def test_hosts_that_an_answer_leaves_out_are_named(run: Run, store: Path) -> None:
    """Those that ship the ledger alone too; one that recorded nothing of it is another case."""
    with Shipped(Store.open(str(store))) as shipped:
        for name, event in (("led-1", f"sched:{SCHED}"), ("led-2", "oom:mark_victim")):
            nothing = {event: f"FROM ({switches(1, 2)}) LIMIT 0"}
            shipped.segment(Host(name), nothing, BEGIN_NS, SECOND, rule="ledger")
    status, text, errors = run("answer", "cpu-share")
    assert (status, "led-" in text) == (0, False)
    assert errors == (
        "collectord: 1 host has not recorded sched:sched_switch, by which cpu-share is given, and "
        "was left out: led-2\n"
        "collectord: 1 host has recorded what cpu-share needs, and not shipped the records, and "
        "was left out: led-1\n"
    )
    status, _, errors = run("answer", "cpu-share", "--host", "led-*")
    told = "needs sched:sched_switch, which no host that is asked has shipped"
    assert (status, errors) == (1, f"collectord: cpu-share {told}, though led-1 recorded it\n")


def test_segments_that_ship_the_ledger_alone_for_a_time_are_told(run: Run, store: Path) -> None:
    """They are no failure: the host's rule was changed, or chooses times around incidents."""
    events = {f"sched:{SCHED}": switches(1, 2)}
    without = {f"sched:{SCHED}": f"FROM ({switches(1, 2)}) LIMIT 0"}
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("db-2")
        begins_ns = BEGIN_NS + 120 * SECOND
        shipped.segment(host, events, begins_ns, SECOND)
        shipped.segment(host, without, begins_ns + SECOND, SECOND, rule="ledger")
        # Another session of the host has the records, or nobody has ever had them.
        shipped.segment(host, without, begins_ns, SECOND, session="other", rule="ledger")
        shipped.segment(Host("db-3"), without, begins_ns, SECOND, rule="ledger")
    told = (
        "collectord: the records of 1 segment of 1 host were not shipped, as their hosts are "
        "configured: db-2 1\n"
    )
    count = ("query", "SELECT count(*) FROM sched_switch")
    assert run(*count)[::2] == (0, told)
    assert told in run("answer", "cpu-share")[2]
    assert run(*count, "--until", "2026-11-20T00:02:00.9Z")[::2] == (0, "")
    assert run("query", "SELECT count(*) FROM block_rq_issue")[::2] == (0, "")


def test_so_many_commits_are_not_read_for_losses(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that needs none says so; one that has read them tells what it found."""
    monkeypatch.setattr(selection, "_FEW", 1)
    told = "whether records were lost was not looked at in so many segments"
    assert told in run("query", "SELECT count(*) FROM sched_switch")[2]
    assert run("query", "SELECT count(*) FROM sched_switch JOIN hosts USING (host)")[2] == ""
    assert run("answer", "slow-io")[2] == ""


@pytest.mark.parametrize(
    ("at", "damage"),
    [(4, b"\x0f" * 30), (40, bytes(600)), (-600, b"\x0f" * 300), (-8, b"")],
    ids=["head of a page", "page", "end", "cut"],
)
@pytest.mark.parametrize("form", [(), ("--parquet",)])
def test_a_damaged_object_is_named(
    run: Run, store: Path, at: int, damage: bytes, form: tuple[str, ...]
) -> None:
    """Wherever the damage is, and whether the engine's error names the object or not."""
    (one,) = store.glob(f"events/event={SCHED}/*/host=db-1/*")
    data = one.read_bytes()
    rest = data[at % len(data) + len(damage) :] if damage else b""
    one.write_bytes(data[:at] + damage + rest)
    words = [*form, *(str(store.parent / "out.parquet") for _ in form)]
    with pytest.raises(StoreError, match=f"damaged: {one.relative_to(store)}: ") as told:
        run("query", "FROM sched_switch", *words)
    assert told.value.key == str(one.relative_to(store))
    assert "--verify" in told.value.hint


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT no_such_name FROM sched_switch", "no_such_name"),
        ("SELECT count(*) FROM sched_switch WHERE 'x'::INTEGER > cpu", "Could not convert"),
    ],
)
def test_a_statement_that_is_wrong_has_no_object_looked_at(
    run: Run, store: Path, sql: str, message: str
) -> None:
    """The class of the error says so: a page that is damaged is not come upon."""
    (one,) = store.glob(f"events/event={SCHED}/*/host=db-1/*")
    data = one.read_bytes()
    one.write_bytes(data[:4] + b"\x0f" * 30 + data[34:])
    with pytest.raises(UsageError, match=message):
        run("query", sql)


def test_an_error_of_a_statement_is_no_damage(run: Run) -> None:
    """It stays as the engine has it."""
    with pytest.raises(UsageError, match="Could not convert string 'even' to INT32"):
        run("query", "SELECT prev_comm::INTEGER FROM sched_switch")
    with pytest.raises(UsageError, match="zstd"):
        run("query", "SELECT error('zstd') FROM sched_switch")


def test_a_commit_that_cannot_be_read_is_told(run: Run, store: Path) -> None:
    """The records of its segment are there, and nothing tells what it lacks: the status is 1."""
    one = next(store.glob("ledger/date=*/host=db-1/*.json"))
    one.write_bytes(b"x")
    count = "SELECT DISTINCT host FROM sched_switch ORDER BY host"
    status, text, errors = run("query", count)
    assert (status, text) == (1, "host\ndb-1\nweb-1\n")
    assert "nothing tells what its segment lacks: " in errors
    assert one.name in errors


def test_an_object_that_is_gone_is_told(run: Run, store: Path) -> None:
    """Its commit names it, so its records were left out: the status is 1."""
    (one,) = store.glob(f"events/event={SCHED}/*/host=db-1/*")
    one.unlink()
    status, text, errors = run("query", "SELECT DISTINCT host FROM sched_switch")
    assert (status, text) == (1, "host\nweb-1\n")
    assert "its records were left out: " in errors
    assert f"has no events/event={SCHED}/date=2026-11-20/host=db-1/" in errors
    assert run("answer", "cpu-share")[0] == 1
    assert run("answer", "slow-io")[0] == 0
    with pytest.raises(NotStored, match="which its commit names"):
        run("query", "FROM sched_switch", "--host", "db-1")


def test_incidents_are_of_hosts_with_labels(run: Run, store: Path) -> None:
    """Labels are those of the commits of a host, as for all other actions."""
    for host in ("db-1", "web-1"):
        _put_incident(store, host, "1-io", BEGIN_NS)
    hosts = [line.split()[2] for line in run("incidents")[1].splitlines()[1:]]
    assert hosts == ["db-1", "web-1"]
    status, text, errors = run("incidents", "--label", "role=web")
    assert (status, errors) == (0, "")
    assert [line.split()[2] for line in text.splitlines()[1:]] == ["web-1"]


def test_a_ledger_is_of_hosts_with_labels(run: Run) -> None:
    """The sums are of these alone."""
    status, text, errors = run("ledger", "--label", "role=web", *_SOON)
    assert (status, errors) == (0, "")
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["web-1", "all"]


def test_a_store_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the option, or by the variable."""
    monkeypatch.delenv("COLLECTORD_STORE", raising=False)
    with pytest.raises(UsageError, match="no store is named"):
        fleet.run(["ledger"])


def test_tables_are_made_for_other_engines(run: Run, store: Path) -> None:
    """A table for each event, and a file that is in none is told: the status is 1."""
    status, text, errors = run("tables")
    assert (status, errors) == (0, "")
    rows = [line.split() for line in text.splitlines()]
    assert ["sched_switch", "2", "200", "2", "0"] in rows
    again = {one["event"]: one for one in json.loads(run("tables", "--json")[1])["tables"]}
    assert (again[SCHED]["files"], again[SCHED]["added"]) == (2, 0)
    with pytest.raises(StoreConflict, match="and not at s3://other/place"):
        run("tables", "--location", "s3://other/place/")
    shutil.rmtree(store / "iceberg")
    for path in store.glob(f"events/event={ISSUE}/*/host=db-1/*"):
        path.write_bytes(b"PAR1")
    status, text, errors = run("tables")
    assert status == 1
    assert f"collectord: events/event={ISSUE}/date=" in errors
    assert "was left out" in errors


def test_tables_without_pyiceberg_say_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this action needs it."""
    for name in [name for name in sys.modules if name.startswith("collectord.fleet.iceberg")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg.io", None)
    with pytest.raises(CollectordError, match=r"needs pyiceberg\.io, which") as told:
        run("tables")
    assert "collectord[fleet,iceberg]" in told.value.hint
    assert run("ledger", *_SOON)[0] == 0
