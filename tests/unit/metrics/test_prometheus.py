# SPDX-License-Identifier: Apache-2.0
"""The metrics: names, series, figures, and what the manual says of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import prometheus_client
import pytest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from collectord.ledger.aux_ledger import AUX_LOSS_PAIRS
from collectord.ledger.followed_processes import FollowedProcesses
from collectord.ledger.present_loss import PresentLoss
from collectord.metrics import prometheus
from collectord.metrics.ring_families import window_ns
from collectord.model import (
    LOSS_PAIRS,
    PAUSES,
    Basis,
    EvictReason,
    GapCause,
    Produced,
    Reason,
    RingLabel,
    RingRole,
    SinkStats,
    Stage,
)
from collectord.session.late_rings import LateRings
from collectord.sink.ship_note import Shipped, Shipping
from collectord.source.base import Abilities, LateRing
from tests.support import balances

if TYPE_CHECKING:
    from collectord.session.daemon_status import DaemonStatus

DOCS: Final = Path(__file__).resolve().parents[3] / "docs"
SERIES_MAX: Final = 300
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(status: DaemonStatus, *, per_cpu: bool = False) -> Series:
    """Parse one scrape back into (name, labels) to value."""
    registry = prometheus.registry(lambda: status, kernel_release="6.12.0", per_cpu=per_cpu)
    text = prometheus_client.generate_latest(registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(series: Series, name: str, **labels: str) -> float:
    """Return the value of one series."""
    return series[name, frozenset(labels.items())]


def names(series: Series) -> set[str]:
    """Return the names of all series."""
    return {name for name, _ in series}


def test_default_host_stays_below_the_limit() -> None:
    """The default sessions export at most 300 series, the process's own included."""
    assert 60 < len(scrape(balances.status())) <= SERIES_MAX


def test_series_do_not_grow_with_cpus() -> None:
    """Without the cpu label a large machine has as many series as a small one."""
    small = balances.status(balances.session("exec", cpus=2))
    large = balances.status(balances.session("exec", cpus=128))
    assert scrape(small).keys() == scrape(large).keys()


def test_no_series_twice() -> None:
    """Two parts of one session and source are added up, never exported twice."""
    registry = prometheus.registry(
        lambda: balances.status(balances.session("exec"), balances.session("exec")),
        kernel_release="6.12.0",
    )
    text = prometheus_client.generate_latest(registry).decode()
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    assert 'collectord_stored_records_total{session="exec",source="perf"} 360.0' in text


def test_ledger_figures() -> None:
    """The exported balance is that of the ledger."""
    series = scrape(balances.status(balances.session("exec")))
    labels = {"session": "exec", "source": "perf"}
    assert of(series, "collectord_produced_records_total", **labels) == 200
    assert of(series, "collectord_stored_records_total", **labels) == 180
    assert of(series, "collectord_unaccounted_records", **labels) == 0
    lost = "collectord_lost_records_total"
    assert of(series, lost, **labels, stage="kernel_ring", reason="ring_full") == 20


def test_every_loss_pair_exists_at_zero_and_no_other() -> None:
    """Each pair of the source is a series from the first scrape."""
    quiet = replace(balances.session("exec"), lost={})
    pairs = {
        (labels["stage"], labels["reason"]): value
        for (name, items), value in scrape(balances.status(quiet)).items()
        if name == "collectord_lost_records_total"
        for labels in [dict(items)]
    }
    assert pairs == {(str(stage), str(reason)): 0 for stage, reason in LOSS_PAIRS["perf"]}


def test_no_claim_without_an_exact_basis() -> None:
    """If production is not counted there is no produced and no unaccounted series, not a 0."""
    series = scrape(balances.status(balances.session("profile", basis=Basis.LOST_ONLY)))
    assert "collectord_produced_records_total" not in names(series)
    assert "collectord_unaccounted_records" not in names(series)
    labels = {"session": "profile", "source": "perf"}
    assert of(series, "collectord_loss_observable", **labels) == 1
    assert of(series, "collectord_stored_records_total", **labels) == 180


def test_loss_that_cannot_be_seen_is_said() -> None:
    """A source that cannot tell its loss has loss_observable 0."""
    series = scrape(balances.status(balances.session("raw", basis=Basis.NONE)))
    assert of(series, "collectord_loss_observable", session="raw", source="perf") == 0


