# SPDX-License-Identifier: Apache-2.0
"""The ledger across the fleet, from a store alone: what each host's sessions told, and what lacks.

Commits have the balances. That nobody removed or changed one of them is seen by the chain in which
each names the one before it by its hash; that the objects are as they were put, by their hashes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.errors import NotStored, StoreError
from collectord.fleet import commit as commits_of
from collectord.fleet.store_keys import source_of
from collectord.sink.told_balance import balance_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from collectord.fleet.commit import Commit
    from collectord.fleet.selection import Selection, Told
    from collectord.fleet.store import Store

_EXACT: Final = "exact"


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
    told = [
        one
        for one in selection.commits
        if session in {None, one.commit.session} and _is_within(one.commit, selection)
    ]
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
    findings += _silent(sessions.values(), selection.hosts, silent_ns, end_ns)
    checked: Counter[str] = Counter()
    if verify:
        verifier = _Verifier(selection.store, told, checked)
        findings += verifier.findings(is_whole=selection.wanted.window.everything)
    ordered = sorted(sessions.values(), key=lambda one: (one.host, one.session, one.unit))
    return FleetLedger(ordered, sorted(findings, key=_order), checked, end_ns)


def _is_within(one: Commit, selection: Selection) -> bool:
    since_ns, until_ns = selection.wanted.window
    begins, ends = _span(one)
    after = until_ns is not None and begins is not None and begins > until_ns
    before = since_ns is not None and ends is not None and ends < since_ns
    return not after and not before


def _span(one: Commit) -> tuple[int | None, int | None]:
    balance = one.balance
    begins = balance.since_ns if balance.since_ns is not None else one.first_ns
    ends = balance.until_ns if balance.until_ns is not None else one.last_ns
    return begins, ends


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
    begins, ends = _span(one)
    found.since_ns = _least(found.since_ns, begins)
    found.until_ns = max(filter(None, (found.until_ns, ends)), default=None)
    found.shipped_ns = max(found.shipped_ns, one.shipped_ns)
    found.lost_by.update(balance.lost_by or {})
    if one.config_sha256:
        found.plans.add(one.config_sha256)


def _of_commit(one: Commit) -> Iterator[Finding]:
    """Yield what a segment's own balance lacks."""
    balance = one.balance
    since_ns, until_ns = _span(one)
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
        detail = f"segments before {one.segment} were not shipped"
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


class _Verifier:
    """Follows the chains of some commits, and reads their objects."""

    def __init__(self, store: Store, told: Sequence[Told], checked: Counter[str]) -> None:
        self._store = store
        self._told = told
        self._by_key = {one.key: one for one in told}
        self._checked = checked

    def findings(self, *, is_whole: bool) -> Iterator[Finding]:
        """Yield what is not as it was put. Raises StoreError."""
        followed: Counter[str] = Counter()
        for one in self._told:
            self._checked["commits"] += 1
            yield from self._link(one, followed)
            yield from self._manifests(one.commit)
            yield from self._objects(one.commit)
        for key, count in followed.items():
            if count > 1:
                one = self._by_key[key]
                yield _finding("chain", one.commit, f"{count} commits follow {key}")
        heads = Counter(one.commit.stream for one in self._told if one.commit.previous is None)
        for (host, session, stored_as), count in heads.items():
            if count > 1:
                detail = f"the chain of {stored_as} begins {count} times"
                yield Finding("chain", host, session, detail, events=count)
        if is_whole:
            yield from _sums([one.commit for one in self._told])

    def _link(self, one: Told, followed: Counter[str]) -> Iterator[Finding]:
        previous = one.commit.previous
        if previous is None:
            return
        before = self._by_key.get(previous.key)
        if before is not None:
            followed[previous.key] += 1
            digest = before.sha256
        else:  # of a day that was not asked for
            try:
                data = self._store.get(previous.key, commits_of.COMMIT_MAX_BYTES)
            except NotStored:
                detail = f"{previous.key}, which {one.commit.segment} follows, is gone"
                yield _finding("chain", one.commit, detail)
                return
            digest = commits_of.digest(data)
        if digest != previous.sha256:
            yield _finding("chain", one.commit, f"{previous.key} is not as it was put")

    def _manifests(self, one: Commit) -> Iterator[Finding]:
        if not one.redacted and source_of(commits_of.sources_told(one)) != one.source:
            yield _finding("commit", one, f"the manifests of {one.segment} are not those it had")

    def _objects(self, one: Commit) -> Iterator[Finding]:
        for stored in one.objects:
            self._checked["objects"] += 1
            try:
                size_bytes, sha256 = self._store.digest(stored.key)
            except NotStored:
                yield _finding("object", one, f"{stored.key} is gone")
                continue
            except StoreError as error:
                yield _finding("object", one, str(error))
                continue
            self._checked["bytes"] += size_bytes
            if (size_bytes, sha256) != (stored.bytes, stored.sha256):
                yield _finding("object", one, f"{stored.key} is not as it was put")


def _sums(commits: Sequence[Commit]) -> Iterator[Finding]:
    """Yield the runs whose balances are not together what their last manifest tells of the run."""
    runs: dict[tuple[str, str, str], list[Commit]] = {}
    for one in commits:
        manifests = one.decoded()
        if len(manifests) == 1 and manifests[0].run:
            runs.setdefault((one.host, one.session, manifests[0].run), []).append(one)
    for (host, session, _), segments in runs.items():
        manifests = [one.decoded()[0] for one in segments]
        newest = max(manifests, key=lambda one: (one.stored_before, one.started_ns))
        oldest = min(manifests, key=lambda one: (one.stored_before, one.started_ns))
        passed = any(one.passed_over for one in segments)
        told = balance_in(newest)
        if oldest.stored_before or passed or isinstance(told, str) or told.lost is None:
            continue  # what is not here has a part in the run's ledger
        balances = [one.balance for one in segments]
        for name, whole, parts in (
            ("produced", told.produced, [one.produced for one in balances]),
            ("lost", sum(told.lost.values()), [one.lost for one in balances]),
            ("stored", newest.stored_before + newest.samples, [one.stored for one in balances]),
        ):
            if whole is None or None in parts:
                continue
            total = sum(filter(None, parts))
            if total != whole:
                detail = f"{name} is {total:,} in the commits, and {whole:,} in the manifests"
                yield Finding("sum", host, session, detail, events=whole - total)


def _finding(what: str, one: Commit, detail: str) -> Finding:
    return Finding(what, one.host, one.session, detail, *_span(one))


def _order(one: Finding) -> tuple[str, str, int, str]:
    return one.host, one.session, one.since_ns or 0, one.what


def _host_of(key: str) -> str:
    return key.partition("host=")[2].partition("/")[0]


def _least(known: int | None, other: int | None) -> int | None:
    return min((one for one in (known, other) if one is not None), default=None)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
