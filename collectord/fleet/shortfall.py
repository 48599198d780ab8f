# SPDX-License-Identifier: Apache-2.0
"""The shortfall of what was read, by commits: objects that are gone, losses, gaps, and rows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from collectord.errors import NotStored

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from collectord.fleet.commit import Commit
    from collectord.fleet.recordings import Recordings
    from collectord.fleet.selection import Selection
    from collectord.reader.event_file import Window


class Shortfall(NamedTuple):
    """The records that hosts lack, and the times.

    Attributes:
        lost: how many, by host, by {lost or overwritten, records or bytes}.
        gaps: times in which nothing was recorded, by host.
        without_rows: segments whose records are not there, by host.
        withheld: segments of which the ledger alone was to be shipped, by host.
    """

    lost: Mapping[tuple[str, str], Counter[str]]
    gaps: Counter[str]
    without_rows: Counter[str]
    withheld: Counter[str]


def shortfall(recordings: Recordings, tables: Collection[str], window: Window) -> Shortfall:
    """Return what lacks in the records of some tables within a time.

    Of a segment that is partly in it all losses count, as nothing tells when they were. A gap is
    told by the segments behind it.
    """
    lost: dict[tuple[str, str], Counter[str]] = {}
    gaps: set[tuple[str, int | None, int | None]] = set()
    for one in recordings.commits_of(tables):
        balance = one.balance
        for how, count in (("lost", balance.lost), ("overwritten", balance.overwritten)):
            if count and window.overlaps(*one.span):
                lost.setdefault((how, balance.unit), Counter())[one.host] += count
        # Each segment of a run has the gap before the run.
        gaps |= {
            (one.host, time.since_ns, time.until_ns)
            for time in one.covered
            if time.what != "recorded" and window.overlaps(time.since_ns, time.until_ns)
        }
    return Shortfall(
        lost,
        Counter(host for host, _, _ in gaps),
        recordings.without_rows(tables, window),
        recordings.withheld(tables, window),
    )


def note_gone(
    selection: Selection,
    commits: Iterable[Commit],
    tables: Collection[str],
    keys: AbstractSet[str],
) -> set[str]:
    """Note the objects that commits name and the store has not.

    Args:
        selection: has them among those that are gone.
        commits: of the time.
        tables: whose rows they have.
        keys: of those that are there.

    Returns:
        The hosts of whose objects none is there.
    """
    named: dict[str, list[str]] = {}
    for one in commits:
        for stored in one.objects:
            if stored.event in tables:
                named.setdefault(one.host, []).append(stored.key)
    for key in (key for of_host in named.values() for key in of_host if key not in keys):
        selection.gone[key] = NotStored(
            f"{selection.store.url} has no {key}, which its commit names",
            key=key,
            hint="`collectord fleet ledger --verify` names each object that is gone",
        )
    return {host for host, of_host in named.items() if keys.isdisjoint(of_host)}
