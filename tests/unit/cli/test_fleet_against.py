# SPDX-License-Identifier: Apache-2.0
"""`fleet answer`, `ledger` and `incidents` with `--against`: what differs between two groups."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from collectord.errors import ConfigError, UsageError
from collectord.fleet.commit import Balance, Covered
from collectord.fleet.store import Store
from collectord.fleet.store_keys import CommitKey, IncidentKey
from tests.support import object_stores
from tests.support.answer_records import of_all_answers
from tests.support.fleets import BEGIN_NS, SECOND, WAKING, Host, Shipped, wakings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

# It makes a store of several hosts for most tests.
pytestmark = pytest.mark.slow

_ROLES: Final = ("--label", "role=db", "--against", "role=web")
_WAKINGS: Final = {
    "db-1": {("a", "b"): 30, ("a", "c"): 4},
    "web-1": {("a", "b"): 10},
    "web-2": {("a", "b"): 20, ("d", "e"): 6},
    "none-1": {("a", "b"): 1000},
}
_LOST: Final = {"db-1": 6}
# The hosts of the store have recorded long ago.
_SOON: Final = ("--until", "2026-11-20T00:10:00Z")
_OWN: Final = """\
-- summary = "wakings"
-- needs = [["sched:sched_waking"]]
{head}
SELECT comm, event_comm AS woken, count(*) AS times FROM sched_waking
GROUP BY comm, event_comm
ORDER BY times DESC
LIMIT 2
"""


@pytest.fixture(scope="module", autouse=True)
def _runtime() -> None:
    """Have obstore make what it keeps for the process, which is no leak of a test."""
    object_stores.start_runtime()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with one host of a role, two of another, and one of neither."""
    folder = tmp_path / "store"
    with Shipped(Store.open(str(folder), make=True)) as shipped:
        for name, counts in _WAKINGS.items():
            host = Host(name, labels={"role": name.partition("-")[0]})
            events = {f"sched:{WAKING}": wakings(counts)}
            shipped.segment(host, events, BEGIN_NS, 60 * SECOND, lost=_LOST.get(name, 0))
    return folder


def test_the_difference_of_an_answer_is_a_table(run: Run) -> None:
    """It has a line for each measure, and stderr says how many hosts are compared."""
    status, text, errors = run("answer", "who-woke-whom", *_ROLES)
    assert status == 0
    assert text == (
        "waker  woken  measure  group  against  difference  ratio\n"
        "a      b      wakeups     30       15         +15      2\n"
        "a      c      wakeups      4        0          +4      -\n"
        "d      e      wakeups      0        3          -3      0\n"
    )
    assert errors == (
        "collectord: 1 host of role=db against 2 hosts of role=web; sums are per host\n"
        "collectord: 6 records of 1 host were lost in what was read: db-1 6; `collectord fleet "
        "ledger` tells when and why\n"
    )


def test_the_difference_of_an_answer_is_json_csv_or_a_file(run: Run, tmp_path: Path) -> None:
    """They have a row for each key, with columns for each measure."""
    words = ("answer", "who-woke-whom", *_ROLES, "--param", "limit=1")
    row = {
        "waker": "a",
        "woken": "b",
        "wakeups": 30,
        "wakeups_against": 15,
        "wakeups_difference": 15,
        "wakeups_ratio": 2,
    }
    assert [json.loads(line) for line in run(*words, "--json")[1].splitlines()] == [row]
    names, cells = csv.reader(io.StringIO(run(*words, "--csv")[1]))
    assert names == [*row]
    assert cells == ["a", "b", "30.0", "15.0", "15.0", "2.0"]
    path = tmp_path / "out.parquet"
    assert run(*words, "--parquet", str(path))[0] == 0
    with duckdb.connect(":memory:") as connection:
        found = connection.execute("FROM read_parquet($path)", {"path": str(path)}).fetchall()
    assert found == [tuple(row.values())]


