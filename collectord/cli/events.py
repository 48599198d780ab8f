# SPDX-License-Identifier: Apache-2.0
"""`collectord events`: the records of segments, decoded, filtered, counted or followed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK
from collectord.cli.debug_servers import (
    USAGE,
    add_debug_servers,
    complain_of_servers,
    debug_servers,
)
from collectord.cli.event_choice import Choice
from collectord.cli.parser import Parser
from collectord.cli.time_window import time_window
from collectord.cli.times import joined, parse_time
from collectord.codec.record_filter import parse_filter
from collectord.errors import UsageError
from collectord.reader.event_file import EventFile, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.cli.event_chains import NamedChains
    from collectord.cli.event_choice import Choosable
    from collectord.reader.relay_events import RelaySegment
    from collectord.reader.symbols.debuginfod import Debuginfod

_FORMATS: Final = ("text", "json", "csv")


def parser() -> Parser:
    """Return the parser of `events`."""
    made = Parser(
        "events",
        (
            "[-e GLOB]...",
            "[--filter FILTER]",
            "[--since TIME]",
            "[--until TIME]",
            "[-n NUMBER]",
            "[--count | -f]",
            "[--socket PATH]",
            "[-o FORMAT | --json]",
            USAGE,
            "[SEGMENT...]",
        ),
        (
            "collectord events trace.dat",
            "collectord events -e 'sched:*' --filter 'prev_prio < 100' trace.dat",
            "collectord events --count out/*.trace.dat",
            "collectord events --since -10m -n 20 -o csv out/*.perf.data",
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
        help="trace.dat files, perf.data files and sets of blktrace "
        "files, named by one of the files or without .blktrace.N; they may still be written, and "
        "be of perf or trace-cmd; "
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
    made.add_argument(
        "--since",
        metavar="TIME",
        type=parse_time,
        help="print only records from this time on: RFC 3339, HH:MM[:SS] of today, or such as "
        "-10m (default: all)",
    )
    made.add_argument(
        "--until",
        metavar="TIME",
        type=parse_time,
        help="print only records up to this time (default: all)",
    )
    made.add_argument(
        "-n",
        metavar="NUMBER",
        dest="number",
        type=int,
        help="print no more than this number of records and losses (default: all)",
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
    made.add_socket("-f: ")
    form = made.add_mutually_exclusive_group()
    form.add_argument(
        "-o",
        metavar="FORMAT",
        dest="form",
        choices=_FORMATS,
        default="text",
        help="text; json, an object per line, with --count one document; or csv, with a column "
        "for each field of the events that are shown (default: text)",
    )
    form.add_argument(
        "--json",
        dest="form",
        action="store_const",
        const="json",
        help="the same as -o json (default: text)",
    )
    add_debug_servers(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Print the records, or their numbers; return 1 if a part of a segment is damaged."""
    args = parser().parse_intermixed_args(joined(arguments, ("--since", "--until")))
    choice = Choice(
        tuple(glob for word in args.globs or () for glob in word.split(",")),
        parse_filter(args.filter) if args.filter is not None else (),
    )
    window = time_window(args.since, args.until)
    if args.number is not None and args.number < 0:
        raise UsageError("-n takes a number of records", hint="such as -n 20")
    nameless = "--count" if args.count else "-f" if args.follow else ""
    servers = debug_servers(args, "events", nameless)
    if args.follow:
        from collectord.cli import follow  # noqa: PLC0415  # what only -f needs

        if not window.everything or args.number is not None:
            raise UsageError("-f takes no --since, --until and -n", hint="leave them out")
        return follow.run(args.segments, args.socket, choice, args.form)
    if not args.segments:
        raise UsageError(
            "the following arguments are required: SEGMENT", hint="without -f, name a segment"
        )
    if args.count and args.form == "csv":
        raise UsageError("--count has no CSV", hint="-o json is for programs")
    with ExitStack() as stack:
        files = _opened([Path(word) for word in args.segments], choice, window, stack)
        if args.count:
            return _count(files, choice, window, as_json=args.form == "json")
        chains = _named_chains(files, choice, args.form, window, servers)
        status = _print(files, choice, window, args.form, chains, number=args.number)
        complain_of_servers(servers, is_needed=chains is not None)
        return status


def _opened(
    paths: Sequence[Path], choice: Choice, window: Window, stack: ExitStack
) -> list[EventFile | RelaySegment]:
    """Open segments, and check that they match the choice, before anything is printed."""
    from collectord.cli.event_view import choosables  # noqa: PLC0415  # see `_print`
    from collectord.reader.any_events import open_any  # noqa: PLC0415

    files = [open_any(path, stack) for path in paths]
    known: dict[str, Choosable] = {}
    for file in files:
        if isinstance(file, EventFile):
            found = choosables(file)
        else:
            from collectord.cli import events_relay  # noqa: PLC0415

            if not window.everything:
                raise UsageError(
                    f"{file.path} has no times of day", hint="leave out --since and --until"
                )
            found = events_relay.choosables()
        known.update({one.names[0]: one for one in found})
    choice.check(tuple(known.values()))
    return files


def _print(
    files: Sequence[EventFile | RelaySegment],
    choice: Choice,
    window: Window,
    form: str,
    chains: NamedChains | None,
    *,
    number: int | None,
) -> int:
    # These are needed by printing alone: counting is over before they would be loaded.
    from collectord.cli.event_view import Printer, print_file  # noqa: PLC0415
    from collectord.session.maps.device_names import HostNames  # noqa: PLC0415

    events = [event for file in files if isinstance(file, EventFile) for event in file.events]
    named = chains is not None and chains.is_possible
    printer = Printer(choice, form, HostNames(), named=named)
    printer.knows(events)
    damaged = False
    for file in files:
        if isinstance(file, EventFile):
            texts = chains.of(file) if chains is not None else None
            found = print_file(file, printer, window, number, texts)
            if chains is not None:
                chains.end(file, texts)
        else:
            from collectord.cli.events_relay import print_relay  # noqa: PLC0415

            found = print_relay(file, form, number)
        damaged |= found.damaged
        if number is not None:
            number -= found.printed
    if chains is not None:
        chains.complain()
    return EXIT_FAILURE if damaged else EXIT_OK


def _named_chains(
    files: Sequence[EventFile | RelaySegment],
    choice: Choice,
    form: str,
    window: Window,
    servers: Debuginfod | None,
) -> NamedChains | None:
    """Return the names of functions for chains; None if no event that is shown has addresses."""
    from collectord.cli.event_view import choosable  # noqa: PLC0415  # see `_print`

    events = [event for file in files if isinstance(file, EventFile) for event in file.events]
    if not any(event.is_placed and choice.names(choosable(event)) for event in events):
        return None
    from collectord.cli.event_chains import NamedChains  # noqa: PLC0415  # what only they need

    return NamedChains(form, window, servers)


def _count(
    files: Sequence[EventFile | RelaySegment], choice: Choice, window: Window, *, as_json: bool
) -> int:
    from collectord.cli.event_count import EventCount  # noqa: PLC0415
    from collectord.cli.event_view import count_file  # noqa: PLC0415

    counted = EventCount()
    damaged = False
    for file in files:
        if isinstance(file, EventFile):
            damaged |= count_file(file, choice, window, counted)
        else:
            from collectord.cli.events_relay import count_relay  # noqa: PLC0415

            count_relay(file, counted)
    counted.show(as_json=as_json)
    return EXIT_FAILURE if damaged else EXIT_OK
