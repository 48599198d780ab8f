# SPDX-License-Identifier: Apache-2.0
"""Hosts over two hours of scrapes, and the alerts that must fire there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# Each series is scraped this often, and the rules are evaluated as often.
INTERVAL: Final = "15s"
HOST: Final = {"job": "collectord", "instance": "web1:9590"}

_EXEC: Final = {"session": "exec", "source": "perf"}
_SHIPPED: Final = {"session": "exec"}
_BLACKBOX: Final = {"session": "blackbox", "source": "tracefs"}
_FULL: Final = {"stage": "kernel_ring", "reason": "ring_full"}
_DROPPED: Final = {"stage": "kernel_ring", "reason": "dropped"}


def series(name: str, *labels: dict[str, str], **more: str) -> str:
    """Return a series of the host as the rules' tests spell it."""
    parts: dict[str, str] = dict(HOST)
    for part in (*labels, more):
        parts |= part
    spelt = ", ".join(f'{label}="{value}"' for label, value in parts.items())
    return f"{name}{{{spelt}}}"


def steady(value: int) -> str:
    """Return the values of a series that stays."""
    return f"{value}+0x480"


def rising(step: float) -> str:
    """Return the values of a counter from 0 on."""
    return f"0+{step}x480"


def changing(before: int, after: int) -> str:
    """Return the values of a series that changes in the eleventh minute."""
    return f"{before}+0x40 {after}+0x440"


def stopping(step: int) -> str:
    """Return the values of a counter that stops rising in the eleventh minute."""
    return f"0+{step}x40 {40 * step}+0x440"


@dataclass(frozen=True, slots=True)
class Expected:
    """The words of an alert at one time.

    Attributes:
        minute: of the two hours.
        labels: of each alert that fires, without the host's and the severity; none if it is quiet.
    """

    minute: int
    alert: str
    labels: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """A host.

    Attributes:
        changes: values of the series that differ from those of a quiet host, or are added.
        expected: what alerts say. Where nothing is expected, no alert may fire at any time.
    """

    name: str
    changes: dict[str, str]
    expected: tuple[Expected, ...] = field(default=())


def _fires(alert: str, *labels: dict[str, str], after: int, by: int) -> tuple[Expected, ...]:
    """Return that it is quiet at one minute and fires at a later one."""
    return (Expected(after, alert), Expected(by, alert, labels or ({},)))


# Little comes, and nothing is wrong: the window of a ring that is not full yet is no shortage.
QUIET: Final = {
    series("up"): steady(1),
    series("collectord_session_state", _EXEC, state="failed"): steady(0),
    series("collectord_session_state", _EXEC, state="degraded"): steady(0),
    series("collectord_session_state", _EXEC, state="running"): steady(1),
    series("collectord_session_class", _EXEC, {"class": "must-not-lose"}): steady(1),
    series("collectord_session_class", _BLACKBOX, {"class": "normal"}): steady(1),
    series("collectord_lost_records_total", _EXEC, _FULL): steady(0),
    series("collectord_lost_records_total", _BLACKBOX, _DROPPED): steady(0),
    series("collectord_lost_sideband_records_total", _EXEC): steady(0),
    series("collectord_gap_seconds_total", _EXEC, cause="kill"): steady(3),
    series("collectord_last_heartbeat_timestamp_seconds", _EXEC): rising(15),
    series("collectord_last_heartbeat_timestamp_seconds", _BLACKBOX): rising(15),
    series("collectord_stored_records_total", _EXEC): rising(30),
    series("collectord_stored_records_total", _BLACKBOX): steady(0),
    series("collectord_unaccounted_records", _EXEC): steady(0),
    series("collectord_unaccounted_records", _BLACKBOX): steady(0),
    series("collectord_ledger_basis_level", _EXEC): steady(2),
    series("collectord_ledger_basis_level", _BLACKBOX): steady(2),
    series("collectord_suppression_possible", _EXEC): steady(0),
    series("collectord_quarantined_rings", _EXEC): steady(0),
    series("collectord_drain_duration_seconds_count"): rising(15),
    series("collectord_starved_passes_total", _EXEC): steady(0),
    series("collectord_oldest_unwritten_seconds"): steady(0),
    series("collectord_write_errors_total"): steady(0),
    series("collectord_cpus_online"): steady(2),
    series("collectord_cpus_covered"): steady(2),
    series("collectord_recorder_window_seconds", _BLACKBOX): steady(7),
    series("collectord_recorder_keep_seconds", _BLACKBOX): steady(30),
    series("collectord_overwritten_records_total", _BLACKBOX): steady(0),
    series("collectord_snapshot_failures_total", _BLACKBOX): steady(0),
    series("collectord_config_last_reload_successful"): steady(1),
    series("collectord_compress_errors_total", _EXEC): steady(0),
    series("collectord_unclean_stops_total"): steady(1),
    series("collectord_own_cpu_seconds_total"): rising(0.06),
    series("collectord_imposed_cpu_seconds_total", _EXEC): rising(0.01),
    series("collectord_imposed_cpu_seconds_total", _BLACKBOX): rising(0.02),
    series("collectord_budget_ratio"): "0.005+0x480",
}

