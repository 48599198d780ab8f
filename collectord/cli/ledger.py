# SPDX-License-Identifier: Apache-2.0
"""`collectord ledger`: whether a window of time is complete, and if not, what is missing why."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK
from collectord.cli.output import complain, figure_text, print_json, say, wrapped
from collectord.cli.parser import Parser
from collectord.cli.segments import STATE_DIRECTORY
from collectord.cli.times import TIMES, check_order, joined, parse_time
from collectord.reader.audit import audit
from collectord.text.units import NS_PER_SECOND
from collectord.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.reader.audit import Audit
    from collectord.reader.audit_findings import Finding

_INDENT: Final = "  "
_HASH_DIGITS: Final = 16
_MOST_NS: Final = 253_370_764_800 * NS_PER_SECOND  # the year 9999


def parser() -> Parser:
    """Return the parser of `ledger`."""
    made = Parser(
        "ledger",
        ("[--session NAME]", "[--since TIME]", "[--until TIME]", "[--json]", "[DIR...]"),
        (
            "collectord ledger",
            "collectord ledger --session exec --since 10:00 --until 10:05",
            "collectord ledger --json out/exec",
        ),
    )
    made.add_argument(
        "directories",
        metavar="DIR",
        nargs="*",
        type=Path,
        default=[STATE_DIRECTORY],
        help=f"state directories or session directories (default: {STATE_DIRECTORY})",
    )
    made.add_argument("--session", metavar="NAME", help="look at this session only (default: all)")
    made.add_argument(
        "--since",
        metavar="TIME",
        type=parse_time,
        help="beginning of the window: RFC 3339, HH:MM[:SS] of today, or such as -10m (default: "
        "that of the oldest segment)",
    )
    made.add_argument(
        "--until",
        metavar="TIME",
        type=parse_time,
        help="end of the window (default: the last balance, which is as old as the last segment)",
    )
    made.add_json("print the result as JSON (default: text)")
    return made


def run(arguments: Sequence[str]) -> int:
    """Print the account of a window; return 1 unless it is provably complete."""
    args = parser().parse_intermixed_args(joined(arguments, TIMES))
    check_order(args.since, args.until)
    audits = audit(args.directories, args.session, args.since, args.until)
    complete = bool(audits) and all(one.is_complete for one in audits)
    if args.json:
        print_json({"complete": complete, "sessions": [one.to_json() for one in audits]})
    else:
        for one in audits:
            for line in _lines(one):
                say(line)
    if not audits:
        of_session = f" of session {args.session}" if args.session else ""
        complain(f"nothing is stored{of_session} in {', '.join(map(str, args.directories))}")
    return EXIT_OK if complete else EXIT_FAILURE


def _lines(one: Audit) -> Iterator[str]:
    verdict = "complete" if one.is_complete else "NOT COMPLETE"
    window = _times(one.since_ns, one.until_ns)
    yield from wrapped(f"{one.session}, {one.source}: {verdict}, {window}", first="", rest=_INDENT)
    for figures in one.figures:
        told = []
        if figures.in_flight_before:
            told.append(f"in flight before {figures.in_flight_before:,}")
        told += [
            f"produced {figure_text(figures.produced)}",
            f"stored {figures.stored:,}",
            f"lost {sum(figures.lost.values()):,}",
        ]
        if figures.overwritten:
            told.append(f"overwritten {figures.overwritten:,}")
        told += [
            f"in flight {figures.in_flight:,}",
            f"unaccounted {figure_text(figures.unaccounted)}",
        ]
        if not figures.settled:
            told.append("the run goes on, or was killed")
        yield from _part(f"balance {_times(figures.since_ns, figures.until_ns)}", told)
    for plan in one.in_force:
        hashed = plan.plan_sha256[:_HASH_DIGITS] or "unknown"
        filters = [f"{event} if {text}" for event, text in plan.filters.items()]
        words = [f"plan {hashed}", *(filters or ["no filter"])]
        yield from _part(f"in force {_times(plan.since_ns, plan.until_ns)}", words)
    for finding in one.findings:
        yield from _finding_lines(finding)


def _part(title: str, words: Sequence[str]) -> Iterator[str]:
    yield from wrapped(title, first=_INDENT, rest=_INDENT * 2)
    yield from wrapped(", ".join(words), first=_INDENT * 2, rest=_INDENT * 2)


def _finding_lines(finding: Finding) -> Iterator[str]:
    words = [finding.detail]
    if finding.events is not None:
        words.append(counted(finding.events, "event"))
    if finding.file:
        words.append(finding.file)
    title = f"{finding.what} {_times(finding.since_ns, finding.until_ns)}"
    yield from _part(title, words)


def _times(since_ns: int | None, until_ns: int | None) -> str:
    """Format an interval; the day of its end is left out if it is that of its beginning."""
    if since_ns is None and until_ns is None:
        return "at an unknown time"
    since, until = _time(since_ns), _time(until_ns)
    if since[:10] == until[:10] and since_ns is not None and until_ns is not None:
        until = until[11:]
    return f"{since} to {until}"


def _time(realtime_ns: int | None) -> str:
    if realtime_ns is None:
        return "now"
    if not 0 < realtime_ns < _MOST_NS:
        return "the beginning" if realtime_ns <= 0 else "an unknown time"
    seconds, rest_ns = divmod(realtime_ns, NS_PER_SECOND)
    return (
        f"{datetime.fromtimestamp(seconds, tz=UTC):%Y-%m-%d %H:%M:%S}.{rest_ns // 1_000_000:03d}Z"
    )
