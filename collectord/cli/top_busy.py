# SPDX-License-Identifier: Apache-2.0
"""The busiest events, processes and stacks of the last seconds, from the segments that run."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli.query_parts import chains_of, database_of
from collectord.reader.segment_tables import open_catalogue
from collectord.text.foreign import visible
from collectord.text.nearest import did_you_mean
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from collectord.reader.sql import Database

SECONDS: Final = 10
_ROWS: Final = 8
_TABLES_MAX: Final = 64  # events that one statement counts
_CALLS: Final = 4  # the innermost ones of a stack
_LIMIT: Final = "limit"
_TEXT: Final = "'"
_NAME: Final = '"'
_PROCESSES: Final = """
    SELECT comm || ' (' || coalesce(pid, tid) || ')', count(*) AS samples
    FROM samples GROUP BY ALL ORDER BY samples DESC LIMIT $limit
"""
_STACKS: Final = """
    SELECT stack, count(*) AS samples FROM stacks GROUP BY stack ORDER BY samples DESC LIMIT $limit
"""


def busiest(status: Mapping[str, Any], session: str) -> dict[str, list[tuple[str, int]]]:
    """Return names and counts by title: of events, of processes and of stacks that were sampled.

    Args:
        status: the document of `/v1/status`.
        session: only this one; "": all.

    Raises:
        CollectordError: the segments cannot be read, or DuckDB is missing.
    """
    folders = dict.fromkeys(
        Path(one["directory"])
        for one in status["sessions"]
        if one["directory"] and (not session or one["name"] == session)
    )
    since_ns = time.time_ns() - SECONDS * NS_PER_SECOND
    window = argparse.Namespace(since=since_ns, until=None)
    with ExitStack() as stack:
        catalogue = open_catalogue([*folders], stack, session=None, nearest=did_you_mean)
        chains = chains_of(catalogue, window, None)
        database = database_of(catalogue, window, stack, fixed=chains.tables)
        events = sorted(name for name, table in catalogue.tables.items() if table.system)
        return {
            "EVENTS": _counted(database, _event_counts(events)) if events else [],
            "PROCESSES, BY SAMPLES": _counted(database, _PROCESSES),
            "STACKS, BY SAMPLES": [
                (_innermost(stack_text), count)
                for stack_text, count in _counted(database, _STACKS)
            ],
        }


def _event_counts(names: Sequence[str]) -> str:
    """Return a statement that counts the records of some tables."""
    counts = " UNION ALL ".join(
        f"SELECT {_quoted(name, _TEXT)} AS event, count(*) AS records FROM {_quoted(name, _NAME)}"  # noqa: S608
        for name in names[:_TABLES_MAX]
    )
    return f"SELECT event, records FROM ({counts}) ORDER BY records DESC LIMIT $limit"  # noqa: S608


def _quoted(name: str, quote: str) -> str:
    return quote + name.replace(quote, quote * 2) + quote


def _counted(database: Database, statement: str) -> list[tuple[str, int]]:
    rows: Iterable[tuple[Any, ...]] = (
        row for batch in database.ask(statement, {_LIMIT: _ROWS}).batches() for row in batch
    )
    return [(visible(str(name)), count) for name, count in rows if count]


def _innermost(stack: str) -> str:
    calls = stack.split(";")
    return " < ".join(reversed(calls[-_CALLS:]))
