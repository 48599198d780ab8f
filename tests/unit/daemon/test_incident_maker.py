# SPDX-License-Identifier: Apache-2.0
"""Incidents without rings: requests, triggers of sessions that tests make, limits and the end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from collectord.config.pressure_limit import PressureLimit
from collectord.config.schema import Config, IncidentsConfig
from collectord.config.schema_trigger import TriggerConfig
from collectord.daemon.incidents.incident_answers import answers_for
from collectord.daemon.incidents.incident_maker import Incidents
from collectord.daemon.session_set import SessionSet
from collectord.errors import CollectordError, UsageError
from collectord.kernel.linux import LinuxKernel
from collectord.session.cost_meter import CostMeter
from collectord.session.incident_status import IncidentsStatus, Suppression
from collectord.session.maps.map_watch import BpfWatch
from collectord.sink.alert import Alert
from collectord.sink.incident_folder import SUMMARY, IncidentFolder, IncidentNote
from collectord.text.units import Nanoseconds, Share
from tests.support import balances
from tests.support.commands import snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from collectord.ledger.record_ledger import SessionBalance
    from collectord.session.ring_snapshot import Snapshot

pytestmark = pytest.mark.slow

PATIENCE_S = 60


class PresentLoss:
    """A session whose balance a test sets."""

    def __init__(self) -> None:
        self.plan = SimpleNamespace(
            name="exec", source="perf", key=("exec", "perf"), has_chains=False
        )
        self.recorder = SimpleNamespace(snapshots=[])
        self.lost = 0
        self.more = 0

    def balance(self) -> SessionBalance:
        """Return its balance, with rings that were full as often as records were lost."""
        made = balances.session("exec")
        counters = made.rings[0].counters
        buckets = (*counters.fill_buckets[:-1], self.lost)
        ring = replace(made.rings[0], counters=counters._replace(fill_buckets=buckets))
        lost = {**made.lost, "kernel_ring/ring_full": self.lost}
        assert made.produced is not None
        return replace(made, rings=(ring,), lost=lost, produced=made.produced + self.more)


class Made:
    """A maker of incidents, and what it is made of."""

    def __init__(self, root: Path, *triggers: TriggerConfig, keep: int = 50) -> None:
        self.session = PresentLoss()
        sessions = SessionSet(BpfWatch())
        given: Any = self.session
        sessions.add(given, AsyncExitStack())
        self.config = Config(trigger=triggers, incidents=IncidentsConfig(keep=keep))
        kernel = LinuxKernel()
        self.incidents = Incidents(
            kernel, self.config, root, sessions, host=kernel.host(), meter=CostMeter(0.0, 1)
        )
        self.folder = IncidentFolder(root)
        self.asked: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None  # called while snapshots are taken
        self.last: IncidentsStatus | None = None  # before the end

    async def take(self, why: str) -> tuple[list[Snapshot], list[str]]:
        """Return a snapshot without a segment, and a recorder that has failed."""
        self.asked.append(why)
        self.meanwhile()
        return [snapshot(())], ["recorder box has failed"]

    def status(self, name: str) -> Any:  # noqa: ANN401 - a TriggerStatus
        """Return the status of a trigger."""
        status = self.last or self.incidents.status()
        return next(one for one in status.triggers if one.name == name)


def run(made: Made, scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario between the beginning and the end."""

    async def whole() -> None:
        await made.incidents.begin(made.take)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await scenario()
        finally:
            made.last = made.incidents.status()
            await made.incidents.end()

    asyncio.run(whole())


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    while not condition():  # noqa: ASYNC110 - threads and processes change it
        await asyncio.sleep(0.01)


def trigger(name: str, kind: Any, **keys: Any) -> TriggerConfig:  # noqa: ANN401 - of any key
    """Return a trigger without answers."""
    return TriggerConfig(name=name, kind=kind, answers=(), **keys)


def test_a_request(tmp_path: Path) -> None:
    """It is never refused while the daemon records, and its summary comes behind it."""
    made = Made(tmp_path)
    with pytest.raises(UsageError, match="before it records"):
        asyncio.run(made.incidents.request(""))

    async def scenario() -> None:
        first = await made.incidents.request("slow")
        await made.incidents.by_signal()
        assert (first.trigger, first.reason) == ("manual", "slow")
        assert first.problems[0] == "recorder box has failed"
        path = made.folder.path / first.id / SUMMARY
        await until(lambda: path.exists() and "slow" in path.read_text())
        assert b"slow" in await made.incidents.file(first.id, SUMMARY)
        for name, file in (("../x", SUMMARY), (first.id, "flame.svg")):
            with pytest.raises(CollectordError):
                await made.incidents.file(name, file)
        status = made.incidents.status()
        assert (status.kept, status.failed) == (2, 0)
        assert {one.trigger for one in status.last} == {"manual", "signal"}

    run(made, scenario)
    assert made.asked == ["incident", "signal"]
    assert (made.status("manual").made, made.status("signal").made) == (1, 1)
    again = Made(tmp_path)

    async def look() -> None:
        assert again.status("manual").made == 1
        assert again.incidents.status().kept == 2

    run(again, look)


