# SPDX-License-Identifier: Apache-2.0
"""Segments that go on while they are opened: what is found of them has an end, but no gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectord.reader import segment_tables
from collectord.reader.any_events import open_tables
from collectord.reader.segment_tables import open_catalogue
from tests.support import trace_segments as support

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path

    from collectord.reader.event_file import EventFile

PAGE = support.PAGE_BYTES
# The counts of a sealed segment and of the two behind it, at last.
COUNTS = (3, 2, 1)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Return a list of what happens once a first, a second .. file was opened."""
    calls: list[Callable[[], object]] = []

    def slowly(path: Path, stack: ExitStack) -> EventFile | None:
        file = open_tables(path, stack)
        if calls:
            calls.pop(0)()
        return file

    monkeypatch.setattr(segment_tables, "open_tables", slowly)
    return calls


@pytest.mark.parametrize("at", range(3))
def test_what_is_written_while_files_are_opened_leaves_no_gap(
    tmp_path: Path, stack: ExitStack, between: list[Callable[[], object]], at: int
) -> None:
    """If a file has a page, then all before it have theirs, whenever they were written."""
    sink = support.make_sink(tmp_path)
    support.write_segment(sink, 1, (COUNTS[0], 0))
    files = [sink.next_segment(token, support.opening()) for token in (2, 3)]
    for file, count in zip(files, COUNTS[1:], strict=True):
        support.fill(file, (count, 0))
    sink.flush(files[0], {10: PAGE})

    def go_on() -> None:
        sink.flush(files[0], {10: 2 * PAGE})
        sink.flush(files[1], {10: PAGE})

    between += [lambda: None] * at + [go_on]
    catalogue = open_catalogue([tmp_path], stack, session=None, nearest=lambda *_: "")
    assert not between
    sealed, before, running = (
        sum(size for source in file.sources for _, _, size in source.spans) // PAGE
        for file in catalogue.files
    )
    assert [row.path for row in catalogue.rows] == [file.path for file in catalogue.files]
    assert sealed == COUNTS[0]
    assert before == COUNTS[1] or not running
    sink.close()
