# SPDX-License-Identifier: Apache-2.0
"""Figures that the balances of rings and of AUX areas have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from collectord._native._core import QUARANTINE_REASONS
from collectord.text.foreign import plain

if TYPE_CHECKING:
    from collectord._native._core import AuxCounters, RingCounters
    from collectord.model import Basis, RingLabel


class DrainedBalance(Protocol):
    """The balance of a ring or of an area, which the core drains. See `RingBalance`."""

    @property
    def label(self) -> RingLabel:
        """The place of the ring or area."""

    @property
    def basis(self) -> Basis:
        """The kind of its balance."""

    @property
    def counters(self) -> RingCounters | AuxCounters:
        """The core's counters."""

    @property
    def quarantined(self) -> str | None:
        """The reason why it is not read any more; None while it is."""


def quarantine(counters: RingCounters | AuxCounters) -> str | None:
    """Return the reason why a ring or an area is not read any more; None while it is."""
    return QUARANTINE_REASONS[counters.quarantine_reason] if counters.quarantined else None


def drained_json(balance: DrainedBalance) -> dict[str, Any]:
    """Return all that a ring's or an area's balance has, from which its JSON takes its keys."""
    counters = balance.counters
    return {
        **counters._asdict(),
        **plain(balance, "label", "counters"),
        **plain(balance.label),
        "ledger_basis": balance.basis,
        "snapshots": counters.windows,
        "wakeups": {"watermark": counters.wakeups_watermark, "timer": counters.wakeups_timer},
        "quarantined": balance.quarantined,
    }
