# SPDX-License-Identifier: Apache-2.0
"""The sums of `collectord events --count`."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from collectord.cli.output import print_json, say
from collectord.cli.text_table import Column, print_table
from collectord.model import LOSS_PAIRS, loss_name, sum_known
from collectord.reader.segment_losses import FULL_RING
from collectord.text.foreign import visible
from collectord.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

_COLUMNS: Final = (Column("EVENT"), Column("COUNT", "right"))
# The stages apart from full rings, whose losses are counted per event.
_STAGES: Final = tuple(s for s in map(loss_name, LOSS_PAIRS["bpf"]) if s != FULL_RING)


class EventCount:
    """Events and losses of several segments."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._losses: list[tuple[int, int | None]] = []
        self._lost: dict[str, int | None] = {}
        self._stages: list[Mapping[str, int] | None] = []

    def add(self, event: str, cpu: int, count: int = 1) -> None:
        """Count one event, or `count` of them."""
        self._counts[event][cpu] += count

    def lose(self, cpu: int, events: int | None) -> None:
        """Count the losses of a CPU's ring; None: their number is unknown."""
        self._losses.append((cpu, events))

    def lose_event(self, event: str, events: int | None) -> None:
        """Count the losses of an event on all CPUs; None: their number is unknown."""
        before = self._lost.get(event, 0)
        self._lost[event] = None if before is None or events is None else before + events

    def lose_stages(self, losses: Mapping[str, int] | None) -> None:
        """Count a segment's losses of any events, by `<stage>/<reason>`; None: unknown."""
        self._stages.append(losses)

    def show(self, *, as_json: bool) -> None:
        """Print the counts, the highest first."""
        names = {*self._counts, *(name for name, events in self._lost.items() if events)}
        ordered = sorted(names, key=lambda name: (-self._counts[name].total(), name))
        lost = {
            cpu: sum_known([events for other, events in self._losses if other == cpu])
            for cpu in sorted({cpu for cpu, _ in self._losses})
        }
        if as_json:
            counted = {"events": [self._row(name) for name in ordered], "lost": lost}
            print_json(counted | ({"segments_lost": self._by_stage()} if self._stages else {}))
            return
        print_table(_COLUMNS, [[name, f"{self._counts[name].total():,}"] for name in ordered])
        for cpu, events in lost.items():
            say(loss_text(f"CPU {cpu}", events))
        for name in ordered:
            if self._lost.get(name):
                say(loss_text(name, self._lost[name]))
        known = [losses for losses in self._stages if losses is not None]
        for stage in self._names_of_stages():
            events = sum(losses.get(stage, 0) for losses in known)
            if events:
                say(loss_text(visible(stage), events))

    def _by_stage(self) -> dict[str, int | None]:
        return {
            stage: sum_known([None if one is None else one.get(stage, 0) for one in self._stages])
            for stage in self._names_of_stages()
        }

    def _names_of_stages(self) -> list[str]:
        known = {stage for losses in self._stages for stage in losses or ()}
        return [*_STAGES, *sorted(known.difference(_STAGES))]

    def _row(self, name: str) -> dict[str, object]:
        cpus = self._counts[name]
        row = {"event": name, "count": cpus.total(), "cpus": dict(sorted(cpus.items()))}
        return row | {"lost": self._lost[name]} if name in self._lost else row


def loss_text(whose: str, events: int | None, how: str = "lost") -> str:
    """Return a line about a loss, or about events that are missing for another reason."""
    if events is None:
        return f"{whose}: events {how}"
    return f"{whose}: {counted(events, 'event')} {how}"
