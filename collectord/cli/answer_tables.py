# SPDX-License-Identifier: Apache-2.0
"""The tables that an answer's statement reads, by the names that it has for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord.cli.query_parts import database_of
from collectord.errors import CollectordError, UsageError
from collectord.reader.event_tables import GAPS, software_tables
from collectord.reader.fixed_tables import FixedTable
from collectord.reader.gaps import folders_at_once, gaps_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import ExitStack

    from collectord.cli.answer_file import AnswerHead
    from collectord.reader.event_tables import EventTable
    from collectord.reader.segment_tables import Catalogue
    from collectord.reader.sql import Database, MadeTable

_GAP_COLUMNS: Final = {"since": "TIMESTAMP_NS", "until": "TIMESTAMP_NS"}


class NotRecorded(CollectordError):
    """The events that an answer needs are not in the catalogue; the message names them."""


def prepare(
    head: AnswerHead,
    catalogue: Catalogue,
    made: Mapping[str, MadeTable],
    args: argparse.Namespace,
    stack: ExitStack,
) -> tuple[Sequence[str], Database]:
    """Return the events that an answer reads of what it needs, and a database with them.

    `made` are other tables that the statement may name.

    Raises:
        NotRecorded: no list of its events was recorded whole, or call chains are missing.
        UsageError: an event was recorded twice at the same time.
    """
    recorded = _by_event([*catalogue.tables.values(), *software_tables(catalogue.files)])
    need = next((one for one in head.needs if recorded.keys() >= {*one}), None)
    if need is None:
        raise NotRecorded(_missing(head, recorded))
    if head.call_chains and not all(_has_chains(recorded[event]) for event in need):
        raise NotRecorded(f"call chains of {', '.join(need)}")
    read = {*need, *head.optional} & recorded.keys()
    for event in sorted(read):
        _refuse_twice(event, recorded[event])
    # By the name that the statement has for it, whatever other event has the same.
    tables = {
        plain_name(event): replace(recorded[event], name=plain_name(event)) for event in read
    }
    gaps = FixedTable(_GAP_COLUMNS, gaps_of(recorded[event] for event in need))
    empty = {
        plain_name(event): FixedTable(head.columns[event])
        for event in head.events
        if event not in read
    }
    fixed: dict[str, MadeTable] = {**empty, GAPS: gaps, **made}
    return need, database_of(catalogue, args, stack, tables=tables, fixed=fixed)


def plain_name(event: str) -> str:
    """Return the name of a table: that of the event without its system."""
    return event.partition(":")[2]


def _by_event(tables: Iterable[EventTable]) -> dict[str, EventTable]:
    """Return the tables of events by SYSTEM:NAME."""
    return {table.full_name: table for table in tables if table.system}


def _refuse_twice(event: str, table: EventTable) -> None:
    folders = folders_at_once(table.files)
    if folders:
        raise UsageError(
            f"{event} was recorded into several folders at the same time: {', '.join(folders)}",
            hint="name one of them, or a --session: else each record counts twice",
        )


def _missing(head: AnswerHead, recorded: Mapping[str, EventTable]) -> str:
    """Return the events that were not recorded of the list that lacks the fewest."""
    need = min(head.needs, key=lambda one: len({*one} - recorded.keys()))
    return ", ".join(event for event in need if event not in recorded)


def _has_chains(table: EventTable) -> bool:
    """Whether records of an event have call chains in any file."""
    return any(
        event.has_chain and event.table_name == table.full_name
        for file in table.files
        for event in file.events
    )