def test_groups_that_recorded_for_different_times_are_told(run: Run, store: Path) -> None:
    """More of a sum may be of more time."""
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("new-1", labels={"role": "new"})
        events = {f"sched:{WAKING}": wakings({("a", "b"): 1})}
        shipped.segment(host, events, BEGIN_NS, 600 * SECOND)
    words = ("answer", "who-woke-whom", "--label", "role=new", "--against", "role=web")
    told = "have recorded for 600 s each in role=new and 60 s each in role=web: sums"
    assert told in run(*words)[2]
    assert "have recorded" not in run("answer", "who-woke-whom", *_ROLES)[2]
    within = run(*words, "--until", "2026-11-20T00:01:00Z")[2]
    assert "have recorded" not in within
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("brief-1", labels={"role": "brief"})
        shipped.segment(host, events, BEGIN_NS + 59 * SECOND, SECOND // 20)
    words = ("answer", "who-woke-whom", "--label", "role=brief", "--against", "role=web")
    told = "have recorded for 0.05 s each in role=brief and 1 s each in role=web"
    assert told in run(*words, "--since", "2026-11-20T00:00:59Z")[2]


@pytest.mark.parametrize(
    ("between", "behind"),
    [({"problem": "it is damaged"}, {}), ({"rule": "ledger"}, {}), (None, {"passed_over": 1})],
    ids=["no rows", "ledger alone", "passed over"],
)
def test_times_without_rows_do_not_count_as_recorded(
    run: Run, store: Path, between: dict[str, Any] | None, behind: dict[str, Any]
) -> None:
    """The segments around them are of one run, whose records of that time are not there."""
    events = {f"sched:{WAKING}": wakings({("a", "b"): 1})}
    nothing = {f"sched:{WAKING}": f"FROM ({wakings({('a', 'b'): 1})}) LIMIT 0"}
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("new-1", labels={"role": "new"})
        shipped.segment(host, events, BEGIN_NS, 60 * SECOND)
        if between is not None:
            shipped.segment(host, nothing, BEGIN_NS + 60 * SECOND, 540 * SECOND, **between)
        shipped.segment(host, events, BEGIN_NS + 600 * SECOND, 60 * SECOND, **behind)
    words = ("answer", "who-woke-whom", "--label", "role=new", "--against", "role=web")
    status, _, errors = run(*words)
    assert "have recorded for 120 s each in role=new and 60 s each in role=web: sums" in errors
    assert (status, "though they should be: new-1 1;" in errors) == (
        (0, False) if between == {"rule": "ledger"} else (1, True)
    )


def test_the_time_of_an_object_that_is_gone_does_not_count(run: Run, store: Path) -> None:
    """It lies within a run, whose other segments are there."""
    events = {f"sched:{WAKING}": wakings({("a", "b"): 1})}
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("new-1", labels={"role": "new"})
        made = [
            shipped.segment(host, events, BEGIN_NS + since * SECOND, length * SECOND)
            for since, length in ((0, 60), (60, 540), (600, 60))
        ]
    (gone,) = (one.key for one in made[1].objects)
    (store / gone).unlink()
    status, _, errors = run(
        "answer", "who-woke-whom", "--label", "role=new", "--against", "role=web"
    )
    assert status == 1
    assert "have recorded for 120 s each in role=new and 60 s each in role=web: sums" in errors


def test_what_a_flight_recorder_has_overwritten_does_not_count(run: Run, store: Path) -> None:
    """A snapshot reaches back to its first record; what was before it is not recorded."""
    events = {f"sched:{WAKING}": wakings({("a", "b"): 1})}
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("new-1", labels={"role": "new"})
        shipped.segment(host, events, BEGIN_NS, 60 * SECOND)
        begins_ns, length_ns = BEGIN_NS + 60 * SECOND, 540 * SECOND
        balance = Balance(
            since_ns=begins_ns, until_ns=begins_ns + length_ns, stored=1, overwritten=1000
        )
        first_ns = begins_ns + 500 * SECOND
        shipped.segment(host, events, begins_ns, length_ns, balance=balance, first_ns=first_ns)
    words = ("answer", "who-woke-whom", "--label", "role=new", "--against", "role=web")
    assert "have recorded for 100 s each in role=new and 60 s each" in run(*words)[2]


def test_pauses_do_not_count_as_recorded(run: Run, store: Path) -> None:
    """A host that was paused for the whole of a time is not compared there."""
    events = {f"sched:{WAKING}": wakings({("a", "b"): 1})}
    paused = Covered(
        what="paused",
        cause="request",
        since_ns=BEGIN_NS + 10 * SECOND,
        until_ns=BEGIN_NS + 310 * SECOND,
    )
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("new-1", labels={"role": "new"})
        shipped.segment(host, events, BEGIN_NS, 480 * SECOND, covered=(paused,))
    words = ("answer", "who-woke-whom", "--label", "role=new", "--against", "role=web")
    told = "have recorded for 180 s each in role=new and 60 s each in role=web: sums"
    assert told in run(*words)[2]
    within = ("--since", "2026-11-20T00:00:20Z", "--until", "2026-11-20T00:00:40Z")
    status, _, errors = run(*words, *within)
    assert status == 1
    assert "new-1 did not record sched:sched_waking in the time that is asked for" in errors


def test_segments_whose_commits_cannot_be_read_are_not_compared(run: Run, store: Path) -> None:
    """Neither their time, which is not known, nor their records count."""
    events = {f"sched:{WAKING}": wakings({("a", "b"): 7})}
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("web-2", labels={"role": "web"})
        one = shipped.segment(host, events, BEGIN_NS + 60 * SECOND, 540 * SECOND)
    words = ("answer", "who-woke-whom", *_ROLES)
    assert run(*words)[1].splitlines()[1].split()[3:5] == ["30", "18.5"]
    (store / CommitKey(one.date, one.host, one.source).key).write_bytes(b"x")
    status, text, errors = run(*words)
    assert (status, text.splitlines()[1].split()[3:5]) == (1, ["30", "15"])
    assert "nothing tells what its segment lacks: " in errors
    assert "have recorded for" not in errors


@pytest.mark.parametrize(("engine", "word"), [("clickhouse", "FROM file("), ("spark", "`waker`")])
def test_the_statement_of_a_difference_is_shown(run: Run, engine: str, word: str) -> None:
    """For each engine, without asking it."""
    status, text, errors = run("answer", "who-woke-whom", *_ROLES, "--engine", engine, "--show")
    assert (status, errors) == (0, "")
    assert "groups_of_hosts" in text
    assert word in text


def test_hosts_are_groups_and_may_be_in_both(run: Run) -> None:
    """`host` is the name of a host, and one that counts twice is told."""
    status, text, errors = run(
        "answer", "who-woke-whom", "--host", "db-*", "--against", "host=web-*,role=web"
    )
    assert (status, text.splitlines()[1].split()[3:]) == (0, ["30", "15", "+15", "2"])
    assert "1 host of db-* against 2 hosts of host=web-*,role=web" in errors
    # A group that names no host is of all that have its labels.
    errors = run("answer", "who-woke-whom", "--host", "db-*", "--against", "role=web")[2]
    assert "1 host of db-* against 2 hosts of role=web" in errors
    errors = run("answer", "who-woke-whom", "--against", "role=web")[2]
    assert "4 hosts of all hosts against 2 hosts of role=web" in errors
    assert "web-1, web-2 are in both groups, and count in each" in errors
    errors = run("answer", "who-woke-whom", "--against", "host=db-1")[2]
    assert "db-1 is in both groups, and counts in each" in errors


def test_hosts_that_have_recorded_or_shipped_nothing_do_not_count(run: Run, store: Path) -> None:
    """Their number is told, as sums are for each of the others."""
    words = ("answer", "who-woke-whom", *_ROLES)
    some = wakings({("a", "b"): 1})
    cases: list[tuple[int, str, dict[str, Any]]] = [
        (3, "some:thing", {}),
        (4, f"sched:{WAKING}", {"rule": "ledger", "objects": ()}),
        (5, f"sched:{WAKING}", {"problem": "it is damaged", "objects": ()}),
    ]
    with Shipped(Store.open(str(store))) as shipped:
        for number, event, changes in cases:
            host = Host(f"web-{number}", labels={"role": "web"})
            shipped.segment(host, {event: some}, BEGIN_NS, SECOND, **changes)
            have = f"{number - 2} more {'has' if number == 3 else 'have'}"
            told = f"per host; {have} not recorded or shipped what who-woke-whom needs\n"
            assert told in run(*words)[2]


def test_a_host_whose_objects_are_gone_does_not_count(run: Run, store: Path) -> None:
    """One that has some of them does; each that is gone is told, and the status is 1."""
    words = ("answer", "who-woke-whom", *_ROLES)
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("web-2", labels={"role": "web"})
        events = {f"sched:{WAKING}": wakings({("a", "b"): 2})}
        shipped.segment(host, events, BEGIN_NS + 3600 * SECOND, SECOND)
    for one in store.rglob("events/**/host=web-1/*.parquet"):
        one.unlink()
    status, text, errors = run(*words)
    assert (status, text.splitlines()[1].split()[3:5]) == (1, ["30", "22"])
    assert "1 host of role=db against 1 host of role=web; sums are per host\n" in errors
    assert errors.count("which its commit names") == 1
    assert "host=web-1" in errors
    min(store.rglob("events/**/host=web-2/*.parquet")).unlink()
    status, text, errors = run(*words)
    assert status == 1
    assert "against 1 host of role=web; sums are per host\n" in errors
    assert errors.count("which its commit names") == 2


def _stale(store: Path, name: str) -> None:
    """Remove the objects of a host."""
    for path in store.rglob(f"events/**/host={name}/*.parquet"):
        path.unlink()


def test_each_reason_why_a_group_cannot_be_compared_is_told(run: Run, store: Path) -> None:
    """With all events that would do, and each host by what is missing of it."""
    words = ("answer", "who-woke-whom", "--label", "role=db", "--against", "role=new")
    waking = {f"sched:{WAKING}": f"FROM ({wakings({('a', 'b'): 1})}) LIMIT 0"}
    with Shipped(Store.open(str(store))) as shipped:
        labels = {"role": "new"}
        other = {"some:thing": wakings({("a", "b"): 1})}
        shipped.segment(Host("new-1", labels=labels), other, BEGIN_NS, SECOND)
        told = "who-woke-whom needs sched:sched_waking, or sched:sched_wakeup, and no host of "
        told += "role=new can be compared: "
        lacks = "new-1 did not record sched:sched_waking in the time that is asked for\n"
        assert f"{told}{lacks}" in run(*words)[2]
        shipped.segment(Host("new-2", labels=labels), waking, BEGIN_NS, SECOND, rule="ledger")
        own = "new-2 recorded it, and the records were not shipped; "
        assert f"{told}{own}{lacks}" in run(*words)[2]
        events = {f"sched:{WAKING}": wakings({("a", "b"): 1})}
        shipped.segment(Host("new-3", labels=labels), events, BEGIN_NS, SECOND)
    _stale(store, "new-3")
    status, text, errors = run(*words)
    assert (status, text) == (1, "")
    assert f"{told}the objects of new-3 are gone from the store; {own}{lacks}" in errors
    assert errors.count("which its commit names") == 1


def test_groups_are_compared_by_hosts_with_call_chains(run: Run, store: Path) -> None:
    """That a group has none is told, and that those of all hosts are gone from the store."""
    told = of_all_answers(1)
    switch = {"sched:sched_switch": told["sched:sched_switch"]}
    with Shipped(Store.open(str(store))) as shipped:
        for name in ("db-1", "web-1"):
            host = Host(name, labels={"role": name.partition("-")[0]})
            chains = {one: told[one] for one in ("frames", "stacks")} if name == "db-1" else {}
            shipped.segment(host, switch | chains, BEGIN_NS, 60 * SECOND, session="cpu")
    needs = "off-cpu-stacks needs "
    words = ("answer", "off-cpu-stacks", *_ROLES)
    status, _, errors = run(*words)
    assert status == 1
    assert f"{needs}sched:sched_switch, and no host of role=web can be compared: " in errors
    assert ": the records of web-1 have no call chains; web-2 did not record sched" in errors
    for path in store.rglob("events/event=stacks/**/*.parquet"):
        path.unlink()
    status, _, errors = run(*words)
    assert status == 1
    assert f"{needs}call chains of sched:sched_switch, which are gone from the store\n" in errors
    assert "has no events/event=stacks/date=2026-11-20/host=db-1/" in errors


def test_conditions_are_given_one_by_one_or_with_commas(run: Run, store: Path) -> None:
    """A host must meet all of them, and a comma that no key follows is part of a value."""
    with Shipped(Store.open(str(store))) as shipped:
        host = Host("web-3", labels={"role": "web", "place": "a,b"})
        shipped.segment(host, {f"sched:{WAKING}": wakings({("a", "b"): 7})}, BEGIN_NS, SECOND)
    words = ("answer", "who-woke-whom", "--label", "role=db")
    for against in (
        ("--against", "role=web", "--against", "place=a,b"),
        ("--against", "place=a,b,role=web"),
    ):
        status, text, errors = run(*words, *against)
        assert (status, text.splitlines()[1].split()[3:5]) == (0, ["30", "7"])
        assert f"1 host of role=db against 1 host of {','.join(against[1::2])}; sums" in errors


def test_an_answer_of_a_host_says_in_its_head_what_is_compared(run: Run, tmp_path: Path) -> None:
    """One that does not is refused; the limit of the statement is that of the differences."""
    own = tmp_path / "own"
    own.mkdir()
    path = own / "mine.sql"
    words = ("answer", "mine", *_ROLES, "--answer-dir", str(own))
    path.write_text(_OWN.format(head="--"))
    with pytest.raises(UsageError, match="does not say which rows of two hosts are of") as told:
        run(*words)
    assert "[compare]" in told.value.hint
    keys = '-- [compare]\n-- keys = ["comm", "woken"]'
    path.write_text(_OWN.format(head=f'{keys}\n-- [compare.measures]\n-- times = "sum"'))
    rows = [json.loads(line) for line in run(*words, "--json")[1].splitlines()]
    assert [row["times_difference"] for row in rows] == [15, 4]


@pytest.mark.parametrize(
    ("head", "column", "hint"),
    [
        (('"comm", "wokn"', 'times = "sum"'), "wokn", 'did you mean "woken"? its columns are'),
        (('"comm"', 'number = "max"'), "number", "its columns are comm, woken, times"),
        (('"comm"', 'times = "mean by pairs"'), "pairs", "its columns are comm, woken, times"),
    ],
)
def test_a_column_that_is_compared_must_be_one_of_the_statement(
    run: Run, tmp_path: Path, head: tuple[str, str], column: str, hint: str
) -> None:
    """The error has the file, the column, and those that there are; "rows" counts without one."""
    path = tmp_path / "mine.sql"
    words = ("answer", "mine", *_ROLES, "--answer-dir", str(tmp_path))
    compare = "-- [compare]\n-- keys = [{}]\n-- [compare.measures]\n-- {}"
    path.write_text(_OWN.format(head=compare.format(*head)))
    with pytest.raises(ConfigError, match=f"{path}: compare: .* no column {column}, ") as told:
        run(*words)
    assert told.value.hint.startswith(hint)
    path.write_text(_OWN.format(head=compare.format('"comm"', 'number = "rows"')))
    assert run(*words)[0] == 0


def test_the_ledgers_of_groups_are_side_by_side(run: Run) -> None:
    """Figures are those of all hosts of a group, with the difference for each host."""
    status, text, errors = run("ledger", *_ROLES, *_SOON)
    assert status == 1  # db-1 has lost records
    assert "1 host of role=db against 2 hosts of role=web" in errors
    rows = {
        " ".join(words[:-4]): words[-4:]
        for words in map(str.split, text.splitlines())
        if words[-1] != "HOST"
    }
    assert rows["exec produced"] == ["40", "36", "+4", "+22"]
    assert rows["exec stored"] == ["34", "36", "-2", "+16"]
    assert rows["exec lost"] == ["6", "0", "+6", "+6"]
    assert rows["exec kernel_ring/ring_full"] == ["6", "0", "+6", "+6"]
    assert rows["all silent hosts"] == ["0", "0", "0", "0"]
    assert "exec lost in % 15 0" in " ".join(text.split())
    assert "lost: db-1 exec: 6, kernel_ring/ring_full 6" in text
    assert run("ledger", "--label", "role=web", "--against", "role=none", *_SOON)[0] == 0


def test_the_ledgers_of_groups_are_json(run: Run) -> None:
    """With the hosts of each group, and the findings of both."""
    status, text, _ = run("ledger", *_ROLES, *_SOON, "--json")
    document = json.loads(text)
    assert (status, document["complete"]) == (1, False)
    assert document["end_ns"] == BEGIN_NS + 600 * SECOND
    assert document["groups"] == [
        {"name": "role=db", "hosts": ["db-1"], "silent": []},
        {"name": "role=web", "hosts": ["web-1", "web-2"], "silent": []},
    ]
    (session,) = document["sessions"]
    assert (session["session"], session["unit"]) == ("exec", "records")
    assert session["hosts"] == {"group": 1, "against": 2, "difference": -1}
    assert session["stored"] == {
        "group": 34,
        "against": 36,
        "difference": -2,
        "per_host": {"group": 34, "against": 18, "difference": 16},
    }
    assert session["lost_percent"] == {"group": 15, "against": 0, "difference": 15}
    assert session["lost_by"]["kernel_ring/ring_full"]["difference"] == 6
    assert [one["what"] for one in document["findings"]] == ["lost"]


def test_the_incidents_of_groups_are_side_by_side(run: Run, store: Path) -> None:
    """By trigger, and for each host."""
    opened = Store.open(str(store))
    for host, number, trigger in (
        ("db-1", 1, "io"),
        ("db-1", 2, "io"),
        ("web-1", 1, "io"),
        ("web-2", 1, "oom"),
        ("none-1", 1, "io"),
    ):
        note = {"id": f"{number}", "trigger": trigger, "hostname": host, "fired_ns": BEGIN_NS}
        key = IncidentKey(host, f"{number}", "incident.json").key
        opened.put_new(key, json.dumps(note).encode())
    status, text, errors = run("incidents", *_ROLES)
    assert status == 0
    assert "1 host of role=db against 2 hosts of role=web" in errors
    rows = [line.split() for line in text.splitlines()[1:]]
    assert rows == [
        ["io", "incidents", "2", "1", "+1", "+1.5"],
        ["io", "incidents", "of", "hosts", "2", "1", "+1", "+1.5"],
        ["io", "hosts", "1", "1", "0", "+0.5"],
        ["oom", "incidents", "0", "1", "-1", "-0.5"],
        ["oom", "incidents", "of", "hosts", "0", "1", "-1", "-0.5"],
        ["oom", "hosts", "0", "1", "-1", "-0.5"],
    ]
    document = json.loads(run("incidents", *_ROLES, "--json")[1])
    assert [group["hosts"] for group in document["groups"]] == [["db-1"], ["web-1", "web-2"]]
    assert [one["trigger"] for one in document["triggers"]] == ["io", "oom"]
    assert document["triggers"][0]["incidents"]["per_host"]["difference"] == 1.5


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("answer", "who-woke-whom", "--against", "role=wbe"), "no host of role=wbe has shipped"),
        (("ledger", "--against", "role=wbe"), "no host of role=wbe has shipped"),
        (("incidents", "--against", "role=wbe"), "no host of role=wbe has shipped"),
        (("flame", "--against", "role=wbe"), "no host of role=wbe has shipped"),
        (("ledger", "--against", "role"), "--against 'role' is not NAME=VALUE"),
        (("ledger", "--against", "role=db", "--against", "role"), "'role' is not NAME=VALUE"),
        (
            ("flame", "--against", "role=db", "--against", "role=x"),
            "--against role is given twice",
        ),
        (("query", "SELECT 1", "--against", "role=db"), "--against is an option of fleet answer"),
        (("incidents", "x", "--against", "role=db"), "x is of the hosts that had it"),
        (
            ("answer", "who-woke-whom", "--by", "role", "--against", "role=db"),
            "--by and --against do not go together",
        ),
    ],
)
def test_what_cannot_be_compared_is_told(run: Run, words: tuple[str, ...], problem: str) -> None:
    """In one line, with what to do."""
    with pytest.raises(UsageError, match=problem) as told:
        run(*words)
    if "wbe" in problem:
        assert told.value.hint == "there are hosts whose kernel is 6.12.0; role is db, none, web"
