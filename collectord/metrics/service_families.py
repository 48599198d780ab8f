# SPDX-License-Identifier: Apache-2.0
"""Metric families about a session itself: its promises, its memory, the processes it follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.metrics.families import SESSION, counter, gauge, highest, lowest, of_session
from collectord.model import PAUSES, Basis
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from collectord.ledger.record_ledger import SessionBalance
    from collectord.metrics.families import Reading

_LEVELS: Final = {Basis.NONE: 0, Basis.LOST_ONLY: 1, Basis.EXACT: 2}


def families(reading: Reading) -> Iterator[Metric]:
    """Yield all families of all sessions."""
    sessions = reading.status.sessions
    yield highest(
        "collectord_session_class",
        "Always 1; the label `class` has the session's class: must-not-lose, normal or spare.",
        (*SESSION, "class"),
        (((*of_session(s), s.loss_class), 1) for s in sessions),
    )
    yield lowest(
        "collectord_ledger_basis_level",
        "Basis of the session's ledger: 2 exact, 1 lost_only, 0 none.",
        SESSION,
        ((of_session(s), _LEVELS[s.basis]) for s in sessions),
    )
    yield highest(
        "collectord_session_paused",
        "1 while the session is paused, by the cause: the cost is over the budget (shed), or "
        "somebody asked for it (request).",
        (*SESSION, "cause"),
        (((*of_session(s), cause), cause in s.paused) for s in sessions for cause in PAUSES),
    )
    followed = [(of_session(s), one) for s in sessions for one in s.followed]
    yield gauge(
        "collectord_followed_processes",
        "Processes with open events now, of a session that follows those that match.",
        SESSION,
        ((labels, one.open) for labels, one in followed),
    )
    yield counter(
        "collectord_followed_attached_processes",
        "Processes that matched and were attached; what they start is recorded with them.",
        SESSION,
        ((labels, one.attached) for labels, one in followed),
    )
    yield counter(
        "collectord_followed_missed_processes",
        "Processes that matched and were not attached, by the reason; `unknown` ones were gone "
        "before it could be seen whether they match.",
        (*SESSION, "reason"),
        (((*labels, why), n) for labels, one in followed for why, n in one.missed.items()),
    )
    yield counter(
        "collectord_followed_rescans",
        "Scans of all processes because messages of the kernel about new ones were lost.",
        SESSION,
        ((labels, one.rescans) for labels, one in followed),
    )
    yield highest(
        "collectord_recorder_keep_seconds",
        "Seconds that a flight recorder of ftrace or BPF should reach back (`keep`).",
        SESSION,
        ((of_session(s), s.keep_ns / NS_PER_SECOND) for s in sessions if s.keep_ns),
    )
    yield lowest(
        "collectord_last_heartbeat_timestamp_seconds",
        "Unix time of the last heartbeat that arrived in all rings, at first that of the start.",
        SESSION,
        ((of_session(s), s.heard_ns / NS_PER_SECOND) for s in sessions if s.heard_ns),
    )
    yield gauge(
        "collectord_pinned_memory_bytes",
        "Memory of the kernel that the session's rings and AUX areas take, in bytes.",
        SESSION,
        ((of_session(s), pinned_bytes(s)) for s in sessions),
    )


def pinned_bytes(session: SessionBalance) -> int:
    """Return the memory of the kernel that a session's rings and AUX areas take."""
    rings = sum(ring.capacity_bytes for ring in session.rings)
    return rings + sum(area.capacity_bytes for area in session.aux)
