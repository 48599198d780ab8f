# SPDX-License-Identifier: Apache-2.0
"""The ledger of the fleet from the store alone, and what is found when the store is not whole."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from collectord.fleet import commit as commits_of
from collectord.fleet.commit import Covered, Previous
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.store import Store
from collectord.fleet.store_audit import fleet_ledger
from collectord.fleet.store_keys import CommitKey
from collectord.reader.event_file import Window
from tests.support.fleets import BEGIN_NS, DAY, MINUTE, SCHED, SECOND, Host, Shipped, switches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectord.fleet.commit import Commit
    from collectord.fleet.store_audit import FleetLedger

_HOUR: Final = 3600 * SECOND


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the folder of a store."""
    return tmp_path / "store"


@pytest.fixture
def shipped(root: Path) -> Iterator[Shipped]:
    """Put what a test says."""
    with Shipped(Store.open(str(root), make=True)) as made:
        yield made


def _put(shipped: Shipped, host: Host, times: int = 3, **values: object) -> list[Commit]:
    events = {f"sched:{SCHED}": switches(1, 50)}
    return [
        shipped.segment(host, events, BEGIN_NS + n * MINUTE, MINUTE, **values)  # type: ignore[arg-type]
        for n in range(times)
    ]


def _ledger(
    shipped: Shipped,
    window: Window | None = None,
    *,
    now_ns: int = BEGIN_NS,
    session: str | None = None,
) -> FleetLedger:
    selection = Selection(shipped.store, Wanted(window or Window()))
    return fleet_ledger(selection, session, _HOUR, now_ns=now_ns, verify=True)


def _whats(ledger: FleetLedger) -> list[str]:
    return [one.what for one in ledger.findings]


def _key(one: Commit) -> str:
    return CommitKey(one.date, one.host, one.source).key


def _path(root: Path, one: Commit) -> Path:
    return root / _key(one)


def test_sums_of_all_hosts_are_those_of_their_manifests(shipped: Shipped) -> None:
    """A whole fleet is complete, and its figures are the produced and stored records."""
    for name in ("a", "b"):
        host = Host(name)
        for session in ("exec", "more"):
            _put(shipped, host, session=session)
    ledger = _ledger(shipped)
    assert ledger.findings == []
    assert {(one.host, one.session): one.figures.produced for one in ledger.sessions} == (
        shipped.produced
    )
    total = ledger.sums()["records"]
    assert total.produced == total.stored == total.rows == sum(shipped.produced.values())
    assert ledger.checked["objects"] == ledger.checked["commits"] == 12


def test_losses_gaps_and_what_was_not_shipped_are_findings(shipped: Shipped) -> None:
    """Each has its host, its session, its time and its number."""
    gap = Covered(what="gap", cause="kill", since_ns=BEGIN_NS, until_ns=BEGIN_NS + SECOND)
    _put(shipped, Host("a"), 1, lost=7, covered=(gap,), passed_over=1, problem="no rows")
    ledger = _ledger(shipped)
    assert sorted(_whats(ledger)) == ["gap", "lost", "passed over", "rows"]
    lost = next(one for one in ledger.findings if one.what == "lost")
    assert (lost.host, lost.session, lost.events) == ("a", "exec", 7)
    assert lost.detail == "kernel_ring/ring_full 7"
    assert ledger.sessions[0].figures.lost == 7
    passed = next(one for one in ledger.findings if one.what == "passed over")
    assert passed.detail == "1 segment before 000000.perf.data was not shipped"


def test_a_silent_host_is_named(shipped: Shipped) -> None:
    """One that tells nothing of the end of the time is silent, since its last segment."""
    _put(shipped, Host("a"))
    host = Host("b")
    for n in range(2):
        shipped.segment(host, {f"sched:{SCHED}": switches(1, 5)}, BEGIN_NS + n * 3 * _HOUR, MINUTE)
    now_ns = BEGIN_NS + 4 * _HOUR
    ledger = _ledger(shipped, now_ns=now_ns)
    assert _whats(ledger) == ["silent"]
    (silent,) = ledger.findings
    assert (silent.host, silent.since_ns, silent.until_ns) == ("a", BEGIN_NS + 3 * MINUTE, now_ns)
    assert ledger.to_json()["end_ns"] == now_ns


