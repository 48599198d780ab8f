# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random instants: its targets, and checks of the remains."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.kernel.bpf import bpf_calls
from tests.support import bpf, daemons
from tests.support.daemons import wait_for
from tests.support.leaks import Holdings

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.trace_cmds import TraceCmd

CALLS: Final = 6_000
RATE: Final = 20_000.0
_TRACE: Final = ".trace.dat"


class Instant(StrEnum):
    """The part of a process's life in which it is killed."""

    START = "start"
    WORK = "work"
    STOP = "stop"


def pause(dice: random.Random, at_most_s: float) -> None:
    """Sleep for a random time, before a kill."""
    time.sleep(dice.uniform(0, at_most_s))


def calls_around(
    generator: Generator,
    dice: random.Random,
    kill: Any,  # noqa: ANN401
) -> int:
    """Make CALLS calls, and kill at a random instant of them; returns their number."""
    with generator.start("count", count=CALLS, rate=RATE, nr=daemons.NUMBER) as running:
        running.go()
        pause(dice, 1.2 * CALLS / RATE)
        kill()
        assert running.result()["events"] == CALLS
    return CALLS


@dataclass(frozen=True, slots=True)
class Stock:
    """The stock tools that must open the remains."""

    perfs: tuple[Perf, ...]
    trace_cmds: tuple[TraceCmd, ...]

    def check(self, segments: Iterable[Path]) -> None:
        """Check that all open, with the events of their manifests; every version, if recovered."""
        for segment in segments:
            said = daemons.manifest(segment)
            first = None if said["recovered"] else 1
            if segment.name.endswith(_TRACE):
                for trace_cmd in self.trace_cmds[:first]:
                    assert len(trace_cmd.report(segment)) == said["samples"], segment
            else:
                daemons.readable_samples(self.perfs[:first], [segment])


def sealed(directory: Path) -> list[Path]:
    """Return the sealed segments of perf and ftrace below a directory."""
    found = (*directory.rglob("*.perf.data"), *directory.rglob(f"*{_TRACE}"))
    return sorted(path for path in found if Path(f"{path}.json").exists())


def check_ledger(segment: Path) -> bool:
    """Assert that what a manifest says adds up; returns whether its balance is closed."""
    said = daemons.manifest(segment)
    ledger = said["ledger"]
    if said["recovered"] and not ledger.get("closed"):
        assert (said["complete"], said["produced"], ledger["basis"]) == (False, None, "none")
    if not ledger.get("closed"):
        return False
    assert ledger["in_flight"] == 0, segment
    if ledger["basis"] == "exact":
        whole = ledger["stored"] + sum(ledger["lost"].values()) + ledger["overwritten"]
        assert (ledger["unaccounted"], ledger["produced"]) == (0, whole), segment
    return True


@dataclass(slots=True)
class Tally:
    """Results of trials, printed at their end."""

    figures: Counter[str] = field(default_factory=Counter)

    def count(self, segments: Sequence[Path]) -> None:
        """Count segments, and check their manifests."""
        for segment in segments:
            self.figures["segments"] += 1
            self.figures["recovered"] += bool(daemons.manifest(segment)["recovered"])
            self.figures["closed ledgers"] += check_ledger(segment)


def named(log: str, event: str) -> list[dict[str, Any]]:
    """Return the lines of one event in a log that may end in the middle of a line."""
    found = []
    for line in log.splitlines(keepends=True):
        if line.endswith("}\n") and f'"{event}"' in line:
            told = json.loads(line)
            if told["event"] == event:
                found.append(told)
    return found


def check_salvaged(told: dict[str, Any], made: int) -> None:
    """Assert that a killed ftrace session misses only data in flight."""
    lost = dict(told["lost"])
    on_its_way = lost.pop("staging/dropped")
    assert on_its_way >= 0
    assert not any(lost.values()), told
    assert (told["basis"], told["unaccounted"], told["produced"]) == ("exact", 0, made), told
    assert told["produced"] == told["stored"] + on_its_way


class Left:
    """Remains of a killed process in the kernel, and as processes."""

    def __init__(self) -> None:
        self._lists = (bpf_calls.program_ids, bpf.map_ids, bpf.link_ids)
        self._before = [set(ids()) for ids in self._lists]
        self._processes = Holdings.now().processes.keys()

    def await_processes(self) -> None:
        """Wait until no child of a killed process lives on."""
        wait_for(
            lambda: Holdings.now().processes.keys() <= self._processes, "the end of all children"
        )

    def await_nothing(self) -> None:
        """Wait until programs, maps and links that are new now are gone."""
        new = [set(ids()) - known for ids, known in zip(self._lists, self._before, strict=True)]

        def gone() -> bool:
            return not any(found & set(ids()) for ids, found in zip(self._lists, new, strict=True))

        wait_for(gone, "the end of programs, maps and links")
