# SPDX-License-Identifier: Apache-2.0
"""`fleet ledger`: what the hosts have told and lost, from the store alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK
from collectord.cli.fleet_groups import (
    FIGURES,
    check_hosts,
    compared_groups,
    complain_of_groups,
    figure_cells,
    groups_json,
    pair_json,
    selection_of,
)
from collectord.cli.output import bytes_text, complain, figure_text, print_json, say, wrapped
from collectord.cli.text_table import Column, print_table
from collectord.cli.times import time_text
from collectord.fleet.choice_checks import check_session
from collectord.fleet.groups import Pair
from collectord.fleet.ledger_groups import LOST_SHARE, ledger_groups
from collectord.fleet.store_audit import fleet_ledger
from collectord.text.wording import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from collectord.fleet.groups import Groups
    from collectord.fleet.ledger_finding import Finding
    from collectord.fleet.ledger_groups import LedgerGroups, SessionSides
    from collectord.fleet.store_audit import Figures, FleetLedger

_COLUMNS: Final = (
    *map(Column, ("HOST", "SESSION")),
    *(
        Column(title, "right")
        for title in ("SEGMENTS", "PRODUCED", "STORED", "LOST", "UNACCOUNTED", "SHIPPED")
    ),
)
_COMPARED: Final = (Column("SESSION"), *FIGURES)
_ALL: Final = "all"
_SHIPPED: Final = {"rows": "rows shipped", "bytes": "bytes shipped"}
# Figures of two groups that are always told; others are if they are not 0 in one of them.
_TOLD: Final = ("segments", "produced", "stored", "lost", LOST_SHARE, "unaccounted")
# Findings of one kind that are named; of more, the number is told.
_NAMED: Final = 20
# Findings whose number their words do not have.
_NUMBERED: Final = ("lost", "overwritten", "unaccounted")
_REMEDIES: Final = {
    "chain": "put a commit that is gone or was changed back, from a version that the store keeps; "
    "where one begins twice or forks, look for two hosts of one name, or one that was installed "
    "anew",
    "commit": "put it back from a version that the store keeps, and look who can write there",
    "object": "put it back from a version that the store keeps: its host does not ship it again",
    "sum": "a commit or a manifest was changed, or put by hand: look who can write to the store",
}


def ledger(args: argparse.Namespace) -> int:
    """Print the ledger of the fleet; return 1 unless it is provably complete."""
    selection = selection_of(args)
    groups = compared_groups(selection, args)
    if groups is None:
        check_hosts(selection, args)
    check_session(selection, args.session)
    found = fleet_ledger(
        selection, args.session, args.silent_after, now_ns=time.time_ns(), verify=args.verify
    )
    compared = None if groups is None else (groups, ledger_groups(found, groups))
    if groups is not None:
        complain_of_groups(groups, "PER HOST is the difference for each host that has the session")
    if args.json:
        print_json(found.to_json() if compared is None else _compared_json(found, *compared))
    else:
        if compared is None:
            rows = [[one.host, one.session, *_cells(one.figures)] for one in found.sessions]
            rows += [[_ALL, unit, *_cells(figures)] for unit, figures in found.sums().items()]
            print_table(_COLUMNS, rows)
        else:
            print_table(_COMPARED, [*_compared_rows(*compared)])
        _print_findings(found.findings)
        if args.verify:
            say(
                f"read {counted(found.checked['objects'], 'object')} of "
                f"{counted(found.checked['commits'], 'segment')}, "
                f"{bytes_text(found.checked['bytes'])}"
            )
    if not found.sessions:
        complain("no segment of the time and of the hosts that are asked for was shipped")
    return EXIT_FAILURE if found.findings or not found.sessions else EXIT_OK


def _cells(figures: Figures) -> list[str]:
    return [
        f"{figures.segments:,}",
        figure_text(figures.produced),
        f"{figures.stored:,}",
        figure_text(figures.lost),
        figure_text(figures.unaccounted),
        bytes_text(figures.bytes),
    ]


def _compared_rows(groups: Groups, found: LedgerGroups) -> Iterator[list[str]]:
    """Yield the cells of figures of two groups: of all sessions, and of each one."""
    hosts = Pair(*(len(group.hosts) for group in groups))
    yield [_ALL, *figure_cells("hosts", hosts)]
    yield [_ALL, *figure_cells("silent hosts", Pair(*map(len, found.silent)), hosts)]
    for one in found.sessions:
        yield [one.session, *figure_cells("hosts", one.hosts)]
        for name, pair in one.pairs():
            if name in _TOLD or any(pair):
                is_share = name == LOST_SHARE
                cells = figure_cells(_words(name), pair, None if is_share else one.hosts)
                yield [one.session, *cells]
            if name == LOST_SHARE:
                for reason, lost in one.losses():
                    if lost.per_host(one.hosts).difference != 0:
                        yield [one.session, *figure_cells(f"  {reason}", lost, one.hosts)]


def _words(name: str) -> str:
    return _SHIPPED.get(name, name.replace("_percent", " in %").replace("_", " "))


def _compared_json(ledger: FleetLedger, groups: Groups, found: LedgerGroups) -> dict[str, Any]:
    document = ledger.to_json()
    told = zip(groups_json(groups), found.silent, strict=True)
    return {
        "complete": document["complete"],
        "end_ns": document["end_ns"],
        "groups": [{**group, "silent": silent} for group, silent in told],
        "sessions": [*map(_session_json, found.sessions)],
        "findings": document["findings"],
        "checked": document["checked"],
    }


def _session_json(one: SessionSides) -> dict[str, Any]:
    def figures(pairs: Iterator[tuple[str, Pair]]) -> dict[str, Any]:
        return {name: pair_json(pair, pair.per_host(one.hosts)) for name, pair in pairs}

    told = figures((name, pair) for name, pair in one.pairs() if name != LOST_SHARE)
    share = dict(one.pairs())[LOST_SHARE]
    return {
        "session": one.session,
        "unit": one.unit,
        "hosts": {**one.hosts._asdict(), "difference": one.hosts.difference},
        **told,
        LOST_SHARE: {**share._asdict(), "difference": share.difference},
        "lost_by": figures(one.losses()),
    }


def _print_findings(findings: Sequence[Finding]) -> None:
    for one in findings[:_NAMED]:
        whose = " ".join(filter(None, (one.host, one.session)))
        count = f"{one.events:,}, " if one.what in _NUMBERED else ""
        times = " to ".join(time_text(ns) for ns in (one.since_ns, one.until_ns) if ns is not None)
        text = f"{one.what}: {whose}: {count}{one.detail}{', ' if times else ''}{times}"
        for line in wrapped(text, first="", rest="  "):
            say(line)
    if len(findings) > _NAMED:
        say(f"{len(findings) - _NAMED:,} more; --json has all")
    for what in sorted({one.what for one in findings} & _REMEDIES.keys()):
        complain(f"{what}: {_REMEDIES[what]}")
