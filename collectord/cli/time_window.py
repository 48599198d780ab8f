# SPDX-License-Identifier: Apache-2.0
"""The time between --since and --until, whose records a verb reads."""

from __future__ import annotations

from collectord.cli.times import check_order
from collectord.reader.event_file import Window


def time_window(since_ns: int | None, until_ns: int | None) -> Window:
    """Return the time between two in UTC; None is without an end.

    Raises:
        UsageError: it ends before it begins.
    """
    if since_ns != until_ns:  # a moment may have records
        check_order(since_ns, until_ns)
    return Window(since_ns, until_ns)
