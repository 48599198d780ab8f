# SPDX-License-Identifier: Apache-2.0
"""`collectord events`: the records of trace.dat segments, decoded, filtered and counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from collectord.cli import EXIT_FAILURE, EXIT_OK, VERBS
from collectord.cli.output import Column, complain, emit, print_json, print_table, say
from collectord.cli.parser import Parser
from collectord.codec.ftrace_decode import (
    bind,
    id_of,
    is_named,
    lacking,
    parse_filter,
    pid_of,
    unknown_event,
    value_of,
    value_text,
)
from collectord.errors import UnknownEvent, UsageError
from collectord.plan.nearest import did_you_mean
from collectord.sink.trace_events import Damage, Loss, Record, open_segment
from collectord.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from collectord.codec.ftrace_decode import KnownEvent, Predicate, Term
    from collectord.sink.trace_events import Happening, TraceSegment

_NS_PER_SECOND: Final = 1_000_000_000
# The codec gives no text that UTF-8 cannot encode.
_ENCODER: Final = msgspec.json.Encoder()
_COLUMNS: Final = (Column("EVENT"), Column("COUNT", "right"))


def parser() -> Parser:
    """Options of `events`."""
    made = Parser(
        "collectord events",
        ("[-e GLOB]...", "[--filter FILTER]", "[--count]", "[--json]", "SEGMENT..."),
        VERBS["events"],
        (
            "collectord events trace.dat",
            "collectord events -e 'sched:*' --filter 'prev_prio < 100' trace.dat",
            "collectord events --count out/*.trace.dat",
            "collectord events --json trace.dat | jq -c 'select(.event) | .fields'",
        ),
    )
    made.add_argument(
        "segments",
        metavar="SEGMENT",
        nargs="+",
        type=Path,
        help="trace.dat files, sealed or still being written; one after the other, the CPUs of "
        "each in the order of time",
    )
    made.add_argument(
        "-e",
        metavar="GLOB",
        dest="globs",
        action="append",
        help="only events whose NAME or SYSTEM:NAME fits (default: all)",
    )
    made.add_argument(
        "--filter",
        metavar="FILTER",
        help="only records that fit FIELD OP VALUE [&& ...]; OP is == != < <= > >= & of numbers, "
        "== != ~ of text; events without such a field do not fit (default: all)",
    )
    made.add_argument(
        "--count", action="store_true", help="how many of each event (default: each record)"
    )
    made.add_argument(
        "--json",
        action="store_true",
        help="one JSON object a line, with --count one document (default: text)",
    )
    return made


class _Choice(NamedTuple):
    """What -e and --filter ask for."""

    globs: Sequence[str]
    terms: Sequence[Term]

    def names(self, event: KnownEvent) -> bool:
        return not self.globs or is_named(event, self.globs)

    def check(self, events: Sequence[KnownEvent]) -> None:
        """Refuse what fits nothing that the segments can hold.

        Raises:
            UnknownEvent: a glob fits no event.
            UsageError: no event has the filter's fields, or they cannot be compared like that.
        """
        for glob in self.globs:
            if not any(is_named(event, [glob]) for event in events):
                known = {name for event in events for name in (event.name, event.layout.name)}
                hint = did_you_mean(glob.strip("*"), known) or "--count lists the events"
                raise UnknownEvent(f"no event {glob!r} in the segments", text=glob, hint=hint)
        chosen = [event for event in events if self.names(event)]
        fields = {field.name for event in chosen for field in event.fields}
        for term in self.terms:
            if term.field not in fields:
                hint = did_you_mean(term.field, fields) or f"one of {', '.join(sorted(fields))}"
                raise UsageError(
                    f"no event has a field {term.field!r}", text=term.field, hint=hint
                )
        complete = [event for event in chosen if not lacking(self.terms, event)]
        if not complete:
            names = ", ".join(term.field for term in self.terms)
            raise UsageError(f"no event has all of {names}")
        refusals = []
        for event in complete:
            try:
                bind(self.terms, event)
            except UsageError as error:
                refusals.append(error)
        if len(refusals) == len(complete):
            raise refusals[0]

    def predicates(self, events: Iterable[KnownEvent]) -> dict[int, Predicate]:
        """Give what the records of each event that may fit are to fit, by the event's id."""
        found = {}
        for event in events:
            if self.names(event) and not lacking(self.terms, event):
                try:
                    found[event.layout.id] = bind(self.terms, event)
                except UsageError:  # another event of this choice has such a field
                    continue
        return found


