# SPDX-License-Identifier: Apache-2.0
"""A line of the table, and the common parts of its makers."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.bench import collectors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.bench.collectors import Collector, Outcome
    from tests.support.generator import Generator


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. `budget` is the maximum of `value`, None if there is none."""

    work: str
    ours: str
    peer: str
    value: float
    budget: float | None
    unit: str
    notes: tuple[str, ...] = ()
    runs: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    @property
    def within(self) -> bool:
        """Whether our value is within the budget. A value that could not be had (NaN) is not."""
        return self.budget is None or self.value <= self.budget


@dataclass(frozen=True, slots=True)
class Settings:
    """The amount of load, and the directory of the files (a real file system, not tmpfs)."""

    generator: Generator
    directory: Path
    events: int
    repeats: int
    seconds: float


def lost(outcomes: Sequence[Outcome]) -> int:
    """Return the records lost over all runs."""
    return sum(outcome.stored.lost for outcome in outcomes)


def figures(runs: Sequence[float], outcomes: Sequence[Outcome]) -> str:
    """Return median and range of the runs' cost per event, and their losses."""
    share = lost(outcomes) / sum(outcome.generated for outcome in outcomes)
    spread = f"{min(runs):.0f}-{max(runs):.0f}"
    return f"{statistics.median(runs):.0f} ns/event ({spread}), {share:.2%} lost"


def resident(outcomes: Sequence[Outcome]) -> float:
    """Return the share of the written bytes that stayed in the page cache."""
    return statistics.median(run.resident_bytes / run.written_bytes for run in outcomes)


def interleaved(
    settings: Settings, which: Sequence[Collector], *, count: int, rate: float = 0
) -> dict[str, list[Outcome]]:
    """Run round after round, so that a change of the machine affects all alike."""
    outcomes: dict[str, list[Outcome]] = {collector.name: [] for collector in which}
    for _ in range(settings.repeats):
        for collector in which:
            outcome = collectors.run(
                collector, settings.generator, settings.directory, count=count, rate=rate
            )
            outcomes[collector.name].append(outcome)
    return outcomes