def test_gaps_have_causes() -> None:
    """Each cause has a series from the first scrape."""
    session = replace(balances.session("exec"), gaps_ns={"stop": 0, "kill": 2_500_000_000})
    series = scrape(balances.status(session))
    name, labels = "collectord_gap_seconds_total", {"session": "exec", "source": "perf"}
    found = {cause: of(series, name, cause=cause, **labels) for cause in GapCause}
    assert found == {"stop": 0, "kill": 2.5, "boot": 0, "reload": 0, "shed": 0, "request": 0}


def test_pauses_have_causes() -> None:
    """A session may be paused by the budget and on request at the same time, or by neither."""
    name, labels = "collectord_session_paused", {"session": "exec", "source": "perf"}
    for causes in ((), PAUSES[:1], PAUSES[1:], PAUSES):
        series = scrape(balances.status(replace(balances.session("exec"), paused=causes)))
        found = {cause for cause in PAUSES if of(series, name, cause=cause, **labels)}
        assert found == set(causes)


def test_what_one_part_cannot_see_the_session_cannot() -> None:
    """If two parts have the same labels, the weaker one decides, whichever comes first."""
    seeing = replace(balances.channel("disk"), basis=Basis.EXACT)
    blind = balances.channel("disk")
    for parts in ((seeing, blind), (blind, seeing)):
        series = scrape(balances.status(*parts))
        assert of(series, "collectord_loss_observable", session="disk", source="relay") == 0


@pytest.mark.parametrize("per_cpu", [False, True])
def test_bytes_are_no_records(*, per_cpu: bool) -> None:
    """Nobody knows a channel's records: its figures are bytes, in series of their own."""
    device = replace(balances.session("disk", cpus=1), source="relay", lost={})
    channel = balances.channel("disk")
    labels = {"session": "disk", "source": "relay"} | ({"cpu": "0"} if per_cpu else {})
    alone = scrape(balances.status(channel), per_cpu=per_cpu)
    assert not [name for name in names(alone) if name.endswith(("_records", "_records_total"))]
    series = scrape(balances.status(device, channel), per_cpu=per_cpu)
    assert of(series, "collectord_stored_records_total", **labels) == 90
    assert of(series, "collectord_read_records_total", **labels) == 92 * 2  # the sideband's too
    assert of(series, "collectord_channel_stored_bytes_total", **labels) == 5000
    assert of(series, "collectord_channel_in_flight_bytes", **labels) == 0
    lost = {"stage": "kernel_ring", "reason": "overrun"}
    assert of(series, "collectord_channel_lost_bytes_total", **labels, **lost) == 1000


def test_snapshots() -> None:
    """Stored and failed ones are counted apart, from 0 on."""
    labels = {"session": "blackbox", "source": "tracefs"}
    session = replace(balances.recorder("blackbox"), snapshots=3, snapshots_failed=1)
    series = scrape(balances.status(session))
    assert of(series, "collectord_snapshots_total", **labels) == 3
    assert of(series, "collectord_snapshot_failures_total", **labels) == 1
    before = scrape(balances.status(balances.recorder("blackbox")))
    assert of(before, "collectord_snapshot_failures_total", **labels) == 0


def test_the_window_of_aux_areas() -> None:
    """It is the trace in them, not what is in their data rings; how old it is nobody knows."""
    session = balances.tracer("trace")
    labels = {"session": "trace", "source": "perf"}
    series = scrape(balances.status(session))
    assert of(series, "collectord_recorder_window_bytes", **labels) == 600
    assert "collectord_recorder_window_seconds" not in names(series)
    full = replace(session.rings[0], beside_aux=False, used_bytes=1 << 19, window_ns=7_000_000_000)
    mixed = scrape(balances.status(replace(session, rings=(*session.rings, full))))
    assert of(mixed, "collectord_recorder_window_bytes", **labels) == 600 + (1 << 19)
    assert of(mixed, "collectord_recorder_window_seconds", **labels) == 7


def test_an_area_in_quarantine_counts_as_a_ring() -> None:
    """All quarantined buffers are in one series, whatever their kind."""
    session = balances.traced("trace")
    labels = {"session": "trace", "source": "perf"}
    name = "collectord_quarantined_rings"
    assert of(scrape(balances.status(session)), name, **labels) == 0
    bad = balances.in_quarantine(session.aux[0], "bad_head")
    series = scrape(balances.status(replace(session, aux=(bad, *session.aux[1:]))))
    assert of(series, name, **labels) == 1


