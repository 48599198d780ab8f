# SPDX-License-Identifier: Apache-2.0
"""Conditions on the rows of objects, as the SQL of each engine has times and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.fleet.question import EVENT, SESSION, TIME

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.fleet.question import Chosen, Objects


def conditions(
    objects: Objects,
    chosen: Chosen,
    *,
    moment: Callable[[int], str],
    text: Callable[[str], str],
) -> list[str]:
    """Return the conditions that rows of objects meet, to be joined by AND.

    Args:
        objects: a table.
        chosen: the rows that are asked for.
        moment: writes a time, UTC in ns.
        text: writes a text.
    """
    terms = []
    if TIME in objects.columns:
        since_ns, until_ns = chosen.window
        if since_ns is not None:
            terms.append(f"{TIME} >= {moment(since_ns)}")
        if until_ns is not None:
            terms.append(f"{TIME} <= {moment(until_ns)}")
    if chosen.session is not None and SESSION in objects.columns:
        terms.append(f"{SESSION} = {text(chosen.session)}")
    if objects.of_events:
        terms.append(f"{EVENT} IN ({', '.join(map(text, objects.of_events))})")
    return terms


def backslashed(text: str) -> str:
    """Return a text as ClickHouse and Spark have it, which take backslashes in one."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
