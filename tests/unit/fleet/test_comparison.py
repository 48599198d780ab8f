# SPDX-License-Identifier: Apache-2.0
"""An answer's difference between two groups of hosts, beside the rows of each host."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import answer_file
from collectord.fleet.comparison import FORMS, GROUP, GROUPS, NO_LIMIT, Columns, compared
from collectord.fleet.dialect import CLICKHOUSE, DUCKDB, SPARK
from collectord.fleet.engines import ENGINES
from collectord.fleet.engines.place import Place
from collectord.fleet.groups import groups_of
from collectord.fleet.per_host_statement import HOST, per_host_statement
from collectord.fleet.questions import AskedAnswer, Asking
from collectord.fleet.required_events import NotShipped, RequiredEvents
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.sql_tree import parsed, text_for
from collectord.fleet.store import Store
from collectord.programs.parameter import values_of
from collectord.reader.event_file import Window
from tests.support.fleets import (
    BEGIN_NS,
    COMPLETE,
    ISSUE,
    MINUTE,
    SCHED,
    WAKING,
    Host,
    Shipped,
    requests,
    switches,
    wakings,
)

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.fleet.comparison import Measure
    from collectord.fleet.groups import Groups
    from collectord.fleet.question import Question

    Row = dict[str, Any]

# It makes a store of several hosts for most tests.
pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

_WAKINGS: Final = {
    "db-1": {("a", "b"): 30, ("a", "c"): 4},
    "web-1": {("a", "b"): 10},
    "web-2": {("a", "b"): 20, ("d", "e"): 6},
    "none-1": {("a", "b"): 1000},
}
_UNLIKE: Final = ("syscall_names", "errno_names")


def _role(role: str, window: Window = Window()) -> Wanted:  # noqa: B008  # never changed
    return Wanted(window, labels={"role": role})


_DB_AND_WEB: Final = _role("db")._replace(also=_role("web"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with one host of a role, two of another, and one of neither."""
    made = Store.open(str(tmp_path / "store"), make=True)
    with Shipped(made) as shipped:
        for number, (name, counts) in enumerate(_WAKINGS.items()):
            events = {
                f"sched:{SCHED}": switches(number, 100 + 50 * number),
                f"block:{ISSUE}": requests(number, 10 + number, step=1),
                f"block:{COMPLETE}": requests(number, 10 + number, step=2),
                f"sched:{WAKING}": wakings(counts),
            }
            host = Host(name, labels={"role": name.partition("-")[0]})
            shipped.segment(host, events, BEGIN_NS, MINUTE)
    return made


def _asking(store: Store, wanted: Wanted, session: str | None = None) -> Asking:
    return Asking(Selection(store, wanted), Place(store), ENGINES["duckdb"], session)


def _asked(asking: Asking, question: Question) -> list[Row]:
    with ExitStack() as stack:
        answer = ENGINES["duckdb"].ask(question, asking.place, (), stack)
        return [
            dict(zip(answer.columns, row, strict=True))
            for batch in answer.batches()
            for row in batch
        ]


def _answer(name: str) -> tuple[AskedAnswer, Columns]:
    one = answer_file.load(name)
    values: dict[str, int | str] = {**values_of(name, one.head.parameter, {})}
    if "limit" in values:
        values["limit"] = NO_LIMIT
    needs = RequiredEvents(one.head.needs, one.head.optional, one.head.columns)
    compare = one.head.compare
    assert compare is not None
    return AskedAnswer(one.text, needs, values), Columns.of(compare.keys, compare.measures)


def _comparison(
    store: Store,
    name: str,
    wanted: Wanted = _DB_AND_WEB,
    limit: int | None = None,
    session: str | None = None,
) -> tuple[Question, Groups, list[Row]]:
    asking = _asking(store, wanted, session)
    groups = groups_of(Selection(store, wanted), "group", "against")
    asked, columns = _answer(name)
    made = asking.of_comparison(asked, columns, groups, limit)
    return made.question, made.groups, _asked(asking, made.question)


