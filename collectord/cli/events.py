# SPDX-License-Identifier: Apache-2.0
"""`collectord events`: the records of segments, decoded, filtered, counted or followed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from collectord.cli import (
    EXIT_FAILURE,
    EXIT_OK,
    events_bpf,
    events_relay,
    events_trace,
    follow,
)
from collectord.cli.event_choice import Choice
from collectord.cli.event_count import EventCount
from collectord.cli.events_bpf import BpfStyle, BpfView
from collectord.cli.events_relay import RelayView
from collectord.cli.events_trace import TraceView
from collectord.cli.mark import add_socket
from collectord.cli.output import print_line, say
from collectord.cli.parser import Parser
from collectord.codec.record_filter import parse_filter
from collectord.errors import UsageError
from collectord.reader.any_events import open_events
from collectord.reader.perf_events import BpfSegment
from collectord.reader.relay_events import RelaySegment
from collectord.session.maps.device_names import HostNames

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.cli.event_choice import Choosable
    from collectord.reader.perf_events import BpfEvent
    from collectord.reader.trace_events import TraceSegment


def parser() -> Parser:
    """Return the parser of `events`."""
    made = Parser(
        "events",
        (
            "[-e GLOB]...",
            "[--filter FILTER]",
            "[--count | -f]",
            "[--socket PATH]",
            "[--json]",
            "[SEGMENT...]",
        ),
        (
            "collectord events trace.dat",
            "collectord events -e 'sched:*' --filter 'prev_prio < 100' trace.dat",
            "collectord events --count out/*.trace.dat",
            "collectord events -e complete --filter 'error != 0' vdb",
            "collectord events --json trace.dat | jq -c 'select(.event) | .fields'",
            "collectord events -f",
            "collectord events -f --filter 'comm ~ \"nginx*\"' opens",
        ),
    )
    made.add_argument(
        "segments",
        metavar="SEGMENT",
        nargs="*",
        help="trace.dat files, perf.data files with events of BPF programs, and sets of blktrace "
        "files, named by one of the files or without .blktrace.N; they may still be written; "
        "each is printed in the order of time, one after the other; with -f also "
        "sessions of the daemon and directories (default with -f: all sessions with BPF events)",
    )
    made.add_argument(
        "-e",
        metavar="GLOB",
        dest="globs",
        action="append",
        help="print only events whose NAME or SYSTEM:NAME matches (default: all)",
    )
    made.add_argument(
        "--filter",
        metavar="FILTER",
        help="print only records that match FIELD OP VALUE [&& ...]; OP is == != < <= > >= & for "
        "numbers, == != ~ for text; events without the field do not match (default: all)",
    )
    how = made.add_mutually_exclusive_group()
    how.add_argument(
        "--count",
        action="store_true",
        help="print the number of records of each event (default: print each record)",
    )
    how.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="print events of BPF programs as they are submitted, until the session ends or "
        "Ctrl-C; from a SEGMENT on, print it and all that follow it; events are printed in the "
        "order of time, one to two flush intervals late (default: print what is stored, and end)",
    )
    add_socket(made, "-f: ")
    made.add_json("print one JSON object per line, with --count one document (default: text)")
    return made


class View(Protocol):
    """The chosen records of a segment.

    Attributes:
        damaged: something could not be read, and was reported.
    """

    damaged: bool

    def texts(self) -> Iterator[str]:
        """Yield a line for each record and loss, in the order of time."""

    def objects(self) -> Iterator[dict[str, Any]]:
        """Yield the records and losses as plain data."""

    def count(self, into: EventCount) -> None:
        """Add up the records and losses."""


def run(arguments: Sequence[str]) -> int:
    """Print the records, or their numbers; return 1 if a part of a segment is damaged."""
    args = parser().parse_intermixed_args(arguments)
    choice = Choice(
        tuple(glob for word in args.globs or () for glob in word.split(",")),
        parse_filter(args.filter) if args.filter is not None else (),
    )
    if args.follow:
        return follow.run(args.segments, args.socket, choice, as_json=args.json)
    if not args.segments:
        raise UsageError(
            "the following arguments are required: SEGMENT", hint="without -f, name a segment"
        )
    paths = [Path(word) for word in args.segments]
    style = _agree(paths, choice)
    counted = EventCount()
    damaged = False
    for path in paths:
        with open_events(path) as segment:
            view = _view(segment, choice, style)
            if args.count:
                view.count(counted)
            elif args.json:
                for found in view.objects():
                    print_line(found)
            else:
                for line in view.texts():
                    say(line)
            damaged |= view.damaged
    if args.count:
        counted.show(as_json=args.json)
    return EXIT_FAILURE if damaged else EXIT_OK


def _agree(paths: Sequence[Path], choice: Choice) -> BpfStyle:
    """Check that the segments can be read and match the choice, before anything is printed."""
    known: dict[str, Choosable] = {}
    programs: dict[str, BpfEvent] = {}
    for path in paths:
        with open_events(path) as segment:
            known.update({one.names[0]: one for one in _choosables(segment)})
            if isinstance(segment, BpfSegment):
                programs.update({event.name: event for event in segment.events})
    choice.check(tuple(known.values()))
    return BpfStyle(HostNames(), choice, programs.values())


def _choosables(segment: BpfSegment | TraceSegment | RelaySegment) -> list[Choosable]:
    if isinstance(segment, RelaySegment):
        return events_relay.choosables(segment)
    if isinstance(segment, BpfSegment):
        return events_bpf.choosables(segment)
    return events_trace.choosables(segment)


def _view(
    segment: BpfSegment | TraceSegment | RelaySegment, choice: Choice, style: BpfStyle
) -> View:
    if isinstance(segment, RelaySegment):
        return RelayView(segment, choice)
    if isinstance(segment, BpfSegment):
        return BpfView(segment, choice, style)
    return TraceView(segment, choice)
