# SPDX-License-Identifier: Apache-2.0
"""The written form of the ledger in `--json` and in `/v1/status`; manifests have a `Cut`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectord.ledger.aux_ledger import aux_json
from collectord.model import RingRole

if TYPE_CHECKING:
    from collectord.ledger.record_ledger import RingBalance, SessionBalance


def _ring_json(ring: RingBalance) -> dict[str, Any]:
    return {
        "role": str(ring.label.role),
        "cpu": ring.label.cpu,
        "tid": ring.label.tid,
        "ledger_basis": str(ring.basis),
        "capacity_bytes": ring.capacity_bytes,
        "high_watermark_bytes": ring.high_watermark_bytes,
        "produced": ring.produced,
        "stored": ring.stored,
        "lost": ring.lost,
        "overwritten": ring.overwritten,
        "overwritten_bytes": ring.overwritten_bytes,
        "repeated": ring.repeated,
        "repeated_bytes": ring.repeated_bytes,
        "snapshots": ring.snapshots,
        "in_flight": ring.in_flight,
        "unaccounted": ring.unaccounted,
        "records": ring.records,
        "bytes": ring.bytes,
        "wakeups": {"watermark": ring.wakeups_watermark, "timer": ring.wakeups_timer},
        "throttles": ring.throttles,
        "starved": ring.starved,
        "relabelled": ring.relabelled,
        "quarantined": ring.quarantined,
        "faults": ring.faults,
        "faulty_bytes": ring.faulty_bytes,
        "neutralised": ring.neutralised,
        "suppressed_by": list(ring.suppressed_by),
        "transport": ring.transport,
        "pages": ring.pages,
        "spliced_bytes": ring.spliced_bytes,
        "torn_pages": ring.torn_pages,
        "oldest_unread_age_ns": ring.oldest_unread_age_ns,
        "window_ns": ring.window_ns,
        "foreign_reads": ring.foreign_reads,
        "resets": ring.resets,
    }


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
