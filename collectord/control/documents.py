# SPDX-License-Identifier: Apache-2.0
"""The JSON documents of the control API's answers: plain data, times in RFC 3339."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from collectord import __version__
from collectord.session.incident_status import Suppression
from collectord.session.maps.program_status import session_json
from collectord.text import cpu_list
from collectord.text.foreign import plain
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.session.cost_meter import Cost
    from collectord.session.daemon_status import DaemonStatus
    from collectord.session.ring_snapshot import Snapshot
    from collectord.session.running_threads import RunningThreads
    from collectord.sink.base import SegmentInfo
    from collectord.sink.incident_folder import IncidentNote


def status_json(status: DaemonStatus) -> dict[str, Any]:
    """Return the document of `/v1/status`."""
    started = datetime.fromtimestamp(status.started_ns / NS_PER_SECOND, tz=UTC)
    return {
        "version": __version__,
        "pid": os.getpid(),
        "started": started.isoformat(timespec="milliseconds"),
        "config_sha256": status.config_sha256,
        "cpus_online": status.cpus_online,
        "cpus_covered": status.cpus_covered,
        "unclean_stops": status.unclean_stops,
        "damaged_files": status.damaged_files,
        "log_lines_dropped": status.log_lines_dropped,
        "clocks": plain(status.clocks),
        "core": status.core._asdict(),
        "drain": _drain_json(status.drain),
        "cost": _cost_json(status.cost),
        "sessions": [session_json(balance, status.bpf) for balance in status.sessions],
        "incidents": plain(status.incidents),
        "beginning": [session_json(balance, ()) for balance in status.beginning],
        "ending": [session_json(balance, ()) for balance in status.ending],
    }


def _drain_json(drain: RunningThreads) -> dict[str, Any]:
    """Return the drain threads with their present scheduling."""
    return {
        "lacks": list(drain.lacks),
        "threads": [
            {
                "name": one.name,
                "tid": one.tid,
                **plain(one.scheduling),
                "cpus": cpu_list.render(one.scheduling.cpus),
                "drains": cpu_list.render(one.drains),
            }
            for one in drain.threads
        ],
    }


def _cost_json(cost: Cost) -> dict[str, Any]:
    """Return the daemon's cost; that of its probes by session and source."""
    imposed = {"/".join(session): ns for session, ns in cost.imposed_ns.items()}
    return {**plain(cost, "imposed_ns"), "imposed_ns": imposed}


def sessions_json(status: DaemonStatus, name: str | None = None) -> dict[str, Any]:
    """Return the document of `/v1/sessions/NAME`, or of all: a balance for each source."""
    found = (balance for balance in status.sessions if name in {None, balance.name})
    return {"sessions": [session_json(balance, status.bpf) for balance in found]}


def snapshots_json(snapshots: Iterable[Snapshot]) -> dict[str, Any]:
    """Return the answer of `/v1/snapshot`."""
    made = tuple(snapshots)
    return {
        "segments": [path for snapshot in made for path in snapshot.segments],
        "snapshots": [snapshot.to_json() for snapshot in made],
    }


def incident_json(made: IncidentNote | Suppression) -> dict[str, Any]:
    """Return the answer of `/v1/incident`: the incident, or why there is none."""
    if isinstance(made, Suppression):
        return {"incident": None, "suppressed": str(made)}
    return {
        "incident": made.id,
        "suppressed": None,
        "snapshots": list(made.snapshots),
        "problems": list(made.problems),
    }


def rotated_json(sealed: Iterable[SegmentInfo]) -> dict[str, Any]:
    """Return the answer of `/v1/rotate`: what was sealed, and each file of it."""
    infos = tuple(sealed)
    return {
        "segments": [str(path) for info in infos for path in (info.path, *info.more)],
        "rotated": [
            {
                "session": info.manifest.session,
                "source": info.manifest.source,
                "segment": str(info.path),
                "samples": info.manifest.samples,
            }
            for info in infos
        ],
    }
