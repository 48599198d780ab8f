# SPDX-License-Identifier: Apache-2.0
"""Notifications of Alertmanager's webhook, version 4, with alerts that tests choose."""

from __future__ import annotations

from typing import Any, Final

FINGERPRINT: Final = "8f3c0de1a2b4c5d6"
SINCE: Final = "2026-11-23T02:31:11.656Z"


def alert(
    fingerprint: str = FINGERPRINT, *, since: str = SINCE, status: str = "firing", **labels: str
) -> dict[str, Any]:
    """Return an alert; its name is DiskSlow unless `labels` says otherwise."""
    return {
        "status": status,
        "labels": {"alertname": "DiskSlow", "severity": "page", **labels},
        "annotations": {"summary": "the disk is slow"},
        "startsAt": since,
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus.example/graph",
        "fingerprint": fingerprint,
    }


def notification(*alerts: dict[str, Any], version: str = "4") -> dict[str, Any]:
    """Return the notification of these alerts."""
    return {
        "version": version,
        "groupKey": '{}:{alertname="DiskSlow"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "collectord",
        "groupLabels": {"alertname": "DiskSlow"},
        "commonLabels": {"severity": "page"},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager.example",
        "alerts": [*alerts],
    }
