# SPDX-License-Identifier: Apache-2.0
"""Segments that are of other days than their keys tell are found by questions of these days."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from collectord.fleet import commit as commits_of
from collectord.fleet.commit import Balance
from collectord.fleet.engines import ENGINES
from collectord.fleet.engines.place import Place
from collectord.fleet.multi_day_notes import multi_day_key, note_content
from collectord.fleet.questions import Asking
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.store import Store
from collectord.fleet.store_audit import fleet_ledger
from collectord.fleet.store_keys import LASTING, CommitKey, EventKey, day_of
from collectord.reader.event_file import Window
from tests.support.fleets import BEGIN_NS, DAY, SECOND, Host, Shipped
from tests.support.shipping import EVENT, commits_in, ship
from tests.support.shipping import Host as OneHost

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.fleet.commit import Commit
    from tests.support.object_stores import S3Server

# It makes a store of several hosts for most tests.
pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

_HOUR: Final = 3600 * SECOND
_DAYS: Final = 6
# A row at the beginning of each day.
_DAILY: Final = f"SELECT i AS n, i AS day, i * {DAY} AS after FROM range({_DAYS}) r(i)"  # noqa: S608
_ONE: Final = "SELECT 0 AS n, {day} AS day, 0 AS after"
_COUNT: Final = "SELECT host, list(day ORDER BY day) FROM x GROUP BY host ORDER BY host"


@pytest.fixture(params=["folder", "s3"])
def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Store:
    """Return a store of a host with one segment of six days, and of one with six of an hour."""
    if request.param == "folder":
        made = Store.open(str(tmp_path / "store"), make=True)
    else:
        options = s3_server.options()
        for name, value in options.items():
            monkeypatch.setenv(name.upper(), value)
        made = Store.open(s3_server.new_bucket(), options)
    with Shipped(made) as shipped:
        shipped.segment(Host("long"), {"some:x": _DAILY}, BEGIN_NS, _DAYS * DAY)
        short = Host("short")
        for day in range(_DAYS):
            events = {"some:x": _ONE.format(day=day)}
            shipped.segment(short, events, BEGIN_NS + day * DAY, _HOUR)
    return made


def _rows(store: Store, wanted: Wanted, engine: str = "duckdb") -> list[tuple[Any, ...]]:
    asking = Asking(Selection(store, wanted), Place(store), ENGINES[engine])
    with ExitStack() as stack:
        rows = ENGINES[engine].ask(asking.of_statement(_COUNT), asking.place, (), stack)
        return [row for batch in rows.batches() for row in batch]


def _since(day: int) -> Wanted:
    return Wanted(Window(BEGIN_NS + day * DAY))


def test_its_records_of_later_days_are_found(store: Store) -> None:
    """They were put with the day of the first one."""
    for day in range(_DAYS):
        later = [*range(day, _DAYS)]
        assert _rows(store, _since(day)) == [("long", later), ("short", later)]
        until = Wanted(Window(BEGIN_NS + day * DAY, BEGIN_NS + day * DAY + _HOUR))
        assert _rows(store, until) == [("long", [day]), ("short", [day])]


def test_nothing_else_of_its_first_day_is_read(store: Store) -> None:
    """Other objects of that day are passed over by their keys."""
    found = Selection(store, _since(4)).objects("x")
    days = {(parts.host, parts.date) for parts in Selection(store, _since(4)).committed.values()}
    assert days == {
        ("long", "2026-11-20"),
        *(("short", f"2026-11-{day}") for day in (23, 24, 25)),
    }
    assert len(found.keys) == 4
    (other,) = found.left_out
    assert "date=2026-11-20/host=short" in other


def test_other_hosts_have_no_part_in_it(store: Store) -> None:
    """A host is chosen by its name."""
    assert [*_rows(store, _since(5)._replace(hosts="short"))] == [("short", [5])]
    assert [*_rows(store, _since(5)._replace(hosts="long"))] == [("long", [5])]


def test_a_note_without_a_commit_is_of_nothing(tmp_path: Path) -> None:
    """The shipper was killed before it put the commit."""
    store = Store.open(str(tmp_path / "store"), make=True)
    with Shipped(store) as shipped:
        events = {"some:x": _DAILY}
        shipped.segment(Host("long"), events, BEGIN_NS, _DAYS * DAY, is_committed=False)
        shipped.segment(Host("short"), events, BEGIN_NS + 4 * DAY, SECOND)
    assert [*store.objects(LASTING)]
    assert Selection(store, _since(4)).hosts == ["short"]


@pytest.mark.parametrize(
    "window",
    [
        Window(BEGIN_NS + 6 * DAY, BEGIN_NS + 6 * DAY + _HOUR),
        Window(BEGIN_NS + 6 * DAY),
        Window(None, BEGIN_NS + DAY),
    ],
)
def test_a_quiet_segment_tells_of_all_its_days(tmp_path: Path, window: Window) -> None:
    """Its only record came on the fourth day: it was recording on all others, too."""
    store = Store.open(str(tmp_path / "store"), make=True)
    balance = Balance(
        since_ns=BEGIN_NS, until_ns=BEGIN_NS + 7 * DAY, basis="exact", produced=1, stored=1, lost=0
    )
    with Shipped(store) as shipped:
        events = {"some:x": _ONE.format(day=3)}
        shipped.segment(Host("quiet"), events, BEGIN_NS + 3 * DAY, SECOND, balance=balance)
    ledger = fleet_ledger(
        Selection(store, Wanted(window)), None, _HOUR, now_ns=BEGIN_NS + 7 * DAY, verify=True
    )
    assert [one.host for one in ledger.sessions] == ["quiet"]
    assert [one for one in ledger.findings if one.what != "sum"] == []


def _commit(first_ns: int, last_ns: int, since_ns: int, until_ns: int) -> Commit:
    return commits_of.Commit(
        source="ab" * 32,
        host="h",
        session="s",
        kind="perf",
        format="perf.data",
        boot_id="b",
        kernel="6",
        date=day_of(first_ns),
        segment="0",
        started_ns=since_ns,
        first_ns=first_ns,
        last_ns=last_ns,
        balance=Balance(since_ns=since_ns, until_ns=until_ns),
        rule="columns",
        manifests=("{}",),
        shipped_ns=until_ns,
    )


_TIMES: Final = st.integers(-5 * 24, 5 * 24).map(lambda hours: BEGIN_NS + hours * _HOUR)


@given(
    times=st.lists(_TIMES, min_size=4, max_size=4).map(sorted), window=st.tuples(_TIMES, _TIMES)
)
def test_each_segment_of_a_time_is_found(times: list[int], window: tuple[int, int]) -> None:
    """Whatever its length is; and one whose time is days away is not."""
    since_ns, first_ns, last_ns, until_ns = times
    begin_ns, end_ns = sorted(window)
    store = Store("memory", MemoryStore())
    one = _commit(first_ns, last_ns, since_ns, until_ns)
    lasting = multi_day_key(one)
    if lasting is not None:
        store.put_new(lasting.key, note_content(lasting))
    key = CommitKey(one.date, one.host, one.source)
    store.put_new(key.key, commits_of.encode(one))
    found = Selection(store, Wanted(Window(begin_ns, end_ns))).committed
    if since_ns <= end_ns and until_ns >= begin_ns:
        assert [*found.values()] == [key]
    elif since_ns > end_ns + DAY or until_ns < begin_ns - 2 * DAY:
        assert not found


def test_segments_within_a_day_and_the_next_have_no_note() -> None:
    """Nearly all are such ones, for which nothing more is put."""
    last_ns = BEGIN_NS + 2 * DAY - 1
    assert multi_day_key(_commit(BEGIN_NS, last_ns, BEGIN_NS, last_ns)) is None
    assert multi_day_key(_commit(BEGIN_NS, last_ns, BEGIN_NS, last_ns + 1)) is not None
    assert multi_day_key(_commit(BEGIN_NS, last_ns, BEGIN_NS - 1, last_ns)) is not None


@pytest.fixture
def host(tmp_path: Path) -> OneHost:
    """Return a host with a segment that lasted for five days, as its manifest says."""
    made = OneHost(tmp_path / "host")
    (path,) = made.record(1)
    manifest = path.with_name(f"{path.name}.json")
    told = json.loads(manifest.read_text())
    told["last_ns"] += 5 * DAY
    manifest.write_text(json.dumps(told))
    return made


def test_the_shipper_notes_it_once(host: OneHost, tmp_path: Path) -> None:
    """Before the commit, which has the note as one of its objects."""
    url = str(tmp_path / "store")
    assert ship(host, url).failed == 0
    store = Store.open(url)
    (note,) = store.objects(LASTING)
    ((key, one),) = commits_in(store).items()
    assert store.get(note.key, 4096).decode() == f"{key}\n"
    assert note.key in {stored.key for stored in one.objects}
    assert store.digest(note.key)[1] in {stored.sha256 for stored in one.objects}
    after = Window(int(one.first_ns or 0) + 4 * DAY)
    found = Selection(store, Wanted(after)).objects(EVENT).keys
    assert found == (EventKey(EVENT, one.date, one.host, one.source).key,)


def test_a_note_that_is_not_there_keeps_the_commit_back(
    host: OneHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store claims to have put it; the next attempt puts both."""
    url = str(tmp_path / "store")
    put_new = Store.put_new

    def lie(store: Store, key: str, data: bytes | Path) -> bool:
        return key.startswith(LASTING) or put_new(store, key, data)

    monkeypatch.setattr(Store, "put_new", lie)
    assert ship(host, url).failed == 1
    assert commits_in(Store.open(url)) == {}
    monkeypatch.setattr(Store, "put_new", put_new)
    assert ship(host, url).failed == 0
    assert len(commits_in(Store.open(url))) == 1
    assert len([*Store.open(url).objects(LASTING)]) == 1
