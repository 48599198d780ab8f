# SPDX-License-Identifier: Apache-2.0
"""`collectord flame`: where time goes, from the call chains of samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_OK
from collectord.cli.debug_servers import (
    USAGE,
    add_debug_servers,
    complain_of_servers,
    debug_servers,
)
from collectord.cli.new_file import new_file
from collectord.cli.output import complain, say
from collectord.cli.parser import Parser
from collectord.cli.query_parts import add_scope
from collectord.cli.segments import STATE_DIRECTORY
from collectord.cli.stacks import (
    ReadStacks,
    Wishes,
    chosen_form,
    read_stacks,
    title_of,
    write_stacks,
)
from collectord.cli.time_window import time_window
from collectord.cli.times import TIMES, joined, parse_time
from collectord.errors import UsageError
from collectord.reader.event_file import Window
from collectord.reader.flame import folded
from collectord.reader.flame.picture import Picture
from collectord.text.foreign import visible

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from collectord.reader.flame.forms import Form

_BY: Final = ("comm", "pid", "cpu", "cgroup")
_SPAN: Final = ".."


def parser() -> Parser:
    """Return the parser of `flame`."""
    made = Parser(
        "flame",
        (
            "[-e GLOB]...",
            "[--off-cpu]",
            "[--since TIME]",
            "[--until TIME]",
            "[--session NAME]",
            "[--by WHAT]",
            "[--against OTHER]",
            USAGE,
            "[-o FILE]",
            "[DIR|FILE...]",
        ),
        (
            "collectord flame --since -10m -o now.html",
            "collectord flame --session profile --by pid -o pids.svg",
            "collectord flame --session profile --by cgroup -o cgroups.html",
            "collectord flame perf.data | grep -v '^<idle>' | sort -k 2 | tail",
            "collectord flame --since -5m --against -65m..-60m -o more.html",
            "collectord flame new.perf.data --against old.perf.data -o more.svg",
            "collectord flame -e sched:sched_switch -o switches.speedscope.json",
            "collectord flame --off-cpu --by pid -o waits.html",
        ),
    )
    made.add_argument(
        "targets",
        metavar="DIR|FILE",
        nargs="*",
        help="state directories, session directories, perf.data files, sealed or "
        f"still written, or .folded files of stacks (default: {STATE_DIRECTORY})",
    )
    made.add_argument(
        "-e",
        metavar="GLOB",
        dest="globs",
        action="append",
        help="count samples of events whose NAME or SYSTEM:NAME matches (default: the only "
        "event that is neither a tracepoint nor of a BPF program, such as cycles)",
    )
    made.add_argument(
        "--off-cpu",
        action="store_true",
        help="show the time that threads were off the CPU, in ns, by the stacks with which they "
        "left it, from sched:sched_switch with call chains (default: count samples)",
    )
    add_scope(made)
    made.add_argument(
        "--by",
        metavar="WHAT",
        choices=_BY,
        default="comm",
        help="the outermost frame: comm, the name of the thread; pid, its process too; cpu; or "
        "cgroup, where the recording has cgroups (default: comm)",
    )
    made.add_argument(
        "--against",
        metavar="OTHER",
        help="show what has become more or less since another time, as SINCE..UNTIL, or than in "
        "another directory or file (default: compare with nothing)",
    )
    add_debug_servers(made)
    made.add_argument(
        "-o",
        metavar="FILE",
        dest="output",
        type=Path,
        help="write a file, whose name says in which form: .svg, .html, .folded, "
        ".speedscope.json, .pprof or .firefox.json (default: print folded stacks)",
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """Count the stacks and write them; return 1 if something could not be read."""
    args = parser().parse_intermixed_args(joined(arguments, (*TIMES, "--against")))
    form = chosen_form(args.output, compares=args.against is not None)
    if args.off_cpu and args.globs:
        raise UsageError("-e and --off-cpu do not go together", hint="leave one of them out")
    targets = [Path(word) for word in args.targets] or [STATE_DIRECTORY]
    servers = debug_servers(args, "flame")
    wishes = Wishes(args.session, args.globs or (), args.by, args.off_cpu, servers)
    now = read_stacks(targets, time_window(args.since, args.until), wishes)
    before = _against(targets, args.against, wishes) if args.against is not None else None
    complain_of_servers(servers)
    if before is not None and before.profile.unit != now.profile.unit:
        raise UsageError("what is compared has other units", hint="compare samples with samples")
    picture = Picture(
        _title(args, targets, wishes),
        now.profile.unit,
        now.profile.stacks,
        before.profile.stacks if before is not None else None,
    )
    if not now.profile.stacks:
        complain("there are no samples in what was read")
    _write(picture, form, args.output)
    return max(now.status, before.status if before is not None else EXIT_OK)


def _against(targets: Sequence[Path], other: str, wishes: Wishes) -> ReadStacks:
    """Read what is compared with: a file or a directory, or another time of the same targets."""
    since, span, until = other.partition(_SPAN)
    if span and not os.path.lexists(other):
        return read_stacks(targets, time_window(parse_time(since), parse_time(until)), wishes)
    return read_stacks([Path(other)], Window(), wishes)


def _title(args: Namespace, targets: Sequence[Path], wishes: Wishes) -> str:
    title = title_of(targets, wishes)
    return f"{title}, against {visible(args.against)}" if args.against is not None else title


def _write(picture: Picture, form: Form, path: Path | None) -> None:
    if path is None:
        for line in folded.lines(picture):
            say(line)
        return
    with new_file(path) as write:
        write_stacks(picture, form, write)
    say(f"wrote {picture.total:,} {picture.unit} to {path}")
