# SPDX-License-Identifier: Apache-2.0
"""The ledger of two groups of hosts: the figures of each session in both, and what differs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.fleet.groups import Pair
from collectord.fleet.store_audit import Figures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.fleet.groups import Groups
    from collectord.fleet.store_audit import FleetLedger

LOST_SHARE: Final = "lost_percent"
# Findings that are told as figures: whether each one counts, or the segments that it is of.
_COUNTED: Final = {"gap": "gaps", "paused": "pauses", "rows": "without_rows"}
_NOT_SHIPPED: Final = "not_shipped"
_PASSED_OVER: Final = "passed over"
_SILENT: Final = "silent"
_PERCENT: Final = 100


@dataclass(slots=True)
class SideLedger:
    """The ledger of a session in one group.

    Attributes:
        hosts: that have the session.
        lost_by: by STAGE/REASON.
        counts: of gaps, pauses, segments without rows, and segments that were not shipped.
    """

    hosts: set[str] = field(default_factory=set)
    figures: Figures = field(default_factory=Figures)
    lost_by: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def numbers(self) -> dict[str, float | None]:
        """Return all figures by name; None for what nothing tells."""
        figures = self.figures
        share = None
        if figures.lost is not None and figures.produced:
            share = _PERCENT * figures.lost / figures.produced
        elif figures.lost == figures.produced == 0:
            share = 0.0
        told: dict[str, float | None] = {}
        for name, figure in figures._asdict().items():
            told[name] = figure
            if name == "lost":
                told[LOST_SHARE] = share
        return told | {name: self.counts[name] for name in (*_COUNTED.values(), _NOT_SHIPPED)}


class SessionSides(NamedTuple):
    """The ledger of a session in both groups."""

    session: str
    unit: str
    sides: tuple[SideLedger, SideLedger]

    @property
    def hosts(self) -> Pair:
        """How many hosts of each group have the session."""
        return Pair(*(len(side.hosts) for side in self.sides))

    def pairs(self) -> Iterator[tuple[str, Pair]]:
        """Yield the figures of both groups by name."""
        group, against = (side.numbers() for side in self.sides)
        for name in group:
            yield name, Pair(group[name], against[name])

    def losses(self) -> Iterator[tuple[str, Pair]]:
        """Yield the lost records of both groups by STAGE/REASON."""
        group, against = (side.lost_by for side in self.sides)
        for name in sorted({*group, *against}):
            yield name, Pair(group[name], against[name])


class LedgerGroups(NamedTuple):
    """The ledger of two groups.

    Attributes:
        sessions: by name and unit.
        silent: the silent hosts of each group.
    """

    sessions: Sequence[SessionSides]
    silent: tuple[Sequence[str], Sequence[str]]


def ledger_groups(ledger: FleetLedger, groups: Groups) -> LedgerGroups:
    """Return the ledger of each of two groups, whose hosts all are in a ledger."""
    sides: dict[tuple[str, str], tuple[SideLedger, SideLedger]] = {}
    for one in ledger.sessions:
        both = sides.setdefault((one.session, one.unit), (SideLedger(), SideLedger()))
        for number in groups.sides_of(one.host):
            side = both[number]
            side.hosts.add(one.host)
            side.figures = side.figures.plus(one.figures)
            side.lost_by.update(one.lost_by)
    silent: tuple[list[str], list[str]] = [], []
    for finding in ledger.findings:
        for number in groups.sides_of(finding.host):
            if finding.what == _SILENT:
                silent[number].append(finding.host)
            for (session, _), both in sides.items():
                if session != finding.session:
                    continue
                if finding.what in _COUNTED:
                    both[number].counts[_COUNTED[finding.what]] += 1
                elif finding.what == _PASSED_OVER:
                    both[number].counts[_NOT_SHIPPED] += finding.events or 0
    ordered = [SessionSides(*key, both) for key, both in sorted(sides.items())]
    return LedgerGroups(ordered, silent)
