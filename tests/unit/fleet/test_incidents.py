# SPDX-License-Identifier: Apache-2.0
"""Incidents in a store: those of one alert on several hosts are one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from collectord.fleet.incidents import fleet_incidents
from collectord.fleet.selection import Wanted
from collectord.fleet.store import Store
from collectord.fleet.store_keys import IncidentKey
from collectord.reader.event_file import Window
from tests.support.alerts import FINGERPRINT, alert
from tests.support.fleets import BEGIN_NS, DAY, SECOND

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store.open(str(tmp_path / "store"), make=True)


def _put(store: Store, host: str, name: str, fired_ns: int, **values: object) -> None:
    note = {"id": name, "trigger": "io-stall", "kind": "pressure", "reason": "slow", **values}
    note |= {"hostname": host, "fired_ns": fired_ns, "taken_ns": fired_ns, "schema": 1}
    store.put_new(IncidentKey(host, name, "summary.txt").key, b"what happened\n")
    store.put_new(IncidentKey(host, name, "incident.json").key, json.dumps(note).encode())


def test_incidents_of_one_alert_are_one(store: Store) -> None:
    """The host that was first comes first; others without the alert stand alone, newest first."""
    alerts = [alert()]
    _put(store, "b", "2-alert", BEGIN_NS + SECOND, alerts=alerts)
    _put(store, "a", "1-io", BEGIN_NS, alerts=alerts)
    _put(store, "c", "1-io", BEGIN_NS + 5 * SECOND)
    found = fleet_incidents(store, Wanted(Window()))
    assert [(one.id, [part.host for part in one.parts]) for one in found] == [
        ("1-io@c", ["c"]),
        (FINGERPRINT, ["a", "b"]),
    ]
    assert found[1].first.host == "a"


def test_an_alert_that_fires_again_is_another_incident(store: Store) -> None:
    """Their names have the time since which it fires; the only one of a time has none."""
    again = BEGIN_NS + DAY
    for host, name, at_ns in (("a", "1", BEGIN_NS), ("b", "1", BEGIN_NS), ("a", "2", again)):
        since = "2026-11-20T00:00:00Z" if at_ns == BEGIN_NS else "2026-11-21T00:00:00Z"
        _put(store, host, name, at_ns, alerts=[alert(since=since)])
    found = fleet_incidents(store, Wanted(Window()))
    assert [(one.id, [part.host for part in one.parts]) for one in found] == [
        (f"{FINGERPRINT}@2026-11-21T00:00:00Z", ["a"]),
        (f"{FINGERPRINT}@2026-11-20T00:00:00Z", ["a", "b"]),
    ]
    (last,) = fleet_incidents(store, Wanted(Window(again)))
    assert last.id == FINGERPRINT


def test_times_and_hosts_choose(store: Store) -> None:
    """Only incidents of the time, and of the hosts, are listed."""
    _put(store, "a", "1", BEGIN_NS)
    _put(store, "b", "2", BEGIN_NS + 10 * SECOND)
    later = fleet_incidents(store, Wanted(Window(BEGIN_NS + SECOND)))
    assert [one.id for one in later] == ["2@b"]
    assert [one.id for one in fleet_incidents(store, Wanted(Window(), "a"))] == ["1@a"]


def test_an_incident_without_a_note_is_of_the_time_in_its_name(store: Store) -> None:
    """One whose name has none may be of any time."""
    for name in ("20261119T235959Z-io", "20261120T000001Z-io", "io"):
        store.put_new(IncidentKey("a", name, "incident.json").key, b"no json")
    early = fleet_incidents(store, Wanted(Window(None, BEGIN_NS)))
    assert [one.id for one in early] == ["20261119T235959Z-io@a", "io@a"]
    late = fleet_incidents(store, Wanted(Window(BEGIN_NS)))
    assert [one.id for one in late] == ["20261120T000001Z-io@a", "io@a"]


def test_an_incident_without_a_note_is_not_whole(store: Store) -> None:
    """One that is under way, or whose note cannot be read, says so."""
    store.put_new(IncidentKey("a", "1", "summary.txt").key, b"x")
    store.put_new(IncidentKey("b", "2", "incident.json").key, b"no json")
    problems = {
        part.host: part.problem
        for one in fleet_incidents(store, Wanted(Window()))
        for part in one.parts
    }
    assert problems["a"] == "it was not shipped to its end"
    assert problems["b"].startswith("its note cannot be read")