def test_a_difference_is_per_host_and_the_largest_comes_first(store: Store) -> None:
    """Groups of one host and of two are compared by what each host has; others are not read."""
    question, groups, rows = _comparison(store, "who-woke-whom")
    assert [len(group.hosts) for group in groups] == [1, 2]
    assert [[*row.values()] for row in rows] == [
        ["a", "b", 30, 15, 15, 2],
        ["a", "c", 4, 0, 4, None],
        ["d", "e", 0, 3, -3, 0],
    ]
    assert [*rows[0]] == ["waker", "woken", *(f"wakeups{form}" for form in FORMS)]
    hosts = {re.findall("host=([^/]+)", key)[0] for one in question.objects for key in one.keys}
    assert hosts == {"db-1", "web-1", "web-2"}


def test_a_limit_is_of_differences(store: Store) -> None:
    """It leaves out no row of a host before."""
    rows = _comparison(store, "who-woke-whom", limit=1)[2]
    assert [row["wakeups_difference"] for row in rows] == [15]
    rows = _comparison(store, "who-woke-whom", _role("web")._replace(also=_role("db")), 1)[2]
    assert [row["wakeups_difference"] for row in rows] == [-15]


def test_a_host_of_both_groups_counts_in_each(store: Store) -> None:
    """Groups may have hosts in common."""
    wanted = Wanted(Window(), "*-1", also=Wanted(Window(), "web-*"))
    _, groups, rows = _comparison(store, "who-woke-whom", wanted)
    assert groups.shared == ["web-1"]
    assert rows[0]["wakeups"] == pytest.approx(1040 / 3, abs=1e-3)
    assert rows[0]["wakeups_against"] == 15


def test_a_window_of_a_host_of_both_groups_has_its_rows_once(store: Store) -> None:
    """The last part of a statement has a window of a host for each group that it is in."""
    wanted = Wanted(Window(), "web-*", also=Wanted(Window(), "web-2"))
    sql = (
        "SELECT event_comm AS woken, count(*) AS times, sum(count(*)) OVER () AS of_all "
        "FROM sched_waking GROUP BY event_comm LIMIT 1"
    )
    needs = RequiredEvents([["sched:sched_waking"]], (), {})
    columns = Columns.of(["woken"], {"times": "sum", "of_all": "max"})
    asking = _asking(store, wanted)
    groups = groups_of(Selection(store, wanted), "web-*", "web-2")
    made = asking.of_comparison(AskedAnswer(sql, needs, {}), columns, groups, None)
    (row,) = _asked(asking, made.question)
    assert (row["woken"], row["times"], row["times_against"]) == ("b", 15, 20)
    assert (row["of_all"], row["of_all_against"]) == (26, 26)


@pytest.mark.parametrize("name", ["cpu-share", "off-cpu", "io-latency", "slow-io", "cpu-timeline"])
def test_figures_are_those_of_the_rows_of_each_host(store: Store, name: str) -> None:
    """Sums, maxima and means of a group are of the rows that each of its hosts alone gives."""
    asked, columns = _answer(name)
    _, groups, rows = _comparison(store, name)
    asking = _asking(store, _DB_AND_WEB)
    alone = _asked(asking, asking.of_answer(*asked, (HOST,)))
    assert rows
    assert {_key(row, columns) for row in rows} == {_key(row, columns) for row in alone}
    for row in rows:
        for measure in columns.measures:
            for group, form in zip(groups, FORMS, strict=False):
                own = [
                    one
                    for one in alone
                    if one["host"] in group.hosts and _key(one, columns) == _key(row, columns)
                ]
                expected = _together(measure, own, len(group.hosts))
                assert row[measure.name + form] == (
                    None if expected is None else pytest.approx(expected, abs=2e-3)
                )


def _key(row: Row, columns: Columns) -> tuple[Any, ...]:
    return tuple(row[key] for key in columns.keys)


