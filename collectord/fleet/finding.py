# SPDX-License-Identifier: Apache-2.0
"""A reason why the ledger of the fleet is not complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collectord.fleet.commit import Commit


class Finding(NamedTuple):
    """A reason why the ledger is not complete.

    Attributes:
        what: lost, overwritten, unaccounted, uncounted, gap, paused, rows, passed over, silent,
            chain, sum, object or commit.
        detail: in words.
        since_ns, until_ns: UTC, None if nothing tells it.
        events: records, commits or segments; None if nothing tells it.
    """

    what: str
    host: str
    session: str
    detail: str
    since_ns: int | None = None
    until_ns: int | None = None
    events: int | None = None


def span_of(one: Commit) -> tuple[int | None, int | None]:
    """Return the time of a commit's balance, else of its records; None if nothing tells it."""
    balance = one.balance
    begins = balance.since_ns if balance.since_ns is not None else one.first_ns
    ends = balance.until_ns if balance.until_ns is not None else one.last_ns
    return begins, ends
