# SPDX-License-Identifier: Apache-2.0
"""`collectord segments`: list, verify and repair what a state directory holds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import VERBS
from collectord.cli.output import Column, bytes_text, print_json, print_table
from collectord.cli.parser import Parser
from collectord.errors import UsageError
from collectord.sink import repair, verify
from collectord.sink.segment import sink_errors

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

STATE_DIRECTORY: Final = Path("/var/lib/collectord")
_NS_PER_SECOND: Final = 1_000_000_000
_SEGMENT: Final = Column("SEGMENT")
_STATE: Final = Column("STATE")
_SAMPLES: Final = Column("SAMPLES", "right")
_SIZE: Final = Column("SIZE", "right")
_DETAIL: Final = Column("DETAIL")
_UNREPAIRED: Final = frozenset({repair.Action.REFUSED, repair.Action.FAILED})


def parser() -> Parser:
    """Options of `segments`."""
    made = Parser(
        "collectord segments",
        ("list|verify|repair", "[--sha256]", "[--json]", "[DIR]"),
        VERBS["segments"],
        (
            "collectord segments list",
            "collectord segments verify out",
            "collectord segments verify --sha256 --json out/exec",
            "collectord segments repair /var/lib/collectord",
        ),
    )
    made.add_argument(
        "action",
        choices=tuple(_ACTIONS),
        metavar="list|verify|repair",
        help="list what is there; check data against manifests; seal what a killed process left "
        "(sealed segments stay as they are; verify tells what is wrong with one)",
    )
    made.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        type=Path,
        default=STATE_DIRECTORY,
        help="state directory, session directory or, for verify, one segment "
        f"(default: {STATE_DIRECTORY})",
    )
    made.add_argument(
        "--sha256", action="store_true", help="verify: hash whole files as well (default: no)"
    )
    made.add_argument(
        "--json", action="store_true", help="print the result as JSON (default: a table)"
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """Carry out one action; 1 if a segment is wrong or could not be repaired."""
    args = parser().parse_intermixed_args(arguments)
    if args.sha256 and args.action != "verify":
        raise UsageError("--sha256 goes with verify")
    with sink_errors("nothing to look at", args.directory, reading=True):
        args.directory.stat()
    return _ACTIONS[args.action](args)


def _list(args: argparse.Namespace) -> int:
    rows = verify.list_segments([args.directory])
    if args.json:
        print_json({"segments": rows})
        return 0
    print_table(
        (_SEGMENT, Column("FORMAT"), _STATE, Column("START"), _SAMPLES, Column("BASIS"), _SIZE),
        [
            [
                str(row.path),
                row.format or "-",
                str(row.state),
                _time(row.started_ns),
                _figure(row.samples),
                row.basis or "-",
                bytes_text(row.allocated_bytes),
            ]
            for row in rows
        ],
    )
    return 0


def _verify(args: argparse.Namespace) -> int:
    verdicts = verify.verify([args.directory], sha256=args.sha256)
    if args.json:
        print_json({"segments": verdicts})
    else:
        print_table(
            (_SEGMENT, _STATE, Column("VERDICT"), _SAMPLES, _SIZE, _DETAIL),
            [
                [
                    str(verdict.path),
                    str(verdict.state),
                    "wrong" if verdict.finding else "ok",
                    f"{verdict.samples:,}",
                    bytes_text(verdict.allocated_bytes),
                    _finding(verdict),
                ]
                for verdict in verdicts
            ],
        )
    return int(any(verdict.finding for verdict in verdicts))


def _repair(args: argparse.Namespace) -> int:
    outcomes = repair.repair(args.directory)
    if args.json:
        print_json({"segments": outcomes})
    else:
        print_table(
            (_SEGMENT, Column("ACTION"), _SAMPLES, _SIZE, _DETAIL),
            [
                [
                    str(outcome.path),
                    str(outcome.action),
                    f"{outcome.samples:,}",
                    bytes_text(outcome.allocated_bytes),
                    outcome.detail,
                ]
                for outcome in outcomes
            ],
        )
    return int(any(outcome.action in _UNREPAIRED for outcome in outcomes))


_ACTIONS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "list": _list,
    "verify": _verify,
    "repair": _repair,
}


def _finding(verdict: verify.Verdict) -> str:
    if verdict.finding is not None:
        return f"{verdict.finding.check}: {verdict.finding.detail}"
    return f"sha256 {verdict.sha256}" if verdict.sha256 else ""


def _time(realtime_ns: int | None) -> str:
    if realtime_ns is None:
        return "-"
    start = datetime.fromtimestamp(realtime_ns / _NS_PER_SECOND, tz=UTC)
    return f"{start:%Y-%m-%d %H:%M:%SZ}"


def _figure(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