CASES: Final = (
    Case("quiet", {}),
    # A flight recorder overwrites all the time, which is what it is for; once its rings have grown
    # the kernel's count proves less.
    Case(
        "recorder",
        {
            series("collectord_ledger_basis_level", _BLACKBOX): changing(2, 1),
            series("collectord_recorder_window_seconds", _BLACKBOX): steady(29),
            series("collectord_overwritten_records_total", _BLACKBOX): rising(9000),
        },
    ),
    # Much is stored and nothing is lost, at a cost below the limit.
    Case(
        "busy",
        {
            series("collectord_stored_records_total", _EXEC): rising(1_500_000),
            series("collectord_own_cpu_seconds_total"): rising(0.24),
        },
    ),
    # Much is spent where nothing is said about how much may be.
    Case(
        "no budget",
        {
            series("collectord_own_cpu_seconds_total"): rising(3),
            series("collectord_budget_ratio"): steady(0),
        },
    ),
    # Counters begin anew, and those that outlive the daemon go on.
    Case(
        "restart",
        {
            series("collectord_stored_records_total", _EXEC): "0+30x240 0+30x240",
            series("collectord_drain_duration_seconds_count"): "0+15x240 0+15x240",
            series("collectord_own_cpu_seconds_total"): "0+0.06x240 0+0.06x240",
        },
    ),
    Case(
        "down",
        {series("up"): changing(1, 0)},
        _fires("CollectordDown", after=10, by=20),
    ),
    Case(
        "failed",
        {series("collectord_session_state", _EXEC, state="failed"): steady(1)},
        _fires("CollectordSessionFailed", _EXEC | {"state": "failed"}, after=4, by=6),
    ),
    Case(
        "degraded",
        {series("collectord_session_state", _EXEC, state="degraded"): steady(1)},
        _fires("CollectordSessionDegraded", _EXEC | {"state": "degraded"}, after=59, by=61),
    ),
    Case(
        "no heartbeat",
        {series("collectord_last_heartbeat_timestamp_seconds", _BLACKBOX): stopping(15)},
        _fires("CollectordSourceSilent", _BLACKBOX, after=19, by=21),
    ),
    # A single record is enough, and the alert is over when it is five minutes old.
    Case(
        "one record lost",
        {series("collectord_lost_records_total", _EXEC, _FULL): changing(0, 1)},
        (
            *_fires("CollectordMustNotLose", _EXEC | _FULL, after=10, by=11),
            Expected(16, "CollectordMustNotLose"),
        ),
    ),
    # Losses of other kinds count too, of the same stage and reason as well; those of other
    # classes do not.
    Case(
        "sideband and trace lost",
        {
            series("collectord_lost_records_total", _BLACKBOX, _DROPPED): changing(0, 1),
            series("collectord_lost_sideband_records_total", _EXEC): changing(0, 1),
            series("collectord_aux_lost_bytes_total", _EXEC, _FULL): changing(0, 4096),
        },
        (Expected(11, "CollectordMustNotLose", (_EXEC, _EXEC | _FULL)),),
    ),
    # Each start of the daemon is a gap of all its sessions; those of other classes may have one.
    Case(
        "gap",
        {
            series("collectord_gap_seconds_total", _EXEC, cause="kill"): changing(0, 12),
            series("collectord_gap_seconds_total", _BLACKBOX, cause="kill"): changing(0, 12),
        },
        _fires("CollectordGap", _EXEC | {"cause": "kill"}, after=10, by=11),
    ),
    # Losses that a normal session goes on having are reported, those of a spare one are not.
    Case(
        "losing",
        {
            series("collectord_lost_records_total", _BLACKBOX, _DROPPED): rising(2),
            series(
                "collectord_session_class", session="extra", source="perf", **{"class": "spare"}
            ): steady(1),
            series("collectord_lost_records_total", _FULL, session="extra", source="perf"): rising(
                2
            ),
        },
        (
            *_fires("CollectordLosing", _BLACKBOX, after=14, by=20),
            Expected(20, "CollectordMustNotLose"),
        ),
    ),
    Case(
        "unaccounted",
        {series("collectord_unaccounted_records", _EXEC): steady(3)},
        _fires("CollectordUnaccounted", _EXEC, after=4, by=6),
    ),
    Case(
        "weaker basis",
        {series("collectord_ledger_basis_level", _EXEC): changing(2, 1)},
        _fires("CollectordBasisFell", _EXEC, after=10, by=11),
    ),
    Case(
        "suppression",
        {series("collectord_suppression_possible", _EXEC): steady(1)},
        _fires("CollectordSuppressionPossible", _EXEC, after=4, by=6),
    ),
    Case(
        "quarantine",
        {series("collectord_quarantined_rings", _EXEC): changing(0, 1)},
        _fires("CollectordRingQuarantined", _EXEC, after=10, by=11),
    ),
    Case(
        "drain stalled",
        {series("collectord_drain_duration_seconds_count"): stopping(15)},
        _fires("CollectordDrainStalled", after=10, by=14),
    ),
    Case(
        "starved",
        {series("collectord_starved_passes_total", _EXEC): rising(1)},
        _fires("CollectordStagingFull", _EXEC, after=9, by=12),
    ),
    Case(
        "disk stalled",
        {series("collectord_oldest_unwritten_seconds"): changing(0, 11)},
        _fires("CollectordDiskStalled", after=10, by=12),
    ),
    Case(
        "write error",
        {series("collectord_write_errors_total"): changing(0, 1)},
        _fires("CollectordWriteErrors", after=10, by=11),
    ),
    Case(
        "uncovered",
        {series("collectord_cpus_covered"): steady(1)},
        _fires("CollectordCpuUncovered", after=4, by=6),
    ),
    # The rings overwrite, and hold seven of thirty seconds.
    Case(
        "short window",
        {series("collectord_overwritten_records_total", _BLACKBOX): rising(9000)},
        _fires("CollectordWindowShort", _BLACKBOX, after=9, by=12),
    ),
    Case(
        "snapshot failed",
        {series("collectord_snapshot_failures_total", _BLACKBOX): changing(0, 1)},
        _fires("CollectordSnapshotFailed", _BLACKBOX, after=10, by=11),
    ),
    Case(
        "incident",
        {series("collectord_incidents_total", {"trigger": "io-stall"}): changing(0, 1)},
        _fires("CollectordIncident", {"trigger": "io-stall"}, after=10, by=11),
    ),
    Case(
        "incident by hand, and one that was not written",
        {
            series("collectord_incidents_total", {"trigger": "manual"}): changing(0, 1),
            series("collectord_incidents_failed_total"): changing(0, 1),
        },
        _fires("CollectordIncidentFailed", after=10, by=11),
    ),
    Case(
        "not shipped",
        {series("collectord_ship_deleted_segments_total", _SHIPPED): changing(0, 1)},
        _fires("CollectordNotShipped", _SHIPPED, after=10, by=11),
    ),
    Case(
        "wrong configuration",
        {series("collectord_config_last_reload_successful"): changing(1, 0)},
        _fires("CollectordReloadFailed", after=9, by=11),
    ),
    Case(
        "not compressed",
        {series("collectord_compress_errors_total", _EXEC): changing(0, 1)},
        _fires("CollectordCompressErrors", _EXEC, after=10, by=11),
    ),
    # Neither part alone is twice the budget.
    Case(
        "costly",
        {
            series("collectord_own_cpu_seconds_total"): rising(0.15),
            series("collectord_imposed_cpu_seconds_total", _EXEC): rising(0.16),
        },
        _fires("CollectordCostHigh", after=14, by=20),
    ),
    Case(
        "killed",
        {series("collectord_unclean_stops_total"): changing(1, 2)},
        _fires("CollectordUncleanStop", after=10, by=11),
    ),
)

# One of four records is lost; CPUs and sessions add up.
RECORDED: Final = {
    series("collectord_lost_records_total", _EXEC, _FULL, cpu="0"): rising(15),
    series("collectord_lost_records_total", _EXEC, _DROPPED, cpu="1"): rising(15),
    series("collectord_stored_records_total", _EXEC, cpu="0"): rising(45),
    series("collectord_stored_records_total", _EXEC, cpu="1"): rising(45),
    series("collectord_own_cpu_seconds_total"): rising(0.375),
    series("collectord_imposed_cpu_seconds_total", _EXEC): rising(0.25),
    series("collectord_imposed_cpu_seconds_total", _BLACKBOX): rising(0.125),
    series("collectord_cpus_online"): steady(4),
}
RECORDINGS: Final = {
    series("session:collectord_lost:ratio_rate5m", _EXEC): 0.25,
    series("instance:collectord_cost:ratio_rate5m"): 0.0125,
}
