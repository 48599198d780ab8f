# SPDX-License-Identifier: Apache-2.0
"""The ledger across the fleet, from a store alone: what each host's sessions told, and what lacks.

Commits have the balances; `verification` sees whether the store has what was put.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.fleet.ledger_finding import Finding
from collectord.fleet.verification import Verification
from collectord.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from collectord.fleet.commit import Commit
    from collectord.fleet.selection import Selection

_EXACT: Final = "exact"


class Figures(NamedTuple):
    """Sums of balances; None is what one of them does not tell."""

    segments: int = 0
    produced: int | None = 0
    stored: int = 0
    lost: int | None = 0
    overwritten: int | None = 0
    in_flight: int | None = 0
    unaccounted: int | None = 0
    rows: int = 0
    bytes: int = 0

    def plus(self, other: Figures) -> Figures:
        """Return the sums of both."""
        return Figures._make(map(_sum, self, other))


_NONE: Final = Figures()


@dataclass(slots=True)
class SessionLedger:
    """The ledger of a session of a host, of one unit.

    Attributes:
        since_ns, until_ns: UTC, of all its balances; None if nothing tells it.
        shipped_ns: UTC, when the newest of its segments was shipped.
        lost_by: by STAGE/REASON.
        plans: SHA-256 of the plans by which it recorded.
    """

    host: str
    session: str
    unit: str
    figures: Figures = _NONE
    since_ns: int | None = None
    until_ns: int | None = None
    shipped_ns: int = 0
    lost_by: Counter[str] = field(default_factory=Counter)
    plans: set[str] = field(default_factory=set)


class FleetLedger(NamedTuple):
    """The ledger of all hosts that were looked at.

    Attributes:
        sessions: by host and name.
        findings: none if all of it is complete.
        checked: commits whose links were followed; objects that were looked at, and read.
        end_ns: UTC, the end of the time, before which hosts may be silent.
    """

    sessions: Sequence[SessionLedger]
    findings: Sequence[Finding]
    checked: Mapping[str, int]
    end_ns: int

    def sums(self) -> dict[str, Figures]:
        """Return the sums of all hosts, by unit."""
        totals: dict[str, Figures] = {}
        for one in self.sessions:
            totals[one.unit] = totals.get(one.unit, Figures()).plus(one.figures)
        return totals

    def to_json(self) -> dict[str, Any]:
        """Return the form in JSON output."""
        return {
            "complete": not self.findings,
            "end_ns": self.end_ns,
            "sessions": [
                {
                    "host": one.host,
                    "session": one.session,
                    "unit": one.unit,
                    **one.figures._asdict(),
                    "lost_by": dict(sorted(one.lost_by.items())),
                    "since_ns": one.since_ns,
                    "until_ns": one.until_ns,
                    "shipped_ns": one.shipped_ns,
                    "plans": sorted(one.plans),
                }
                for one in self.sessions
            ],
            "all": {unit: figures._asdict() for unit, figures in self.sums().items()},
            "findings": [one._asdict() for one in self.findings],
            "checked": dict(self.checked),
        }


def fleet_ledger(
    selection: Selection, session: str | None, silent_ns: int, *, now_ns: int, verify: bool
) -> FleetLedger:
    """Return the ledger of some hosts and days.

    Args:
        selection: of them; of a segment that is partly in the time, all counts.
        session: only this one; None: all.
        silent_ns: a host is silent that tells nothing of a time of this length at the end.
        now_ns: UTC; the time ends here, if it does not end before.
        verify: follow the chains, compare sums with the manifests, and read all objects.

    Raises:
        StoreError: the store cannot be read.
    """
    asked = [one for one in selection.commits if session in {None, one.commit.session}]
    told = [one for one in asked if selection.wanted.window.overlaps(*one.commit.span)]
    sessions: dict[tuple[str, str, str], SessionLedger] = {}
    for one in told:
        _add(sessions, one.commit)
    findings = [
        Finding("commit", _host_of(key), "", str(error))
        for key, error in selection.damaged.items()
    ]
    for one in told:
        findings += _of_commit(one.commit)
    until_ns = selection.wanted.window.until_ns
    end_ns = now_ns if until_ns is None else min(now_ns, until_ns)
    # One that never had the session is not silent about it.
    hosts = selection.hosts if session is None else sorted({one.commit.host for one in asked})
    findings += _silent(sessions.values(), hosts, silent_ns, end_ns)
    checked: Counter[str] = Counter()
    if verify:
        verification = Verification(selection.store, told, checked)
        findings += verification.findings(is_whole=selection.wanted.window.everything)
    ordered = sorted(sessions.values(), key=lambda one: (one.host, one.session, one.unit))
    return FleetLedger(ordered, sorted(findings, key=_order), checked, end_ns)


def _add(sessions: dict[tuple[str, str, str], SessionLedger], one: Commit) -> None:
    key = one.host, one.session, one.balance.unit
    found = sessions.get(key)
    if found is None:
        found = sessions[key] = SessionLedger(*key)
    balance = one.balance
    found.figures = found.figures.plus(
        Figures(
            1,
            balance.produced,
            balance.stored,
            balance.lost,
            balance.overwritten,
            balance.in_flight,
            balance.unaccounted,
            sum(stored.rows for stored in one.objects if stored.event),
            sum(stored.bytes for stored in one.objects),
        )
    )
    begins, ends = one.span
    found.since_ns = _least(found.since_ns, begins)
    found.until_ns = max(filter(None, (found.until_ns, ends)), default=None)
    found.shipped_ns = max(found.shipped_ns, one.shipped_ns)
    found.lost_by.update(balance.lost_by or {})
    if one.config_sha256:
        found.plans.add(one.config_sha256)


def _of_commit(one: Commit) -> Iterator[Finding]:
    """Yield what a segment's own balance lacks."""
    balance = one.balance
    since_ns, until_ns = one.span
    for what, count in (
        ("lost", balance.lost),
        ("overwritten", balance.overwritten),
        ("unaccounted", balance.unaccounted),
    ):
        if count:
            by = ", ".join(f"{name} {lost:,}" for name, lost in (balance.lost_by or {}).items())
            detail = by if what == "lost" and by else f"{balance.unit} in {one.segment}"
            yield Finding(what, one.host, one.session, detail, since_ns, until_ns, count)
    if balance.basis != _EXACT or balance.produced is None:
        detail = f"nothing proves that {one.segment} has every event (basis {balance.basis})"
        yield Finding("uncounted", one.host, one.session, detail, since_ns, until_ns)
    for time in one.covered:
        if time.what != "recorded":
            detail = f"nothing was recorded ({time.cause or 'unknown cause'})"
            yield Finding(time.what, one.host, one.session, detail, time.since_ns, time.until_ns)
    if one.problem:
        detail = f"the rows of {one.segment} are not there: {one.problem}"
        yield Finding("rows", one.host, one.session, detail, since_ns, until_ns)
    if one.passed_over:
        were = "was" if one.passed_over == 1 else "were"
        detail = f"{counted(one.passed_over, 'segment')} before {one.segment} {were} not shipped"
        yield Finding(
            "passed over", one.host, one.session, detail, None, since_ns, one.passed_over
        )


def _silent(
    sessions: Iterable[SessionLedger], hosts: Sequence[str], silent_ns: int, end_ns: int
) -> Iterator[Finding]:
    """Yield the hosts that tell nothing of the end of the time."""
    last: dict[str, int] = {}
    for one in sessions:
        if one.until_ns is not None:
            last[one.host] = max(one.until_ns, last.get(one.host, 0))
    for host, ends in last.items():
        if end_ns - ends > silent_ns:
            yield Finding("silent", host, "", "it has told nothing of this time", ends, end_ns)
    for host in hosts:
        if host not in last:
            yield Finding("silent", host, "", "it tells nothing of the time that is asked for")


def _order(one: Finding) -> tuple[str, str, int, str]:
    return one.host, one.session, one.since_ns or 0, one.what


def _host_of(key: str) -> str:
    return key.partition("host=")[2].partition("/")[0]


def _least(known: int | None, other: int | None) -> int | None:
    return min((one for one in (known, other) if one is not None), default=None)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