def test_a_ring_that_nobody_drains() -> None:
    """The core counts nothing of a late CPU's ring, the kernel does; a scrape tells of it."""
    label = RingLabel("exec", "tracefs", RingRole.DATA, 7)
    uncovered = {(Stage.KERNEL_RING, Reason.UNCOVERED): 0}
    late = LateRing(label, 4096, Produced(value=5, lost=0, losses=uncovered, unread=5))
    source: Any = SimpleNamespace(late_rings=lambda *, last: (late,) if not last else ())
    plan: Any = SimpleNamespace()
    rings = LateRings(plan, Abilities(late=(source,)))
    rings.measure(last=False)
    session = balances.recorder("exec")
    status = balances.status(replace(session, rings=(*session.rings, *rings.balances())))
    labels = {"session": "exec", "source": "tracefs", "cpu": "7"}
    assert of(scrape(status, per_cpu=True), "collectord_in_flight_records", **labels) == 5


def test_suppression() -> None:
    """A foreign program on one ring's events suffices."""
    session = balances.session("exec")
    labels = {"session": "exec", "source": "perf"}
    name = "collectord_suppression_possible"
    assert of(scrape(balances.status(session)), name, **labels) == 0
    rings = (replace(session.rings[0], suppressed_by=(17,)), *session.rings[1:])
    series = scrape(balances.status(replace(session, rings=rings)))
    assert of(series, name, **labels) == 1


def test_state() -> None:
    """Exactly one of a session's states is 1."""
    series = scrape(balances.status(replace(balances.session("exec"), state="degraded")))
    states = {
        dict(items)["state"]: value
        for (name, items), value in series.items()
        if name == "collectord_session_state"
    }
    assert states == {"running": 0, "degraded": 1, "stopped": 0, "failed": 0}


def test_losing() -> None:
    """1 for the stage where records are being lost, 0 for each other that the source has."""
    place = PresentLoss((Stage.KERNEL_RING, Reason.RING_FULL), "records", 0, per_second=7)
    for losing, expected in (((), 0), ((place,), 1)):
        session = replace(balances.session("exec"), losing=losing)
        stages = {
            dict(items)["stage"]: value
            for (name, items), value in scrape(balances.status(session)).items()
            if name == "collectord_session_losing"
        }
        assert stages == {"kernel_ring": expected, "staging": 0, "sink": 0}


def test_buffers() -> None:
    """Sizes are sums over the rings, the fill mark is that of the fullest ring."""
    session = balances.session("exec")
    counters = session.rings[0].counters
    full = replace(
        session.rings[0],
        counters=counters._replace(high_watermark_bytes=balances.CAPACITY_BYTES),
    )
    series = scrape(balances.status(replace(session, rings=(full, *session.rings[1:]))))
    labels = {"session": "exec", "source": "perf"}
    assert of(series, "collectord_rings", **labels) == 4
    assert of(series, "collectord_buffer_capacity_bytes", **labels) == 4 * balances.CAPACITY_BYTES
    assert of(series, "collectord_buffer_used_bytes", **labels) == balances.CAPACITY_BYTES
    assert of(series, "collectord_buffer_fill_high_watermark_ratio", **labels) == 1
    bucket = "collectord_buffer_fill_ratio_bucket"
    fills = {"0.1": 16, "0.2": 16, "0.3": 24, "0.5": 28, "1.0": 28, "+Inf": 28}
    assert {le: of(series, bucket, **labels, le=le) for le in fills} == fills


def test_flight_recorder() -> None:
    """Overwriting is no loss, and the window is that of the ring with the shortest one."""
    session = balances.recorder("blackbox")
    series = scrape(balances.status(session))
    labels = {"session": "blackbox", "source": "tracefs"}
    assert of(series, "collectord_overwritten_records_total", **labels) == 120
    assert of(series, "collectord_oldest_unread_seconds", **labels) == 31
    assert of(series, "collectord_recorder_window_seconds", **labels) == 30
    assert of(series, "collectord_foreign_read_records", **labels) == 0
    lost = {
        (dict(items)["stage"], dict(items)["reason"]): value
        for (name, items), value in series.items()
        if name == "collectord_lost_records_total"
    }
    assert lost == {(str(stage), str(reason)): 0 for stage, reason in LOSS_PAIRS["tracefs"]}


def test_window_of_rings_that_gave_up_nothing() -> None:
    """A ring that never overwrote goes back to the start, however young its oldest event is."""
    old, young = balances.recorder("blackbox").rings
    young = replace(young, overwritten=0, window_ns=1)
    empty = replace(young, window_ns=None)
    assert window_ns((old, young)) == 30_000_000_000
    assert window_ns((replace(old, overwritten=0), young)) == 30_000_000_000
    assert window_ns((empty,)) == 0