def _together(measure: Measure, rows: list[Row], hosts: int) -> float | None:
    if measure.how == "rows":
        return len(rows) / hosts
    values = [float(row[measure.name]) for row in rows]
    if measure.how == "sum":
        return sum(values) / hosts
    if not values:
        return None
    if measure.how == "max":
        return max(values)
    weights = [float(row[measure.weight]) for row in rows]
    return sum(a * b for a, b in zip(values, weights, strict=True)) / sum(weights)


def test_hosts_that_recorded_nothing_of_it_do_not_count(store: Store) -> None:
    """Sums are for each host that recorded the events, and a group without one is told."""
    with Shipped(store) as shipped:
        for name in ("web-3", "idle-1"):
            host = Host(name, labels={"role": name.partition("-")[0]})
            shipped.segment(host, {f"sched:{SCHED}": switches(1, 9)}, BEGIN_NS, MINUTE)
    assert len(_comparison(store, "who-woke-whom")[1].against.hosts) == 2
    wanted = _role("db")._replace(also=_role("idle"))
    with pytest.raises(NotShipped, match="waking, or sched:sched_wakeup, and no host of against"):
        _comparison(store, "who-woke-whom", wanted)


def test_hosts_count_that_recorded_for_some_of_the_time(store: Store) -> None:
    """A host of the same day counts in the minute that it recorded, without a record as well."""
    with Shipped(store) as shipped:
        host = Host("web-2", labels={"role": "web"}, run_number=2)
        events = {f"sched:{WAKING}": wakings({("a", "b"): 8})}
        shipped.segment(host, events, BEGIN_NS + 10 * MINUTE, MINUTE)
        idle = {f"sched:{WAKING}": f"FROM ({wakings({('a', 'b'): 1})}) LIMIT 0"}
        for name in ("db-1", "web-3"):
            host = Host(name, labels={"role": name.partition("-")[0]}, run_number=2)
            shipped.segment(host, idle, BEGIN_NS + 10 * MINUTE, MINUTE)
    later = Window(BEGIN_NS + 10 * MINUTE, BEGIN_NS + 11 * MINUTE)
    _, groups, rows = _comparison(
        store, "who-woke-whom", _role("db", later)._replace(also=_role("web", later))
    )
    assert [group.hosts for group in groups] == [("db-1",), ("web-2", "web-3")]
    assert [(row["wakeups"], row["wakeups_against"]) for row in rows] == [(0, 4)]
    between = Window(BEGIN_NS + 2 * MINUTE, BEGIN_NS + 3 * MINUTE)
    wanted = _role("db", between)._replace(also=_role("web", between))
    with pytest.raises(NotShipped, match="no host that is asked has shipped of that time"):
        _comparison(store, "who-woke-whom", wanted)


def test_hosts_count_that_recorded_in_the_session(store: Store) -> None:
    """Records of another session are not there, so a host that has these alone does not count."""
    with Shipped(store) as shipped:
        events = {f"sched:{WAKING}": wakings({("a", "b"): 100})}
        host = Host("web-3", labels={"role": "web"})
        shipped.segment(host, events, BEGIN_NS, MINUTE, session="other")
    _, groups, rows = _comparison(store, "who-woke-whom", session="exec")
    assert groups.against.hosts == ("web-1", "web-2")
    assert rows[0]["wakeups_against"] == 15


@pytest.mark.parametrize("engine", [DUCKDB, CLICKHOUSE, SPARK])
@pytest.mark.parametrize("name", answer_file.load_all())
def test_every_shipped_answer_can_be_compared(name: str, engine: str) -> None:
    """Its head names columns that it has, and each engine has a statement."""
    asked, columns = _answer(name)
    tree = per_host_statement(parsed(asked.sql, asked.values), _UNLIKE, (HOST, GROUP), GROUPS)
    named = {*tree.named_selects}
    weights = [measure.weight for measure in columns.measures if measure.weight]
    read = [measure.name for measure in columns.measures if measure.how != "rows"]
    assert named >= {*columns.keys, *read, *weights}
    text = text_for(compared(tree, columns, (1, 2), 5), engine)
    assert text.endswith("LIMIT 5")
    assert "rows_of_groups" in text
