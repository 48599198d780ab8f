# SPDX-License-Identifier: Apache-2.0
"""The chosen records of a file as `collectord events` shows them."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, NamedTuple

from collectord.cli.event_choice import Choosable
from collectord.cli.event_count import loss_text
from collectord.cli.event_objects import Cells, Objects
from collectord.cli.event_styles import Lines, Table, fields_of
from collectord.cli.output import complain, emit, print_line, say
from collectord.codec.line_ops import Words, filter_ops
from collectord.model import sum_known
from collectord.reader.event_lines import EventLines, Programs
from collectord.reader.segment_losses import stage_losses
from collectord.sink.manifest import Manifest
from collectord.text.foreign import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from collectord.cli.event_choice import Choice
    from collectord.cli.event_count import EventCount
    from collectord.cli.event_styles import Hosts, Style
    from collectord.codec.line_ops import Ops
    from collectord.codec.record_filter import Term
    from collectord.reader.chain_texts import ChainTexts
    from collectord.reader.event_file import EventFile, FileEvent, Window


class _Chosen(NamedTuple):
    """A filter of an event, whose operations are made for the words of a file."""

    terms: Sequence[Term]
    event: FileEvent

    def __call__(self, words: Words) -> Ops:
        fields = {field.name: field for field in fields_of(self.event)}
        return filter_ops(self.terms, fields, words)


def choosables(file: EventFile) -> list[Choosable]:
    """Return the events of a file."""
    return [choosable(event) for event in file.events]


def choosable(event: FileEvent) -> Choosable:
    """Return an event as it can be chosen."""

    def bind(terms: Sequence[Term]) -> _Chosen:
        chosen = _Chosen(terms, event)
        chosen(Words())  # refuses what cannot be compared
        return chosen

    is_opaque = event.is_program and event.described is None
    fields = () if is_opaque else (field.name for field in fields_of(event))
    names = dict.fromkeys((event.full_name, event.name, event.letter or event.name))
    return Choosable(event.keys, tuple(names), frozenset(fields), bind)


class Printer:
    """Prints the chosen records of files in one form.

    Args:
        choice: of records.
        form: text, json or csv.
        hosts: names of this host.
        named: places are made of addresses of functions, which `ChainTexts` fills.
    """

    def __init__(self, choice: Choice, form: str, hosts: Hosts, *, named: bool = False) -> None:
        self.choice = choice
        self._form = form
        self._hosts = hosts
        self._shown: list[FileEvent] = []
        self._table: Table | None = None
        self._named = named
        self._style: Style = Objects(named=named)

    def knows(self, events: Iterable[FileEvent]) -> None:
        """Note events that may be shown: a table holds those of one program alone."""
        self._shown += (one for one in events if self.choice.names(choosable(one)))
        names = {event.full_name for event in self._shown}
        is_table = len(names) == 1 and all(event.is_program for event in self._shown)
        if self._form == "csv" and not isinstance(self._style, Cells):
            self._style = Cells(self._shown, named=self._named)
            text = io.StringIO()
            csv.writer(text, lineterminator="\r\n").writerow(self._style.titles)
            emit(text.getvalue())
        elif self._form == "text" and is_table:
            self._style = self._table = self._table or Table(self._hosts)
        elif self._form == "text":
            self._style = Lines(self._shown, self._hosts, named=self._named)
            self._table = None

    def programs(self, file: EventFile) -> Programs:
        """Return what makes the lines of a file."""
        if file.events and all(one.is_program and one.described is None for one in file.events):
            complain(f"{file.path}: no manifest describes its events; they are shown as bytes")
        words = Words()
        chosen = self.choice.predicates(choosables(file))
        events = [
            (event, [*chosen[event.keys](words), *self._style.program(event, fields, words)])
            for event in file.events
            if event.keys in chosen
            for fields in [fields_of(event)]
        ]
        unknown = self._style.unknown(words) if self.choice.everything else []
        how = "overwritten" if file.wraps else "lost"
        return Programs(events, unknown or None, self._style.loss(words, how), words)

    def emit(self, lines: EventLines, batch: bytes) -> bool:
        """Print a batch of lines; return whether damage was found with it."""
        if self._table is not None and batch:
            shown = [event for event in lines.file.events if self.choice.names(choosable(event))]
            titles = self._table.titles(shown[0]) if shown else ""
            if titles:
                say(titles)
        if batch:
            emit(_readable(batch) if self._form == "text" else batch.decode())
        problems, lines.problems = lines.problems, []
        for problem in problems:
            complain(problem)
        return bool(problems)

    def end(self, lines: EventLines) -> None:
        """Print what is known at the end of a file."""
        for name, events in lines.lost.events.items():
            if self._form == "json":
                print_line({"segment_lost": {name: events}})
            elif self._form == "text":
                say(f"{loss_text(name, events)} in this segment")
            else:
                complain(f"{lines.file.path}: {loss_text(name, events)}")
        lines.lost.events.clear()
        how = "overwritten" if lines.file.wraps else "lost"
        for cpu in sorted({cpu for cpu, _ in lines.lost.cpus}):
            events_of = sum_known([lost for other, lost in lines.lost.cpus if other == cpu])
            complain(f"{lines.file.path}: {loss_text(f'CPU {cpu}', events_of, how)}")
        lines.lost.cpus.clear()


def count_file(file: EventFile, choice: Choice, window: Window, into: EventCount) -> bool:
    """Add up the chosen records of a file and its losses; return whether it is damaged in part.

    The losses of events are those that were counted for the seal, if there are any; those of
    programs and of the sink belong to the segment, not to an event.
    """
    programs = counting(file, choice)
    lines = EventLines(file, programs, window)
    for (event, cpu), records in lines.count().items():
        into.add(event, cpu, records)
    of_programs = [event.full_name for event, _ in programs.events if event.is_program]
    complete = isinstance(file.manifest, Manifest) and file.manifest.complete
    if of_programs:
        into.lose_stages(stage_losses(file.path) if complete else None)
        for name in of_programs:
            into.lose_event(name, 0 if complete else None)
    if lines.lost.events and (complete or not of_programs):
        for name, events in lines.lost.events.items():
            into.lose_event(name, events)
    elif not (complete and of_programs) and not file.wraps:
        for cpu, lost in lines.lost.cpus:
            into.lose(cpu, lost)
    for problem in lines.problems:
        complain(problem)
    return _said(file, lines) or bool(lines.problems)


def counting(file: EventFile, choice: Choice) -> Programs:
    """Return programs that only choose the records of a file."""
    words = Words()
    chosen = choice.predicates(choosables(file))
    events = [(event, chosen[event.keys](words)) for event in file.events if event.keys in chosen]
    return Programs(events, [] if choice.everything else None, [], words)


def _readable(batch: bytes) -> str:
    """Return lines with all that a terminal may act on made visible: the core does the rest."""
    text = batch.decode()
    if batch.isascii() or text.replace("\n", "").isprintable():
        return text
    return "\n".join(map(visible, text.split("\n")))


def print_file(
    file: EventFile,
    printer: Printer,
    window: Window,
    left: int | None,
    chains: ChainTexts | None,
) -> Found:
    """Print the chosen records of a file, and return what there was to say.

    Args:
        file: of the records.
        printer: prints them.
        window: the time that is asked for.
        left: the number of lines that may still be printed, None: any.
        chains: names the functions, if the printer makes places of their addresses.
    """
    lines = EventLines(file, printer.programs(file), window)
    if left is not None:
        lines.limit(left)
    damaged = bool(file.damage)
    for batch in lines.batches():
        damaged |= printer.emit(lines, batch if chains is None else chains.fill(batch))
    printer.end(lines)
    printed = left - lines.left if left is not None else 0
    return Found(printed, _said(file, lines) or damaged)


class Found(NamedTuple):
    """The number of a file's lines that count for a limit, and whether a part of it is damaged."""

    printed: int
    damaged: bool


def _said(file: EventFile, lines: EventLines) -> bool:
    """Complain about a file as a whole; return whether a part of it is damaged."""
    if file.damage:
        complain(f"{file.path} is damaged in part: {file.damage}")
    if lines.is_untimed:
        complain(
            f"{file.path} was left out: without a manifest nothing tells the time of its records"
        )
    if file.move:
        complain(f"{file.path}: {file.move}")
    return bool(file.damage or file.move)
