# SPDX-License-Identifier: Apache-2.0
"""The written form of the ledger in `--json` and in `/v1/status`; manifests have another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from collectord.ledger.aux_ledger import aux_json
from collectord.ledger.drained_balance import drained_json
from collectord.model import RingRole

if TYPE_CHECKING:
    from collectord.ledger.record_ledger import RingBalance, SessionBalance


# The keys of a ring.
_RING_KEYS: Final = (
    *("role", "cpu", "tid", "ledger_basis", "capacity_bytes", "used_bytes"),
    "high_watermark_bytes",
    *("produced", "stored", "lost", "overwritten", "overwritten_bytes", "repeated"),
    *("repeated_bytes", "snapshots", "in_flight", "unaccounted", "records", "bytes", "wakeups"),
    *("throttles", "starved", "relabelled", "quarantined", "faults", "faulty_bytes"),
    *("neutralised", "suppressed_by", "transport", "pages", "spliced_bytes", "torn_pages"),
    *("oldest_unread_age_ns", "window_ns", "foreign_reads", "resets"),
)


def _ring_json(ring: RingBalance) -> dict[str, Any]:
    counters = ring.counters
    whole = {
        **drained_json(ring),
        "used_bytes": ring.used_bytes,
        "overwritten_bytes": counters.window_overwritten_bytes,
        "repeated": counters.window_repeated,
        "repeated_bytes": counters.window_repeated_bytes,
        "faulty_bytes": ring.faulty_bytes,
    }
    return {key: whole[key] for key in _RING_KEYS}


def to_json(balance: SessionBalance) -> dict[str, Any]:
    """Return a session's entry in `--json` and in `/v1/status`.

    `produced` and `unaccounted` are null if the basis is not `exact`. `rings` are the data rings,
    whose sums are the session's figures; `sideband_rings` carry names and mappings. `unit` is
    "bytes" for a relay channel whose records cannot be counted.
    """
    rings = [_ring_json(ring) for ring in balance.rings]
    return {
        "name": balance.name,
        "source": balance.source,
        "scope": balance.scope,
        "state": balance.state,
        "ledger_basis": str(balance.basis),
        "unit": "bytes" if balance.in_bytes else "records",
        "produced": balance.produced,
        "stored": balance.stored,
        "lost": balance.lost,
        "overwritten": balance.overwritten,
        "repeated": balance.repeated,
        "snapshots": balance.snapshots,
        "snapshots_failed": balance.snapshots_failed,
        "paused_ns": balance.paused_ns,
        "paused": list(balance.paused),
        "ends_ns": balance.ends_ns or None,
        "gaps_ns": dict(balance.gaps_ns),
        "followed": [one.to_json() for one in balance.followed],
        "in_flight": balance.in_flight,
        "unaccounted": balance.unaccounted,
        "suppression_possible": any(ring.suppressed_by for ring in balance.rings),
        "suppressed": list(balance.suppressed),
        "degraded": list(balance.degraded_reasons),
        "losing": [place.to_json() for place in balance.losing],
        "rings": [ring for ring in rings if ring["role"] == RingRole.DATA],
        "sideband_rings": [ring for ring in rings if ring["role"] == RingRole.SIDEBAND],
        "aux": [aux_json(area) for area in balance.aux],
        "sideband_state": balance.sideband._asdict(),
        "directory": balance.directory,
        "segments_unsealed": balance.sink.unsealed,
        "segments": list(balance.segments),
    }