def test_hosts_are_silent_though_no_other_tells_anything(shipped: Shipped) -> None:
    """A host alone is judged by the end of the time, which ends now if not before."""
    _put(shipped, Host("a"))
    later_ns = BEGIN_NS + 4 * _HOUR
    assert _whats(_ledger(shipped, now_ns=later_ns)) == ["silent"]
    assert _whats(_ledger(shipped, Window(None, later_ns), now_ns=BEGIN_NS + _HOUR)) == []
    assert _whats(_ledger(shipped, Window(None, BEGIN_NS + _HOUR), now_ns=later_ns)) == []


def test_hosts_that_never_had_a_session_are_not_silent_about_it(shipped: Shipped) -> None:
    """The others are, if they tell nothing of it at the end."""
    _put(shipped, Host("a"), session="more")
    _put(shipped, Host("b"))
    later_ns = BEGIN_NS + 4 * _HOUR
    for session, host in (("more", "a"), ("exec", "b")):
        found = _ledger(shipped, now_ns=later_ns, session=session).findings
        assert [(one.what, one.host) for one in found] == [("silent", host)]


def test_a_time_has_the_segments_that_are_in_it(shipped: Shipped) -> None:
    """Segments of other times do not count, and their links are followed nevertheless."""
    host = Host("a")
    for n in range(3):
        shipped.segment(host, {f"sched:{SCHED}": switches(1, 5)}, BEGIN_NS + n * 3 * DAY, MINUTE)
    ledger = _ledger(shipped, Window(BEGIN_NS + 6 * DAY, BEGIN_NS + 7 * DAY))
    assert ledger.findings == []
    assert ledger.sessions[0].figures.segments == 1


def test_a_commit_that_is_gone_or_changed_breaks_the_chain(shipped: Shipped, root: Path) -> None:
    """Whoever removes a commit, or lies in it, is found by the next one."""
    first, second, _ = _put(shipped, Host("a"))
    _path(root, second).unlink()
    found = _ledger(shipped).findings
    assert [one.what for one in found if one.what == "chain"] == ["chain"]
    (detail,) = [one.detail for one in found if one.what == "chain"]
    words = "the commit of 00000{}.perf.data follows {}, which"
    assert detail == f"{words.format(2, _key(second))} is not in the store"
    changed = msgspec.structs.replace(first, shipped_ns=first.shipped_ns + 1)
    _path(root, second).write_bytes(commits_of.encode(second))
    _path(root, first).write_bytes(commits_of.encode(changed))
    found = _ledger(shipped).findings
    (detail,) = [one.detail for one in found]
    assert detail.startswith(f"{words.format(1, _key(first))} was changed: its SHA-256 was ")


def test_a_balance_that_is_changed_in_the_last_commit_is_found(
    shipped: Shipped, root: Path
) -> None:
    """No commit follows the last one: its figures must be those of the manifests."""
    last = _put(shipped, Host("a"))[-1]
    balance = msgspec.structs.replace(last.balance, produced=55, lost=5)
    _path(root, last).write_bytes(
        commits_of.encode(msgspec.structs.replace(last, balance=balance))
    )
    assert _whats(_ledger(shipped)).count("sum") == 2


def test_manifests_that_are_changed_are_found(shipped: Shipped, root: Path) -> None:
    """The source is the hash of the manifest."""
    (one,) = _put(shipped, Host("a"), 1)
    text = one.manifests[0].replace('"scope": "system"', '"scope": "other"')
    changed = msgspec.structs.replace(one, manifests=(text,))
    _path(root, one).write_bytes(commits_of.encode(changed))
    assert _whats(_ledger(shipped)) == ["commit"]


