# SPDX-License-Identifier: Apache-2.0
"""An hour without the store, by a clock of its own: all limits hold, and then all is made up for.

One thread is the host: while the shipper waits the clock goes on, segments are sealed, and the
daemon's retention and figures are looked at as often as the daemon does.
"""

from __future__ import annotations

import os
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from collectord.fleet.incident_files import Incidents
from collectord.fleet.pace import Pace
from collectord.fleet.pending_segments import Target
from collectord.fleet.redaction import Redaction
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.shipment import Host as OfShipment
from collectord.fleet.shipment import Shipment
from collectord.fleet.shipper import Shipper
from collectord.fleet.store import Store
from collectord.fleet.store_audit import fleet_ledger
from collectord.folders.walk import open_folder
from collectord.metrics import prometheus
from collectord.plan.sink_plan import HoldPlan, RetentionPlan
from collectord.reader.event_file import Window
from collectord.sink import chain_log
from collectord.sink.ship_note import Shipped
from collectord.sink.state_dir import StateDir
from tests.support import balances
from tests.support.odd_stores import Oddity, OddStore
from tests.support.shipping import HOST, SESSION, Host, check_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.object_stores import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

SECOND: Final = 1_000_000_000
DAY: Final = 86_400 * SECOND
LOOK_S: Final = 10
SEAL_S: Final = 240
INTERVAL_S: Final = 10.0
# The store answers at first, then not for an hour, and then for as long as a shipper may wait.
BEFORE_S: Final = 2 * SEAL_S
AWAY_S: Final = 3600
AFTER_S: Final = 400
WHOLE_S: Final = BEFORE_S + AWAY_S + AFTER_S
# Segments that others may have, and how many more if they wait; or as many times SEAL_S.
KEPT: Final = 2
HELD: Final = 5
WAIT_MAX_S: Final = 300
# A second, twice as long each time up to the limit, and then at the limit.
ATTEMPTS_MAX: Final = 9 + AWAY_S // WAIT_MAX_S
GROWN_MAX_BYTES: Final = 256 << 10


@dataclass
class Outage:
    """The time without a store, as the test saw it.

    Attributes:
        waits: of the shipper, in s.
        memory_bytes: of Python, at each look.
        kept: segments on the host, at each look.
        told: figures of the session, at the last look.
        pending_s: the age of what waits, as it is scraped whenever a segment was sealed.
    """

    waits: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    told: Shipped = field(default_factory=Shipped)
    pending_s: list[float] = field(default_factory=list)


class Hour:
    """A host, its daemon's retention, its shipper, and the clock of all.

    Args:
        folder: for all files.
        server: the store.
        odd: what is in front of it.
    """

    def __init__(self, folder: Path, server: S3Server, odd: OddStore) -> None:
        self.host = Host(folder / "host")
        self.host.note.mkdir()
        url = server.new_bucket()
        self.store = Store.open(url, server.options())
        self.outage = Outage()
        self.sealed: list[str] = []
        self._odd = odd
        # It ends now, so that ages by the clock of the machine are right at the end.
        self._begin_ns = self._now_ns = time.time_ns() - WHOLE_S * SECOND
        self.one_bytes = self._seal()
        self.state = StateDir(self.host.state, RetentionPlan(), lambda: self._now_ns)
        pace = Pace(0, 0, lambda _: None)
        target = Target(
            SESSION, self.host.directory, "columns", by_incident=False, redaction=Redaction()
        )
        (folder / "temporary").mkdir()
        self._shipper = Shipper(
            [target],
            self.host.note,
            Shipment(
                Store.open(url, server.options(odd.port)),
                OfShipment(HOST, temporary=str(folder / "temporary")),
                pace,
            ),
            Incidents(self.host.state, None, HOST, pace, redacted=False),
            lambda: self._passed_s >= WHOLE_S,
        )

    @property
    def _passed_s(self) -> float:
        return (self._now_ns - self._begin_ns) / SECOND

    @property
    def _is_away(self) -> bool:
        return BEFORE_S <= self._passed_s < BEFORE_S + AWAY_S

    def run(self) -> None:
        """Let all of it happen."""
        try:
            self._shipper.run(INTERVAL_S, self._wait)
        finally:
            tracemalloc.stop()

    def _wait(self, seconds: float) -> None:
        """Let the time pass, in which the host goes on."""
        if self._is_away:
            self.outage.waits.append(seconds)
        until_ns = self._now_ns + round(seconds * SECOND)
        look_ns = LOOK_S * SECOND
        while self._now_ns < until_ns:
            left_ns = look_ns - (self._now_ns - self._begin_ns) % look_ns
            self._now_ns = min(self._now_ns + left_ns, until_ns)
            if (self._now_ns - self._begin_ns) % look_ns == 0:
                self._look()

    def _look(self) -> None:
        """Seal what is due, and do what the daemon does every now and then."""
        if self._passed_s % SEAL_S == 0:
            self._seal()
        self._odd.rate = float(self._is_away)
        self.state.make_room()
        self.state.look_at_shipping()
        if not self._is_away:
            return
        if not tracemalloc.is_tracing():
            tracemalloc.start()
        self.outage.memory_bytes.append(tracemalloc.get_traced_memory()[0])
        self.outage.kept.append(len([*self.host.directory.glob("*.perf.data")]))
        self.outage.told = self.state.shipping.sessions[SESSION]
        if self._passed_s % SEAL_S == 0:
            self.outage.pending_s.append(scraped(self.state)["collectord_ship_pending_seconds"])

    def _seal(self) -> int:
        """Seal a segment now, and return its disk space."""
        (path,) = self.host.record(1)
        size_bytes = 0
        for file in (path, path.with_name(path.name + ".json")):
            os.utime(file, ns=(self._now_ns, self._now_ns))
            size_bytes += file.stat().st_blocks * 512
        self.sealed.append(path.name)
        return size_bytes


