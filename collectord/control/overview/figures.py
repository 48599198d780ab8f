# SPDX-License-Identifier: Apache-2.0
"""The figures of the page, as JSON: what the metrics have, and names of the newest segments."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord import __version__
from collectord.config.schema_trigger import FLAME
from collectord.text.foreign import visible
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.ledger.record_ledger import RingBalance, SessionBalance
    from collectord.session.daemon_status import DaemonStatus
    from collectord.sink.incident_folder import IncidentNote, Kept

_SEGMENTS: Final = 3  # newest ones of a session
_INCIDENTS: Final = 20  # newest ones
_BESIDE: Final = (".json", ".gz")  # what is kept beside a segment
_POINTS: Final = 360  # of the time line: an hour and a half of scrapes, 15 s apart
_LEAST_NS: Final = 2 * NS_PER_SECOND  # between two points, however often it is asked


class TimeLine:
    """Losses and gaps of each session at points of time; each scrape adds one.

    It costs no wake-up of its own, so it begins with the first scrape or look at the page.
    """

    def __init__(self) -> None:
        self._points: deque[dict[str, Any]] = deque(maxlen=_POINTS)
        self._last_ns = 0

    def add(self, status: DaemonStatus, now_ns: int | None = None) -> None:
        """Add a point, unless there is one of this moment."""
        now = time.time_ns() if now_ns is None else now_ns
        if 0 <= now - self._last_ns < _LEAST_NS:
            return
        self._last_ns = now
        sessions = {
            visible(f"{one.name}/{one.source}"): [
                sum(one.lost.values()),
                sum(one.gaps_ns.values()),
            ]
            for one in status.sessions
        }
        self._points.append({"time_ms": now // 1_000_000, "sessions": sessions})

    @property
    def points(self) -> list[dict[str, Any]]:
        """The points, the oldest first: lost records and ns of gaps, both since the start."""
        return [*self._points]


def figures(
    status: DaemonStatus, line: TimeLine, kept: Sequence[Kept] | None = None
) -> dict[str, Any]:
    """Return all that the page shows; texts have no control characters.

    Args:
        status: the daemon's.
        line: of losses and gaps.
        kept: the incidents, the oldest first; None: they are not for this client.
    """
    return {
        "version": __version__,
        "started_ms": status.started_ns // 1_000_000,
        "now_ms": time.time_ns() // 1_000_000,
        "cpus_online": status.cpus_online,
        "cpus_covered": status.cpus_covered,
        "cost": status.cost.ratio,
        "budget": status.cost.budget,
        "chunks": status.core.chunks,
        "chunks_free": status.core.chunks_free,
        "write_errors": status.core.write_errors,
        "unclean_stops": status.unclean_stops,
        "damaged_files": status.damaged_files,
        "sessions": [_session(one) for one in status.sessions],
        "time_line": line.points,
        "kept_incidents": status.incidents.kept,
        "incidents": None
        if kept is None
        else [_incident(one.note) for one in kept[: -_INCIDENTS - 1 : -1] if one.note is not None],
    }


def _incident(note: IncidentNote) -> dict[str, Any]:
    return {
        "id": note.id,
        "fired_ms": note.fired_ns // 1_000_000,
        "trigger": note.trigger,
        "reason": visible(note.reason),
        "also": [visible(told) for told in note.also],
        "files": [visible(file) for file in note.files if not file.endswith(_BESIDE)],
        "is_drawn": any(one.name == FLAME and not one.problem for one in note.answers),
    }


def _session(one: SessionBalance) -> dict[str, Any]:
    windows = [ring.window_ns for ring in one.rings if ring.window_ns is not None]
    return {
        "name": visible(one.name),
        "source": one.source,
        "state": "paused" if one.paused else one.state,
        "basis": str(one.basis),
        "class": one.loss_class,
        "produced": one.produced,
        "stored": one.stored,
        "lost": {key: count for key, count in one.lost.items() if count},
        "in_flight": one.in_flight,
        "unaccounted": one.unaccounted,
        "overwritten": one.overwritten,
        "gaps_s": {key: ns / NS_PER_SECOND for key, ns in one.gaps_ns.items() if ns},
        "keep_s": one.keep_ns / NS_PER_SECOND,
        "window_s": min(windows) / NS_PER_SECOND if windows else None,
        "degraded": [visible(reason) for reason in one.degraded_reasons],
        "segments": [visible(Path(path).name) for path in one.segments[-_SEGMENTS:]],
        "rings": [_ring(ring) for ring in one.rings if ring.label.has_data],
    }


def _ring(ring: RingBalance) -> list[Any]:
    """Return the CPU, the fill and the highest fill from 0 to 1, and the losses of a ring."""
    size = ring.capacity_bytes or 1
    return [
        ring.label.cpu,
        round(ring.used_bytes / size, 3),
        round(ring.peak_fill, 3),
        sum(ring.lost.values()),
    ]
