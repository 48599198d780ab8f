# SPDX-License-Identifier: Apache-2.0
"""Lines of records without a command line: of files, and of payloads without one."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from collectord._native._columns import Lines, Scan
from collectord.cli.event_objects import Objects
from collectord.cli.event_styles import fields_of
from collectord.codec.line_ops import Words
from collectord.reader.any_events import open_tables
from collectord.reader.event_file import Window
from collectord.reader.event_lines import EventLines, Programs
from tests.support.ftrace_pages import event, page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from collectord.codec.line_ops import Ops
    from collectord.reader.event_file import EventFile

_PAGE_BYTES = 4096
_START_NS = 1000


def lines_of(file: EventFile, window: Window = Window()) -> EventLines:  # noqa: B008  # frozen
    """Read all events of a file as JSON."""
    words, style = Words(), Objects()
    events = [(one, style.program(one, fields_of(one), words)) for one in file.events]
    how = "overwritten" if file.wraps else "lost"
    programs = Programs(events, style.unknown(words), style.loss(words, how), words)
    return EventLines(file, programs, window)


def objects(batches: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return what lines of JSON hold."""
    return [json.loads(line) for batch in batches for line in batch.splitlines()]


def read(path: Path) -> tuple[list[dict[str, Any]], EventLines]:
    """Return all records and losses of a file, and what was noted."""
    with ExitStack() as stack:
        file = open_tables(path, stack)
        assert file is not None
        lines = lines_of(file)
        return objects(lines.batches()), lines


def shown(payloads: Sequence[bytes], make: Callable[[Words], Ops]) -> list[str]:
    """Return the lines that one program makes of records of ftrace."""
    return written(payloads, make).splitlines()


def written(payloads: Sequence[bytes], make: Callable[[Words], Ops]) -> str:
    """Return the text that one program makes of records of ftrace, a line for each."""
    words = Words()
    ops = [*make(words), words.literal("\n")]
    fd = os.memfd_create("records")
    try:
        pages = [page(_START_NS, event(payload, 1, long=True)) for payload in payloads]
        for at, one in enumerate(pages):
            os.pwrite(fd, one.ljust(_PAGE_BYTES, b"\0"), at * _PAGE_BYTES)
        scan = Scan("all", ())
        scan.add(fd, "ftrace", (), [(0, 0, len(pages) * _PAGE_BYTES)])
        lines = Lines(scan, words.texts, words.tables, words.widths)
        lines.add((), ops, role="unknown")
        made = b""
        while (batch := lines.read(1 << 16, 0)) is not None:
            made += batch
    finally:
        os.close(fd)
    return made.decode()