def test_losses_and_full_rings(tmp_path: Path) -> None:
    """Each makes one incident when there is enough of it, and is held back then."""
    made = Made(
        tmp_path,
        trigger("loss", "loss", lost=10),
        trigger("full", "ring-fill", fill=Share(percent=85.0)),
        trigger("oom", "oom-kill"),
        trigger("frozen", "freeze", session="exec"),
    )

    async def scenario() -> None:
        made.session.lost = 9
        made.incidents.poll()
        await until(lambda: made.status("full").made and made.folder.kept())
        await until(lambda: made.folder.kept()[0].note)
        assert made.status("loss").made == 0  # too few

        def lose() -> bool:
            made.session.lost += 1_000
            made.incidents.poll()
            return len(made.folder.kept()) > 1

        await until(lose)
        await until(lambda: made.folder.kept()[1].note)

    run(made, scenario)
    assert made.status("loss").made == 1
    assert made.status("full").made == 1
    assert sum(made.status("full").suppressed.values()) > 0
    note = made.folder.find("last").note
    assert note is not None
    assert note.reason.startswith("exec lost 1,0")
    assert note.reason.endswith("records (kernel_ring/ring_full)")


def test_events_that_come(tmp_path: Path) -> None:
    """So many within an interval make one incident; fewer, and those of before, do not."""
    made = Made(tmp_path, trigger("many", "event", session="exec", count=10))

    async def scenario() -> None:
        made.session.more = 9
        made.incidents.poll()
        assert made.status("many").made == 0
        made.session.more = 19
        made.incidents.poll()
        await until(lambda: made.folder.kept() and made.folder.kept()[0].note)

    run(made, scenario)
    note = made.folder.find("last").note
    assert note is not None
    assert note.reason == "10 events of exec came within a flush interval"


def triggers_of(made: Made) -> set[str]:
    """Return the triggers of the incidents that are finished."""
    return {one.note.trigger for one in made.folder.kept() if one.note is not None}


def test_what_comes_before_a_snapshot_and_behind_it(tmp_path: Path) -> None:
    """An event that nobody has seen yet is named; one that comes later makes the next incident.

    A condition that lasts is named in any case.
    """
    many = trigger("many", "event", session="exec", count=10, cooldown=Nanoseconds(0))
    made = Made(tmp_path, trigger("loss", "loss"), many)

    def meanwhile() -> None:
        made.meanwhile = lambda: None
        made.session.more += 20
        made.session.lost += 1
        made.incidents.poll()

    async def scenario() -> None:
        made.session.more = 10
        made.meanwhile = meanwhile
        first = await made.incidents.request("slow")
        assert [told.partition(": ")[0] for told in first.also] == ["many", "loss"]
        assert first.also[0].startswith("many: 10 events")
        await until(lambda: len(triggers_of(made)) > 1)

    run(made, scenario)
    assert triggers_of(made) == {"manual", "many"}
    last = made.folder.kept()[-1].note
    assert last is not None
    assert last.reason == "20 events of exec came within a flush interval"
    assert made.status("many").suppressed["busy"] == 1
    assert (made.status("loss").made, made.status("loss").suppressed["busy"]) == (0, 1)


def test_what_comes_while_an_incident_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes the next one: the first one would have its answers, and not its name."""
    made = Made(tmp_path, trigger("loss", "loss"))
    writes, may_write = threading.Event(), threading.Event()
    put = IncidentFolder.put

    def put_late(folder: IncidentFolder, note: IncidentNote) -> None:
        writes.set()
        assert may_write.wait(PATIENCE_S)
        put(folder, note)

    monkeypatch.setattr(IncidentFolder, "put", put_late)

    async def scenario() -> None:
        first = asyncio.ensure_future(made.incidents.request("slow"))
        await until(writes.is_set)
        made.session.lost = 1
        made.incidents.poll()
        may_write.set()
        assert (await first).also == ()
        await until(lambda: len(triggers_of(made)) > 1)

    run(made, scenario)
    assert triggers_of(made) == {"manual", "loss"}
    assert (made.status("loss").made, made.status("loss").suppressed["busy"]) == (1, 0)


def test_a_frozen_recorder(tmp_path: Path) -> None:
    """Its own snapshot comes first in the incident, and the trigger fires once for it."""
    made = Made(tmp_path, trigger("frozen", "freeze", session="exec", cooldown=Nanoseconds(0)))

    async def scenario() -> None:
        made.session.recorder.snapshots.append(replace(snapshot(()), trigger="freeze"))
        made.incidents.poll()
        await until(lambda: made.folder.kept() and made.folder.kept()[0].note)
        made.incidents.poll()

    run(made, scenario)
    (kept,) = made.folder.kept()
    assert kept.note is not None
    assert [one["trigger"] for one in kept.note.snapshots] == ["freeze", "request"]
    assert sum(made.status("frozen").suppressed.values()) == 0


def test_units_and_reloads(tmp_path: Path) -> None:
    """The unit's own trigger has limits; other limits hold from the next look on."""
    made = Made(tmp_path, trigger("web", "unit", unit="nginx*"))

    async def scenario() -> None:
        first = await made.incidents.unit_failed("nginx.service")
        assert not isinstance(first, Suppression)
        assert await made.incidents.unit_failed("nginx.service") is Suppression.COOLDOWN
        with pytest.raises(UsageError, match="no trigger is for the unit"):
            await made.incidents.unit_failed("other.service")
        await made.incidents.request("")
        made.incidents.apply(Config(incidents=IncidentsConfig(keep=1)))
        await made.incidents.keep_limits(short=False)
        assert made.incidents.status().kept == 1
        assert made.incidents.status().evicted == 1
        assert len(made.incidents.status().triggers) == 2

    run(made, scenario)