@pytest.fixture
def hour(tmp_path: Path, s3_server: S3Server) -> Iterator[Hour]:
    """Return a host before its hour."""
    with OddStore(s3_server.port, 0.0, [Oddity.REFUSE]) as odd:
        yield Hour(tmp_path, s3_server, odd)


def limits(hour: Hour, reason: str) -> RetentionPlan:
    """Return limits of space or of age."""
    hold = HoldPlan(str(hour.host.note), ((SESSION, str(hour.host.directory)),))
    if reason == "quota":
        hold = replace(hold, bytes=HELD * hour.one_bytes)
        return RetentionPlan(bytes=KEPT * hour.one_bytes, hold=hold)
    hold = replace(hold, age_ns=HELD * SEAL_S * SECOND)
    return RetentionPlan(age_ns=KEPT * SEAL_S * SECOND, hold=hold)


@pytest.mark.parametrize("reason", ["quota", "age"])
def test_an_hour_without_the_store(hour: Hour, tmp_path: Path, reason: str) -> None:
    """Retention waits up to its limit, deletes what is beyond and says so; the rest is shipped."""
    hour.state.limit(limits(hour, reason))
    with capture_logs() as logs:
        hour.run()
    outage, told = hour.outage, [line["event"] for line in logs]

    # The backlog has more than the limit of others, and no more than its own.
    assert max(outage.kept) in {KEPT + HELD, KEPT + HELD + (reason == "age")}
    gone = [line for line in logs if line["event"] == "segment_deleted_unshipped"]
    assert len(gone) > 1
    assert {line["reason"] for line in gone} == {reason}
    order = [
        "retention_waits_for_shipping",
        "segment_deleted_unshipped",
        "retention_waits_no_more",
    ]
    assert [one for one in dict.fromkeys(told) if one in order] == order
    assert [told.count(one) for one in order] == [1, len(gone), 1]

    # Attempts are less and less often, each of them told, and nothing is kept of them.
    assert outage.waits[0] <= 2.0
    assert outage.waits == sorted(outage.waits)
    assert max(outage.waits) == WAIT_MAX_S
    assert len(outage.waits) <= ATTEMPTS_MAX
    assert told.count("not_shipped") == len(outage.waits)
    half = len(outage.memory_bytes) // 2
    grown_bytes = max(outage.memory_bytes[half:]) - max(outage.memory_bytes[:half])
    assert grown_bytes < GROWN_MAX_BYTES
    assert [*(tmp_path / "temporary").iterdir()] == []

    # The deleted segments are not in the store, and all others are there once, in one chain.
    names = {PurePath(line["path"]).name for line in gone}
    ordered = check_store(hour.store, len(hour.sealed) - len(gone))
    assert [one.segment for one in ordered] == [one for one in hour.sealed if one not in names]
    with open_folder(hour.host.directory) as folder:
        log = chain_log.read(folder)
    assert log is not None
    assert {one.segment for one in log.entries.values() if one.unshipped} == names

    # The figures, and the ledger of the fleet.
    assert outage.told.waiting == outage.kept[-1]
    assert outage.told.since_ns is not None
    assert min(outage.pending_s) > 0
    series = scraped(hour.state)
    assert series["collectord_ship_deleted_segments_total"] == len(gone)
    assert series["collectord_ship_errors_total"] == len(outage.waits)
    assert series["collectord_ship_pending_segments"] == 0
    assert series["collectord_ship_pending_seconds"] == 0
    ledger = fleet_ledger(
        Selection(hour.store, Wanted(Window())), None, DAY, now_ns=time.time_ns(), verify=True
    )
    found = {one.what: one.events for one in ledger.findings}
    assert found["passed over"] == len(gone)
    assert not found.keys() & {"chain", "sum", "object", "commit"}


def scraped(state: StateDir) -> Counter[str]:
    """Return the sums of the metrics of a daemon with this directory."""
    status = replace(balances.status(), shipping=state.shipping)
    registry = prometheus.registry(lambda: status, kernel_release="6.12.0", per_cpu=False)
    found: Counter[str] = Counter()
    for family in registry.collect():
        for sample in family.samples:
            found[sample.name] += sample.value  # type: ignore[assignment]  # a float
    return found
