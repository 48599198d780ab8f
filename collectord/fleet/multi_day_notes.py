# SPDX-License-Identifier: Apache-2.0
"""The notes of segments that are of other days than their keys tell; pure.

The day in the keys of a segment is that of its first record. Questions of a time list the days of
it, and the day before. A segment that lasts longer, or that began before the day of its first
record, has a note by whose key they find it, without reading what commits of other days tell.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from collectord.fleet.store_keys import CommitKey, LastingKey, day_of

if TYPE_CHECKING:
    from collectord.fleet.commit import Commit

# Days before the asked time whose keys are read too, as segments cross midnight.
DAYS_BEFORE: Final = 1


def multi_day_key(commit: Commit) -> LastingKey | None:
    """Return the key of a segment's note; None if it needs none."""
    times = (commit.first_ns, commit.last_ns, commit.balance.since_ns, commit.balance.until_ns)
    days = sorted({commit.date, *(day_of(one) for one in times if one is not None)})
    next_day = date.fromisoformat(commit.date) + timedelta(days=DAYS_BEFORE)
    if days[0] == commit.date and days[-1] <= next_day.isoformat():
        return None
    return LastingKey(days[-1], days[0], CommitKey(commit.date, commit.host, commit.source))


def note_content(lasting: LastingKey) -> bytes:
    """Return the contents of a note: the key of its commit."""
    return f"{lasting.commit.key}\n".encode()
