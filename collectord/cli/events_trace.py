# SPDX-License-Identifier: Apache-2.0
"""`collectord events` for trace.dat segments: ftrace's records as text and as data."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from collectord.cli.event_choice import Choosable
from collectord.cli.event_count import loss_text
from collectord.cli.output import complain
from collectord.codec.ftrace_format import (
    bind,
    id_of,
    pid_of,
    unknown_event,
    value_of,
    value_text,
)
from collectord.reader.trace_events import Damage, Loss, Record
from collectord.text.foreign import visible
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from collectord.cli.event_choice import Choice
    from collectord.cli.event_count import EventCount
    from collectord.codec.ftrace_format import KnownEvent, Predicate
    from collectord.codec.record_filter import Term
    from collectord.reader.trace_events import Happening, TraceSegment


def choosables(segment: TraceSegment) -> list[Choosable]:
    """Return the events of a segment."""
    return [
        Choosable(
            key=event.layout.id,
            names=(event.name, event.layout.name),
            fields=frozenset(field.name for field in event.fields),
            bind=partial(_bind, event),
        )
        for event in segment.events.values()
    ]


def _bind(event: KnownEvent, terms: Sequence[Term]) -> Predicate:
    return bind(terms, event)


class TraceView:
    """The chosen records of a segment.

    Attributes:
        damaged: something could not be read, and was reported.
    """

    def __init__(self, segment: TraceSegment, choice: Choice) -> None:
        self._segment = segment
        self._everything = choice.everything
        self._predicates = choice.predicates(choosables(segment))
        self.damaged = False

    def texts(self) -> Iterator[str]:
        """Return a line for each record and loss, in the order of time."""
        return map(self._text, self._chosen(self._segment.by_time()))

    def objects(self) -> Iterator[dict[str, Any]]:
        """Return the records and losses as plain data."""
        return map(self._data, self._chosen(self._segment.by_time()))

    def count(self, into: EventCount) -> None:
        """Add up the records and losses."""
        for found in self._chosen(self._segment.by_cpu()):
            if isinstance(found, Loss):
                if not found.wrapped:
                    into.lose(found.cpu, found.events)
            else:
                record, event = found
                into.add(event.name, record.cpu)

    def _chosen(
        self, happenings: Iterable[Happening]
    ) -> Iterator[tuple[Record, KnownEvent] | Loss]:
        """Yield the chosen records with their events, and the losses."""
        segment, predicates = self._segment, self._predicates
        for happening in happenings:
            if isinstance(happening, Damage):
                self.damaged = True
                complain(
                    f"{segment.path}: {happening.fault} at byte {happening.offset}, of CPU "
                    f"{happening.cpu}; the rest of the page is skipped"
                )
                continue
            if isinstance(happening, Loss):
                yield happening
                continue
            number = id_of(happening.payload)
            event = segment.events.get(number)
            if event is None:
                if self._everything:
                    yield happening, unknown_event(number)
            elif number in predicates and predicates[number](happening.payload):
                yield happening, event

    def _text(self, found: tuple[Record, KnownEvent] | Loss) -> str:
        if isinstance(found, Loss):
            how = "overwritten" if found.wrapped else "lost"
            return loss_text(f"CPU {found.cpu}", found.events, how)
        (time_ns, cpu, payload), event = found
        pid = pid_of(payload, event)
        task = visible(f"{self._segment.comm(pid)}-{'?' if pid is None else pid}")
        fields = " ".join(
            f"{field.name}={value_text(value_of(payload, field), field)}"
            for field in event.layout.fields
        )
        return f"{time_text(time_ns)} [{cpu:03}] {task:<22} {event.name}: {fields}"

    def _data(self, found: tuple[Record, KnownEvent] | Loss) -> dict[str, Any]:
        if isinstance(found, Loss):
            how = "overwritten" if found.wrapped else "lost"
            return {"time_ns": found.time_ns, "cpu": found.cpu, how: found.events}
        (time_ns, cpu, payload), event = found
        pid = pid_of(payload, event)
        values = {field.name: value_of(payload, field) for field in event.fields}
        return {
            "time_ns": time_ns,
            "cpu": cpu,
            "pid": pid,
            "comm": self._segment.comm(pid),
            "event": event.name,
            "fields": {
                name: value.hex() if isinstance(value, bytes) else value
                for name, value in values.items()
            },
        }


def time_text(time_ns: int) -> str:
    """Return a time of the trace clock, in seconds."""
    seconds, rest_ns = divmod(time_ns, NS_PER_SECOND)
    return f"{seconds}.{rest_ns:09}"
