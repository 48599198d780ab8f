# SPDX-License-Identifier: Apache-2.0
"""A reason why the ledger of the fleet is not complete."""

from __future__ import annotations

from typing import NamedTuple


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