def test_stolen_records() -> None:
    """Records taken by another reader are reported for the session that owns the ring."""
    session = balances.recorder("blackbox")
    rings = (replace(session.rings[0], foreign_reads=7), *session.rings[1:])
    series = scrape(balances.status(replace(session, rings=rings)))
    labels = {"session": "blackbox", "source": "tracefs"}
    assert of(series, "collectord_foreign_read_records", **labels) == 7


def test_core_and_host() -> None:
    """Native nanoseconds become seconds, MONOTONIC times become Unix times."""
    series = scrape(balances.status())
    assert of(series, "collectord_drain_duration_seconds_sum") == 0.014
    assert of(series, "collectord_drain_duration_seconds_count") == 7
    assert of(series, "collectord_oldest_unwritten_seconds") == 0.25
    assert of(series, "collectord_uncovered_seconds_total") == 1.5
    labels = {"session": "exec", "source": "perf"}
    assert of(series, "collectord_session_uncovered_seconds_total", **labels) == 0.5
    assert of(series, "collectord_unclean_stops_total") == 1
    assert of(series, "collectord_damaged_files") == 2
    assert of(series, "collectord_records_left_behind_total") == 7
    assert of(series, "collectord_log_lines_dropped_total") == 3
    assert of(series, "collectord_beginning_sessions") == 0
    waiting = replace(balances.status(), beginning=(balances.session("calls"),))
    assert of(scrape(waiting), "collectord_beginning_sessions") == 1
    labels = {"session": "exec", "source": "perf"}
    assert of(series, "collectord_last_event_timestamp_seconds", **labels) == 1_700_000_005
    assert of(series, "collectord_config_info", sha256="ab" * 32) == 1


def test_the_class_of_a_session() -> None:
    """Exactly one series, with the class as a label, for alerts to be joined with."""
    session = replace(balances.session("exec"), loss_class="must-not-lose")
    series = scrape(balances.status(session, balances.recorder("blackbox")))
    assert {
        tuple(dict(items)[name] for name in ("session", "source", "class")): value
        for (name, items), value in series.items()
        if name == "collectord_session_class"
    } == {
        ("exec", "perf", "must-not-lose"): 1,
        ("blackbox", "tracefs", "normal"): 1,
    }


@pytest.mark.parametrize(("basis", "level"), [("none", 0), ("lost_only", 1), ("exact", 2)])
def test_the_basis_is_a_level_that_can_fall(basis: str, level: int) -> None:
    """The weaker the ledger, the lower; of two parts with equal labels the weaker one counts."""
    parts = (balances.session("exec", basis=Basis(basis)), balances.session("exec"))
    labels = {"session": "exec", "source": "perf"}
    for order in (parts, parts[::-1]):
        series = scrape(balances.status(*order))
        assert of(series, "collectord_ledger_basis_level", **labels) == level


def test_only_a_session_with_a_promised_window_has_one() -> None:
    """A stream keeps nothing back, and has no series that its window could fall short of."""
    series = scrape(balances.status())
    name = "collectord_recorder_keep_seconds"
    assert of(series, name, session="blackbox", source="tracefs") == 30
    assert len([found for found, _ in series if found == name]) == 1


def test_pinned_memory() -> None:
    """Data rings, sideband rings and AUX areas together."""
    series = scrape(balances.status(balances.traced("trace", cpus=2)))
    labels = {"session": "trace", "source": "perf"}
    pinned = 4 * balances.CAPACITY_BYTES + 2 * (4 << 20)
    assert of(series, "collectord_pinned_memory_bytes", **labels) == pinned


def test_retention() -> None:
    """Deleted segments are counted by limit, limits that never struck at 0."""
    series = scrape(balances.status(balances.session("exec")))
    name = "collectord_segments_deleted_total"
    labels = {"session": "exec", "source": "perf"}
    counts = {reason: of(series, name, **labels, reason=reason) for reason in EvictReason}
    assert counts == {"quota": 2, "age": 0, "free_space": 0}


def test_the_history_that_is_kept() -> None:
    """From the oldest segment on; a session without a segment has no series, and no claim."""
    other = replace(balances.session("other"), sink=SinkStats())
    series = scrape(balances.status(balances.session("exec"), other))
    name = "collectord_store_oldest_timestamp_seconds"
    assert of(series, name, session="exec", source="perf") == 1_600_000_000.5
    assert len([found for found, _ in series if found == name]) == 1
    assert of(series, "collectord_store_limit_bytes") == 8 << 30