class _Reader:
    """Goes through segments and gives what was asked for, with the event of each record.

    Attributes:
        damaged: something could not be read, and was complained of.
    """

    def __init__(self, choice: _Choice) -> None:
        self._choice = choice
        self.damaged = False

    def read(
        self, segment: TraceSegment, happenings: Iterable[Happening]
    ) -> Iterator[tuple[Record, KnownEvent] | Loss]:
        """Leave out what was not asked for."""
        predicates = self._choice.predicates(segment.events.values())
        everything = not self._choice.globs and not self._choice.terms
        for happening in happenings:
            if isinstance(happening, Damage):
                self.damaged = True
                complain(
                    f"{segment.path}: {happening.fault} at byte {happening.offset}, of CPU "
                    f"{happening.cpu}; the rest of the page is left out"
                )
                continue
            if isinstance(happening, Loss):
                yield happening
                continue
            number = id_of(happening.payload)
            event = segment.events.get(number)
            if event is None:
                if everything:
                    yield happening, unknown_event(number)
            elif number in predicates and predicates[number](happening.payload):
                yield happening, event


def run(arguments: Sequence[str]) -> int:
    """Print the records, or their numbers; 1 if a part of a segment is damaged."""
    args = parser().parse_args(arguments)
    choice = _Choice(
        tuple(glob for word in args.globs or () for glob in word.split(",")),
        parse_filter(args.filter) if args.filter is not None else (),
    )
    known: dict[str, KnownEvent] = {}
    for path in args.segments:
        with open_segment(path) as segment:
            known.update({event.name: event for event in segment.events.values()})
    choice.check(tuple(known.values()))
    reader = _Reader(choice)
    if args.count:
        _count(args.segments, reader, as_json=args.json)
    else:
        for path in args.segments:
            with open_segment(path) as segment:
                for found in reader.read(segment, segment.by_time()):
                    if args.json:
                        emit(_ENCODER.encode(_as_data(segment, found)).decode() + "\n")
                    else:
                        say(_as_text(segment, found))
    return EXIT_FAILURE if reader.damaged else EXIT_OK


def _as_text(segment: TraceSegment, found: tuple[Record, KnownEvent] | Loss) -> str:
    if isinstance(found, Loss):
        return _loss_text(found.cpu, found.events)
    (time_ns, cpu, payload), event = found
    pid = pid_of(payload, event)
    task = visible(f"{segment.comm(pid)}-{'?' if pid is None else pid}")
    seconds, rest_ns = divmod(time_ns, _NS_PER_SECOND)
    fields = " ".join(
        f"{field.name}={value_text(value_of(payload, field), field)}"
        for field in event.layout.fields
    )
    return f"{seconds}.{rest_ns:09} [{cpu:03}] {task:<22} {event.name}: {fields}"


def _loss_text(cpu: int, events: int | None) -> str:
    if events is None:
        return f"CPU {cpu}: events lost"
    return f"CPU {cpu}: {events} event{'' if events == 1 else 's'} lost"


def _as_data(segment: TraceSegment, found: tuple[Record, KnownEvent] | Loss) -> dict[str, Any]:
    if isinstance(found, Loss):
        return {"time_ns": found.time_ns, "cpu": found.cpu, "lost": found.events}
    (time_ns, cpu, payload), event = found
    pid = pid_of(payload, event)
    values = {field.name: value_of(payload, field) for field in event.fields}
    return {
        "time_ns": time_ns,
        "cpu": cpu,
        "pid": pid,
        "comm": segment.comm(pid),
        "event": event.name,
        "fields": {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in values.items()
        },
    }


def _count(paths: Iterable[Path], reader: _Reader, *, as_json: bool) -> None:
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    losses: list[Loss] = []
    for path in paths:
        with open_segment(path) as segment:
            for found in reader.read(segment, segment.by_cpu()):
                if isinstance(found, Loss):
                    losses.append(found)
                else:
                    record, event = found
                    counts[event.name][record.cpu] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1].total(), item[0]))
    lost = {
        cpu: _sum([loss.events for loss in losses if loss.cpu == cpu])
        for cpu in sorted({loss.cpu for loss in losses})
    }
    if as_json:
        print_json(
            {
                "events": [
                    {"event": name, "count": cpus.total(), "cpus": dict(sorted(cpus.items()))}
                    for name, cpus in ordered
                ],
                "lost": lost,
            }
        )
        return
    print_table(_COLUMNS, [[name, f"{cpus.total():,}"] for name, cpus in ordered])
    for cpu, events in lost.items():
        say(_loss_text(cpu, events))


def _sum(events: Sequence[int | None]) -> int | None:
    known = [count for count in events if count is not None]
    return sum(known) if len(known) == len(events) else None
