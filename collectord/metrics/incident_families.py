# SPDX-License-Identifier: Apache-2.0
"""Metric families about triggers, and about the incidents that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.metrics.families import counter, gauge
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from collectord.metrics.families import Reading

_TRIGGER: Final = ("trigger",)


def families(reading: Reading) -> Iterator[Metric]:
    """Yield all families."""
    incidents = reading.status.incidents
    triggers = incidents.triggers
    yield counter(
        "collectord_incidents",
        "Incidents, by their triggers; those of earlier daemons count.",
        _TRIGGER,
        (((one.name,), one.made) for one in triggers),
    )
    yield counter(
        "collectord_incidents_suppressed",
        "Times that a trigger's condition was met and no incident was made: one was being made "
        "(busy), the last one was too recent (cooldown), or it had made enough (per_day).",
        (*_TRIGGER, "cause"),
        (
            ((one.name, cause), times)
            for one in triggers
            for cause, times in one.suppressed.items()
        ),
    )
    yield gauge(
        "collectord_last_incident_timestamp_seconds",
        "Unix time of the last incident of a trigger within a day, 0 for none.",
        _TRIGGER,
        (((one.name,), one.fired_ns / NS_PER_SECOND) for one in triggers),
    )
    yield gauge(
        "collectord_trigger_degraded",
        "1 if the kernel does not watch what the trigger is for, and the daemon looks itself.",
        _TRIGGER,
        (((one.name,), bool(one.trouble)) for one in triggers),
    )
    yield counter(
        "collectord_incidents_failed",
        "Incidents that could not be written.",
        (),
        [((), incidents.failed)],
    )
    yield counter(
        "collectord_incidents_deleted",
        "Incidents that were deleted because of the limits in [incidents], or of a full disk.",
        (),
        [((), incidents.evicted)],
    )
    yield gauge(
        "collectord_kept_incidents",
        "Incidents that are kept.",
        (),
        [((), incidents.kept)],
    )
    yield gauge(
        "collectord_kept_incident_bytes",
        "Disk space of the incidents that are kept; a file that a session has too counts half.",
        (),
        [((), incidents.bytes)],
    )