def test_cpu_label_when_asked_for() -> None:
    """With per_cpu each CPU has its own ring and ledger series."""
    series = scrape(balances.status(balances.session("exec", cpus=3)), per_cpu=True)
    for cpu in ("0", "1", "2"):
        labels = {"session": "exec", "source": "perf", "cpu": cpu}
        assert of(series, "collectord_stored_records_total", **labels) == 90
        assert of(series, "collectord_rings", **labels) == 2
        full = {"stage": "kernel_ring", "reason": "ring_full"}
        assert of(series, "collectord_lost_records_total", **labels, **full) == 10
        assert of(series, "collectord_lost_sideband_records_total", **labels) == 3
    assert of(series, "collectord_loss_observable", session="exec", source="perf") == 1


def test_no_created_series() -> None:
    """No `_created` series in either exposition format."""
    registry = prometheus.registry(balances.status, kernel_release="6.12.0")
    for text in (
        prometheus_client.generate_latest(registry),
        openmetrics.generate_latest(registry),  # type: ignore[no-untyped-call]  # no annotations
    ):
        assert b"_created" not in text


def test_the_table_of_the_manual_is_the_live_set() -> None:
    """docs/metrics.md has the live names, types, labels and texts, and no other row."""
    rows = re.findall(
        r"^\| `(collectord_\w+)` \| (\w+) \| ([\w, ]*) \| (.+) \|$",
        (DOCS / "metrics.md").read_text(),
        re.MULTILINE,
    )
    status = balances.status()
    followed = FollowedProcesses(open=1, attached=2, missed={"gone": 1}, rescans=0)
    sessions = (
        replace(status.sessions[0], followed=(followed,)),
        *status.sessions[1:],
        balances.traced("trace"),
        balances.channel("log"),
    )
    shipping = Shipping({"trace": Shipped()}, {})
    registry = prometheus.registry(
        lambda: replace(status, sessions=sessions, shipping=shipping), kernel_release="6.12.0"
    )
    live = {
        (
            family.name + ("_total" if family.type == "counter" else ""),
            family.type,
            ", ".join(
                dict.fromkeys(label for s in family.samples for label in s.labels if label != "le")
            ),
            family.documentation,
        )
        for family in registry.collect()
        if family.name.startswith("collectord_")
    }
    assert set(rows) == live
    assert len(rows) == len(live)


def test_the_manual_names_every_loss() -> None:
    """docs/ledger.md explains each stage and reason that a source can have, and no other."""
    rows = re.findall(r"^\| `(\w+/\w+)` \|", (DOCS / "ledger.md").read_text(), re.MULTILINE)
    assert rows == list(
        dict.fromkeys(
            f"{stage}/{reason}"
            for pairs in (*LOSS_PAIRS.values(), AUX_LOSS_PAIRS)
            for stage, reason in pairs
        )
    )


def test_aux_areas_are_added_up() -> None:
    """In bytes, with the flags by kind; by CPU where that is asked for."""
    status = balances.status(balances.traced("trace"), balances.session("exec"))
    series = scrape(status)
    labels = {"session": "trace", "source": "perf"}
    assert of(series, "collectord_aux_produced_bytes_total", **labels) == 2000
    assert of(series, "collectord_aux_stored_bytes_total", **labels) == 1800
    assert of(series, "collectord_aux_unaccounted_bytes", **labels) == 0
    assert of(series, "collectord_aux_lost_records_total", **labels) == 10
    assert of(series, "collectord_aux_disabled_seconds_total", **labels) == 3.0
    where = {"stage": "kernel_ring", "reason": "truncated"}
    assert of(series, "collectord_aux_lost_bytes_total", **labels, **where) == 200
    for flag, count in (("truncated", 6), ("partial", 4), ("collision", 2)):
        assert of(series, "collectord_aux_records_total", **labels, flag=flag) == count
    assert not any("aux" in name and ("session", "exec") in found for name, found in series)
    each = scrape(status, per_cpu=True)
    assert of(each, "collectord_aux_stored_bytes_total", **labels, cpu="1") == 900


def test_what_nobody_counts_has_no_series() -> None:
    """An area whose lost bytes are unknown claims nothing, and keeps its session from it."""
    traced = balances.traced("trace")
    known, other = traced.aux
    lost = {**other.lost_bytes, "kernel_ring/truncated": None}
    unknown = replace(other, lost_bytes=lost, unaccounted_bytes=None, overwritten_bytes=None)
    series = scrape(balances.status(replace(traced, aux=(known, unknown))))
    lost_bytes = [dict(found) for name, found in series if name.endswith("aux_lost_bytes_total")]
    assert {found["reason"] for found in lost_bytes} == {"quarantined", "disk_full", "dropped"}
    assert "collectord_aux_unaccounted_bytes" not in names(series)
    assert "collectord_aux_overwritten_bytes_total" not in names(series)