def alert(fingerprint: str, since: str = "2026-01-02T03:04:05Z", **labels: str) -> Alert:
    """Return an alert that fires."""
    return Alert(
        fingerprint=fingerprint * 16,
        starts_at=since,
        labels={"alertname": "DiskSlow", **labels},
        annotations={"summary": "slow"},
    )


def test_alerts(tmp_path: Path) -> None:
    """The new ones of a notification make one incident; it is theirs for the next daemon, too."""
    disks = trigger("disks", "alert", labels={"alertname": "Disk*"}, cooldown=Nanoseconds(0))
    rest = trigger("rest", "alert", labels={"severity": "page"})
    made = Made(tmp_path, disks, rest)
    with pytest.raises(UsageError, match="before it records"):
        made.incidents.alerted([alert("a")])

    async def scenario() -> None:
        told = made.incidents.alerted(
            [
                alert("a"),
                alert("b"),
                alert("c", alertname="Other", severity="page"),
                alert("d", alertname="Other"),
                msgspec.structs.replace(alert("e"), status="resolved"),
            ]
        )
        assert [told[one * 16] for one in "abcde"] == [
            *("accepted", "accepted", "busy", "unmatched", "resolved")
        ]
        await until(lambda: "repeated" in made.incidents.alerted([alert("b")]).values())
        told = made.incidents.alerted([alert("b"), alert("c", alertname="X", severity="page")])
        assert [*told.values()] == ["repeated", "accepted"]
        await until(lambda: len(made.folder.kept()) > 1 and made.folder.kept()[1].note)

    run(made, scenario)
    first = made.folder.find("b" * 16)
    assert first.note is not None
    assert first.id.endswith("-disks-" + "a" * 16)
    assert first.note.reason == "the alert DiskSlow fires: slow, and 1 more alerts"
    assert [one.fingerprint for one in first.note.alerts] == ["a" * 16, "b" * 16]
    assert made.folder.find("c" * 16).id != first.id
    assert (made.status("disks").made, made.status("rest").suppressed["busy"]) == (1, 1)
    again = Made(tmp_path, disks, rest)

    async def look() -> None:
        later = alert("a", since="2026-01-02T04:00:00Z")
        assert [*again.incidents.alerted([alert("a"), alert("b")]).values()] == ["repeated"] * 2
        assert [*again.incidents.alerted([later]).values()] == ["accepted"]
        await until(lambda: again.folder.find("a" * 16).id != first.id)

    run(again, look)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """The failure is counted, and raised to the one who asked."""
    (tmp_path / "incidents").write_text("a file")
    made = Made(tmp_path)

    async def scenario() -> None:
        with pytest.raises(Exception, match="folder of incidents"):
            await made.incidents.request("")

    run(made, scenario)
    assert made.incidents.status().failed == 1


def test_answers_that_fit() -> None:
    """By kind and resource, unless the trigger names others; a load is drawn if there is one."""
    whole = partial(answers_for, has_records=True, has_chains=False)
    assert whole(None) == ("why-cpu", "why-io")
    assert answers_for(None, has_records=True, has_chains=True) == ("why-cpu", "why-io", "flame")
    assert answers_for(None, has_records=False, has_chains=True) == ("flame",)
    assert whole(trigger("a", "loss")) == ()
    named = TriggerConfig(name="a", kind="loss", answers=("flame", "slow-io"))
    assert whole(named) == ("flame", "slow-io")
    for kind, limit, answers in (
        ("pressure", "io some 1s/2s", ("why-io",)),
        ("pressure", "memory full 1s/2s", ("why-mem",)),
        ("pressure", "irq full 1s/2s", ("why-cpu",)),
        ("oom-kill", None, ("oom-kills", "why-mem")),
        ("ring-fill", None, ("why-cpu",)),
        ("unit", None, ("why-cpu", "why-io")),
        ("alert", None, ("why-cpu", "why-io")),
    ):
        pressure = PressureLimit.parse(limit) if limit else None
        config = TriggerConfig(name="a", kind=kind, pressure=pressure)  # type: ignore[arg-type]
        assert whole(config) == answers
