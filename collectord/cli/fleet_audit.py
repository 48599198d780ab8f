# SPDX-License-Identifier: Apache-2.0
"""`fleet ledger`: what the hosts have told and lost, from the store alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK
from collectord.cli.fleet_asking import selection_of
from collectord.cli.output import (
    Column,
    bytes_text,
    complain,
    figure_text,
    print_json,
    print_table,
    say,
    wrapped,
)
from collectord.cli.times import time_text
from collectord.fleet.store_audit import fleet_ledger

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from collectord.fleet.store_audit import Figures, Finding

_COLUMNS: Final = (
    *map(Column, ("HOST", "SESSION")),
    *(
        Column(title, "right")
        for title in ("SEGMENTS", "PRODUCED", "STORED", "LOST", "UNACCOUNTED", "SHIPPED")
    ),
)
_ALL: Final = "all"
# Of more of one kind, the number is told.
_NAMED: Final = 20


def ledger(args: argparse.Namespace) -> int:
    """Print the ledger of the fleet; return 1 unless it is provably complete."""
    selection = selection_of(args)
    found = fleet_ledger(selection, args.session, args.silent_ns, verify=args.verify)
    if args.json:
        print_json(found.to_json())
    else:
        rows = [[one.host, one.session, *_cells(one.figures)] for one in found.sessions]
        rows += [[_ALL, unit, *_cells(figures)] for unit, figures in found.sums().items()]
        print_table(_COLUMNS, rows)
        _print_findings(found.findings)
        if args.verify:
            say(
                f"read {found.checked['objects']:,} objects of {found.checked['commits']:,} "
                f"segments, {bytes_text(found.checked['bytes'])}"
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


def _print_findings(findings: Sequence[Finding]) -> None:
    for one in findings[:_NAMED]:
        whose = " ".join(filter(None, (one.host, one.session)))
        count = "" if one.events is None else f"{one.events:,}, "
        times = " to ".join(time_text(ns) for ns in (one.since_ns, one.until_ns) if ns is not None)
        text = f"{one.what}: {whose}: {count}{one.detail}{', ' if times else ''}{times}"
        for line in wrapped(text, first="", rest="  "):
            say(line)
    if len(findings) > _NAMED:
        say(f"{len(findings) - _NAMED:,} more; --json has all")