def test_an_object_that_is_gone_or_changed_is_found(shipped: Shipped, root: Path) -> None:
    """Each is read, and has the hash that its commit tells."""
    first, second, _ = _put(shipped, Host("a"))
    (root / first.objects[0].key).unlink()
    path = root / second.objects[0].key
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    details = [one.detail for one in _ledger(shipped).findings if one.what == "object"]
    assert details == [
        f"{first.objects[0].key} of 000000.perf.data is not in the store",
        (
            f"{second.objects[0].key} of 000001.perf.data was changed: {len(data):,} bytes with "
            f"the SHA-256 {second.objects[0].sha256} were put, and {len(data):,} with {sha256} "
            "are there"
        ),
    ]


def test_a_chain_that_begins_anew_or_forks_is_found(shipped: Shipped) -> None:
    """One commit of a stream has none before it, and one follows each."""
    host = Host("a")
    _put(shipped, host)
    before = host.previous["exec"]
    host.previous.clear()
    _put(shipped, host, 1, date="2026-11-21")
    details = [one.detail for one in _ledger(shipped).findings if one.what == "chain"]
    (detail,) = details
    assert detail == (
        "the commits of 000000.perf.data of 2026-11-20, 000003.perf.data of 2026-11-21 follow no "
        "other, and only the first one of perf.data can"
    )
    host.previous["exec"] = before
    _put(shipped, host, 1, date="2026-11-22")
    host.previous["exec"] = before
    _put(shipped, host, 1, date="2026-11-23")
    details = [one.detail for one in _ledger(shipped).findings if one.what == "chain"]
    assert (
        "the commits of 000004.perf.data of 2026-11-22, 000005.perf.data of 2026-11-23 all follow "
        f"{before.key}, and only one can"
    ) in details


@pytest.mark.parametrize("window", [Window(), Window(BEGIN_NS + 3 * DAY)])
def test_a_commit_that_follows_another_chain_is_found(shipped: Shipped, window: Window) -> None:
    """The one before it may be of a day that is not asked for, and is read then."""
    (other,) = _put(shipped, Host("b"), 1)
    host = Host("a")
    _put(shipped, host, 1)
    host.previous["exec"] = Previous(
        key=_key(other), source=other.source, sha256=commits_of.digest(commits_of.encode(other))
    )
    events = {f"sched:{SCHED}": switches(1, 5)}
    shipped.segment(host, events, BEGIN_NS + 5 * DAY, MINUTE)
    (found,) = [one for one in _ledger(shipped, window).findings if one.what == "chain"]
    assert found.host == "a"
    assert found.detail == (
        f"the commit of 000001.perf.data follows {_key(other)}, which is of another chain: "
        "perf.data of exec of b"
    )


def test_a_commit_that_was_copied_is_found(shipped: Shipped, root: Path) -> None:
    """It would count twice; its key is not the one that it tells."""
    (one,) = _put(shipped, Host("a"), 1)
    copy = _path(root, one).parent.with_name("host=b") / f"{one.source}.json"
    copy.parent.mkdir()
    shutil.copy(_path(root, one), copy)
    (found,) = [found for found in _ledger(shipped).findings if found.what == "commit"]
    assert found.detail == (
        f"{copy.relative_to(root)} has the commit of {one.segment} that belongs to {_key(one)}"
    )


def test_a_damaged_commit_is_a_finding(shipped: Shipped, root: Path) -> None:
    """It is named, and the rest is told."""
    first, _ = _put(shipped, Host("a"), 2)
    _path(root, first).write_bytes(b"{}")
    ledger = _ledger(shipped)
    assert "commit" in _whats(ledger)
    assert ledger.sessions[0].figures.segments == 1


def test_json_has_all(shipped: Shipped) -> None:
    """The document has sums, sessions and findings as plain data."""
    _put(shipped, Host("a"), 1, lost=1)
    document = msgspec.json.decode(msgspec.json.encode(_ledger(shipped).to_json()))
    assert document["complete"] is False
    (session,) = document["sessions"]
    assert session["lost_by"] == {"kernel_ring/ring_full": 1}
    assert session["plans"] == ["c" * 64]
    assert session["shipped_ns"] == BEGIN_NS + MINUTE + SECOND
    assert document["all"]["records"]["produced"] == 51
