# SPDX-License-Identifier: Apache-2.0
"""Two groups of hosts: who is in them, and their ledgers and incidents side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from collectord.errors import UsageError
from collectord.fleet.commit import Covered
from collectord.fleet.groups import Group, Groups, Pair, groups_of
from collectord.fleet.incident_groups import incident_groups
from collectord.fleet.incidents import FleetIncident, HostIncident, Note
from collectord.fleet.ledger_groups import LOST_SHARE, ledger_groups
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.store import Store
from collectord.fleet.store_audit import fleet_ledger
from collectord.reader.event_file import Window
from tests.support.fleets import BEGIN_NS, MINUTE, SCHED, SECOND, Host, Shipped, switches

if TYPE_CHECKING:
    from pathlib import Path

_HOUR: Final = 60 * MINUTE
_GAP: Final = Covered(what="gap", cause="kill", since_ns=BEGIN_NS, until_ns=BEGIN_NS + SECOND)

# {name, records, those that were lost}
_HOSTS: Final = (("db-1", 90, 10), ("web-1", 50, 0), ("web-2", 48, 2), ("x-1", 7, 7))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store of four hosts, with losses and a gap of two."""
    made = Store.open(str(tmp_path / "store"), make=True)
    with Shipped(made) as shipped:
        for name, count, lost in _HOSTS:
            host = Host(name, "6.1.0" if name == "web-2" else "6.12.0", _labels(name))
            shipped.segment(
                host,
                {f"sched:{SCHED}": switches(1, count)},
                BEGIN_NS,
                MINUTE,
                lost=lost,
                covered=(_GAP,) if name == "web-2" else (),
                passed_over=3 if name == "db-1" else 0,
            )
            if name != "web-2":
                events = {f"sched:{SCHED}": switches(1, 10)}
                shipped.segment(host, events, BEGIN_NS + 5 * _HOUR, MINUTE)
    return made


def _labels(name: str) -> dict[str, str]:
    return {"role": name.partition("-")[0]}


def _role(role: str) -> Wanted:
    return Wanted(Window(), labels={"role": role})


_WANTED: Final = _role("db")._replace(also=_role("web"))


@pytest.mark.parametrize(
    ("wanted", "group", "against"),
    [
        (_WANTED, ["db-1"], ["web-1", "web-2"]),
        (Wanted(Window(), "db-1", also=Wanted(Window(), "web-1")), ["db-1"], ["web-1"]),
        (
            Wanted(Window(), also=Wanted(Window(), labels={"kernel": "6.1.*", "role": "web"})),
            ["db-1", "web-1", "web-2", "x-1"],
            ["web-2"],
        ),
    ],
)
def test_groups_are_of_names_and_labels(
    store: Store, wanted: Wanted, group: list[str], against: list[str]
) -> None:
    """A selection has the hosts of both and no other; one may be in both."""
    selection = Selection(store, wanted)
    groups = groups_of(selection, "one", "other")
    assert [[*one.hosts] for one in groups] == [group, against]
    assert selection.hosts == sorted({*group, *against})
    assert groups.shared == [name for name in group if name in against]
    found = {parts.host for parts in selection.committed.values()}
    assert found == {*group, *against}


@pytest.mark.parametrize("roles", [("db", "wbe"), ("wbe", "db")])
def test_a_group_without_hosts_is_refused(store: Store, roles: tuple[str, str]) -> None:
    """The hint lists the labels that hosts have."""
    group, against = roles
    wanted = _role(group)._replace(also=_role(against))
    with pytest.raises(UsageError, match="no host of role=wbe has shipped") as told:
        groups_of(Selection(store, wanted), f"role={group}", f"role={against}")
    assert told.value.hint == ("there are hosts whose kernel is 6.1.0, 6.12.0; role is db, web, x")


def test_a_figure_that_nothing_tells_has_no_difference() -> None:
    """It is neither 0 nor shared among hosts."""
    assert Pair(5, None).difference is None
    assert Pair(6, 4).per_host(Pair(2, 1)) == (3, 4)
    assert Pair(6, 4).per_host(Pair(2, 0)) == (3, None)


def test_ledgers_of_groups_add_up(store: Store) -> None:
    """Figures are sums of the hosts of a group, and hosts of neither are in none."""
    selection = Selection(store, _WANTED)
    groups = groups_of(selection, "role=db", "role=web")
    ledger = fleet_ledger(selection, None, _HOUR, now_ns=BEGIN_NS + 5 * _HOUR, verify=False)
    found = ledger_groups(ledger, groups)
    (session,) = found.sessions
    assert (session.session, session.hosts) == ("exec", (1, 2))
    told = dict(session.pairs())
    assert {name: tuple(told[name]) for name in ("segments", "produced", "stored", "lost")} == {
        "segments": (2, 3),
        "produced": (110, 110),
        "stored": (100, 108),
        "lost": (10, 2),
    }
    assert [*told[LOST_SHARE]] == pytest.approx([100 * 10 / 110, 100 * 2 / 110])
    assert (told["gaps"], told["not_shipped"]) == ((0, 1), (3, 0))
    assert dict(session.losses()) == {"kernel_ring/ring_full": (10, 2)}
    assert found.silent == ([], ["web-2"])


def test_incidents_are_counted_by_trigger() -> None:
    """One of an alert on several hosts is one incident, and each host has its own part."""
    groups = Groups(Group("a", ("db-1",)), Group("b", ("web-1", "web-2")))
    io = [
        HostIncident(host, f"{n}", Note(trigger="io-stall"))
        for n, host in enumerate(("db-1", "web-1", "web-2", "x-1"))
    ]
    oom = [HostIncident("db-1", f"{n}", Note(trigger="oom")) for n in range(3)]
    found = [
        FleetIncident("shared", io),
        *(FleetIncident(one.id, [one]) for one in oom),
        FleetIncident("broken", [HostIncident("web-1", "z")]),
    ]
    told = [(one.trigger, *one[1:]) for one in incident_groups(found, groups)]
    assert told == [
        ("oom", (3, 0), (3, 0), (1, 0)),
        ("", (0, 1), (0, 1), (0, 1)),
        ("io-stall", (1, 1), (1, 2), (1, 2)),
    ]
