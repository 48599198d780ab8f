# SPDX-License-Identifier: Apache-2.0
"""What `collectord events --count` adds up."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from collectord.cli.output import Column, print_json, print_table, say

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLUMNS: Final = (Column("EVENT"), Column("COUNT", "right"))


class EventCount:
    """Events and losses of several segments."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._losses: list[tuple[int, int | None]] = []
        self._lost: dict[str, int | None] = {}

    def add(self, event: str, cpu: int) -> None:
        """Count an event."""
        self._counts[event][cpu] += 1

    def lose(self, cpu: int, events: int | None) -> None:
        """Count what a CPU's ring lost; None: nobody tells how many."""
        self._losses.append((cpu, events))

    def lose_event(self, event: str, events: int | None) -> None:
        """Count what an event lost on all CPUs; None: nobody tells."""
        before = self._lost.get(event, 0)
        self._lost[event] = None if before is None or events is None else before + events

    def show(self, *, as_json: bool) -> None:
        """Print it, the most frequent first."""
        names = {*self._counts, *(name for name, events in self._lost.items() if events)}
        ordered = sorted(names, key=lambda name: (-self._counts[name].total(), name))
        lost = {
            cpu: sum_known([events for other, events in self._losses if other == cpu])
            for cpu in sorted({cpu for cpu, _ in self._losses})
        }
        if as_json:
            print_json({"events": [self._row(name) for name in ordered], "lost": lost})
            return
        print_table(_COLUMNS, [[name, f"{self._counts[name].total():,}"] for name in ordered])
        for cpu, events in lost.items():
            say(loss_text(f"CPU {cpu}", events))
        for name in ordered:
            if self._lost.get(name):
                say(loss_text(name, self._lost[name]))

    def _row(self, name: str) -> dict[str, object]:
        cpus = self._counts[name]
        row = {"event": name, "count": cpus.total(), "cpus": dict(sorted(cpus.items()))}
        return row | {"lost": self._lost[name]} if name in self._lost else row


def loss_text(whose: str, events: int | None) -> str:
    """Tell a loss in a line."""
    if events is None:
        return f"{whose}: events lost"
    return f"{whose}: {events} event{'' if events == 1 else 's'} lost"


def sum_known(events: Sequence[int | None]) -> int | None:
    """The sum, or None if one of them is unknown."""
    known = [count for count in events if count is not None]
    return sum(known) if len(known) == len(events) else None
