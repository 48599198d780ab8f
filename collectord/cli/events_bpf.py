# SPDX-License-Identifier: Apache-2.0
"""`collectord events` for samples of BPF programs: tables, lines, and plain data."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.cli.event_choice import Choosable
from collectord.cli.event_count import loss_text
from collectord.cli.events_trace import time_text
from collectord.cli.output import complain
from collectord.codec import bpf_show
from collectord.codec.record_filter import bind
from collectord.errors import CodecError
from collectord.programs.program_manifest import ColumnConfig
from collectord.reader.perf_events import Damage, Loss, Record, Total, stage_losses
from collectord.text.foreign import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from collectord.cli.event_choice import Choice, Predicate
    from collectord.cli.event_count import EventCount
    from collectord.codec.bpf_show import Names
    from collectord.codec.bpf_struct import Value
    from collectord.codec.record_filter import Term
    from collectord.reader.perf_events import BpfEvent, BpfSegment, Happening

# Formats of numbers, which are aligned to the right, with the initial width of their columns.
_FIGURES: Final = {"decimal": 6, "hex": 10, "errno": 6, "duration": 7, "bytes": 8}
_WIDTHS: Final = {"text": 16, "ip": 15, "ifindex": 6, "device": 6, "tcp_state": 11}
_TIME_WIDTH: Final = 16
_KINDS: Final = {"char": bpf_show.TEXT}


def choosables(segment: BpfSegment) -> list[Choosable]:
    """Return the events of a segment."""
    return [*map(_choosable, segment.events)]


def _choosable(event: BpfEvent) -> Choosable:
    fields = event.fields if event.described is not None else ()
    return Choosable(event.name, (event.name,), frozenset(fields), partial(_bind, event))


def _bind(event: BpfEvent, terms: Sequence[Term]) -> Predicate:
    return bind(terms, event.described.layout) if event.described is not None else lambda _: True


class Shown(NamedTuple):
    """A chosen record, with its values and the name of its task."""

    record: Record
    values: dict[str, Value]
    comm: str


class BpfView:
    """The chosen records of a segment.

    Attributes:
        damaged: something could not be read, and was reported.
    """

    def __init__(self, segment: BpfSegment, choice: Choice, style: BpfStyle) -> None:
        self._segment = segment
        self._style = style
        self._predicates = choice.predicates(choosables(segment))
        self._columns = {event: _columns(event) for event in segment.events}
        self.damaged = False
        if all(event.described is None for event in segment.events):
            complain(f"{segment.path}: no manifest describes its events; they are shown as bytes")

    def texts(self) -> Iterator[str]:
        """Yield lines for the records and losses, in the order of time."""
        for happening in self._segment.by_time():
            yield from self.text(happening)

    def objects(self) -> Iterator[dict[str, Any]]:
        """Yield the records and losses as plain data."""
        for happening in self._segment.by_time():
            yield from self.data(happening)

    def count(self, into: EventCount) -> None:
        """Add up the records and losses; losses are those of the seal, if they are known.

        Losses of programs and of the sink belong to the segment, not to an event.
        """
        segment = self._segment
        into.lose_stages(stage_losses(segment.path) if segment.complete else None)
        for name in self._predicates:
            into.lose_event(str(name), 0 if self._segment.complete else None)
        for happening in self._segment.by_time():
            match self._chosen(happening):
                case Shown(record):
                    into.add(record.event.name, record.cpu)
                case Loss(_, cpu, events) if not self._segment.complete:
                    into.lose(cpu, events)
                case Total(event, events) if self._segment.complete:
                    into.lose_event(event.name, events)

    def text(self, happening: Happening) -> Iterator[str]:
        """Yield lines for a record or loss; none if it was not chosen."""
        match self._chosen(happening):
            case Shown() as shown:
                yield from self._style.lines(shown, self._columns[shown.record.event])
            case Loss(_, cpu, events):
                yield loss_text(f"CPU {cpu}", events)
            case Total(event, events):
                yield f"{loss_text(event.name, events)} in this segment"

    def data(self, happening: Happening) -> Iterator[dict[str, Any]]:
        """Yield a record or loss as plain data."""
        match self._chosen(happening):
            case Shown((time_ns, cpu, pid, tid, event, _), values, comm):
                yield {
                    "time_ns": time_ns,
                    "cpu": cpu,
                    "pid": pid,
                    "tid": tid,
                    "comm": comm,
                    "event": event.name,
                    "fields": {
                        name: value.hex() if isinstance(value, bytes) else value
                        for name, value in values.items()
                    },
                }
            case Loss(time_ns, cpu, events):
                yield {"time_ns": time_ns, "cpu": cpu, "lost": events}
            case Total(event, events):
                yield {"segment_lost": {event.name: events}}

    def _chosen(self, happening: Happening) -> Shown | Loss | Total | None:
        match happening:
            case Record():
                return self._shown(happening)
            case Total(event) if event.name not in self._predicates:
                return None
            case Damage(offset, reason):
                self._complain(f"{reason} at byte {offset}, skipped up to the next chunk")
                return None
        return happening

    def _shown(self, record: Record) -> Shown | None:
        predicate = self._predicates.get(record.event.name)
        if predicate is None:
            return None
        try:
            values = record.event.values(record.payload)
        except CodecError as error:
            self._complain(f"a record of {record.event.name} has {error.message}")
            return None
        return Shown(record, values, self._segment.comm(record.tid)) if predicate(values) else None

    def _complain(self, what: str) -> None:
        self.damaged = True
        complain(f"{self._segment.path}: {what}")


class BpfStyle:
    """The format of records: a table if they are all of one event, otherwise single lines.

    Args:
        names: of interfaces and devices.
        choice: chooses the events.
        events: of all segments known so far; others may follow.
    """

    def __init__(self, names: Names, choice: Choice, events: Iterable[BpfEvent]) -> None:
        self._names = names
        self._events = {event.name for event in events if choice.names(_choosable(event))}
        self._titled: tuple[ColumnConfig, ...] | None = None
        self._widths: list[int] = []

    def lines(self, shown: Shown, columns: tuple[ColumnConfig, ...]) -> Iterator[str]:
        """Yield a record's line, after the titles if it is the first with these columns."""
        (time_ns, cpu, _, tid, event, _), values, comm = shown
        cells = [self._cell(column, values) for column in columns]
        self._events.add(event.name)
        if len(self._events) > 1:
            task = f"{visible(comm)}-{tid}"
            fields = " ".join(f"{c.field}={text}" for c, text in zip(columns, cells, strict=True))
            yield f"{time_text(time_ns)} [{cpu:03}] {task:<22} {event.name}: {fields}"
            return
        if columns != self._titled:
            self._titled = columns
            titles = [visible(column.title) for column in columns]
            self._widths = [_TIME_WIDTH, *map(_width, columns, titles)]
            yield self._row(columns, ["TIME", *titles])
        yield self._row(columns, [time_text(time_ns), *cells])

    def _cell(self, column: ColumnConfig, values: Mapping[str, Value]) -> str:
        value = values.get(column.field)
        return "?" if value is None else visible(bpf_show.show(value, column.show, self._names))

    def _row(self, columns: Sequence[ColumnConfig], cells: Sequence[str]) -> str:
        """Align cells; a column that was too narrow stays wider from here on."""
        self._widths = [*map(max, self._widths, map(len, cells))]
        is_figure = [True, *(column.show in _FIGURES for column in columns)]
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, self._widths, is_figure, strict=True)
        )
        return "  ".join(aligned).rstrip()


def _columns(event: BpfEvent) -> tuple[ColumnConfig, ...]:
    """Return the columns of the program's table, or all fields."""
    if event.described is None:
        return tuple(ColumnConfig(field=name, title=name.upper()) for name in event.fields)
    return event.described.columns or tuple(
        ColumnConfig(
            field=field.name,
            title=field.name.upper(),
            show=_KINDS.get(field.kind, bpf_show.DECIMAL),
        )
        for field in event.described.layout.fields
    )


def _width(column: ColumnConfig, title: str) -> int:
    return max(len(title), _FIGURES.get(column.show, 0), _WIDTHS.get(column.show, 0))
