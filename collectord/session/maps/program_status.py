# SPDX-License-Identifier: Apache-2.0
"""What is told of BPF programs that run: values, read once per flush interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from collectord.ledger import ledger_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord.ledger.record_ledger import SessionBalance

BPF: Final = "bpf"
MetricType = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a metric; of a histogram one set of buckets.

    Attributes:
        labels: values of the metric's own labels.
        value: of a counter or gauge; of a histogram the sum of what was observed, None where the
            program does not keep it.
        counts: of a histogram, what fell into each of its buckets; the last one has no bound.
    """

    labels: tuple[str, ...]
    value: float | None
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricValues:
    """A metric that a program exports. Counters and histograms never go back.

    Attributes:
        name: without the prefix.
        type: of the metric.
        help: what it says.
        label_names: its own labels.
        bounds: of a histogram, the highest value of each bucket but the last.
        series: one for each set of label values, at most a few thousand.
    """

    name: str
    type: MetricType
    help: str
    label_names: tuple[str, ...]
    bounds: tuple[float, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class FunctionRuns:
    """What the kernel counted of one function of a program since it was loaded.

    Attributes:
        function: its name in the program's text.
        id: the kernel's, of all programs.
        runs: times it ran, None where that is not counted.
        run_time_ns: spent in it, likewise.
        recursion_misses: times it did not run because a program ran on that CPU already, None
            before Linux 5.12.
    """

    function: str
    id: int
    runs: int | None
    run_time_ns: int | None
    recursion_misses: int | None


@dataclass(frozen=True, slots=True)
class BpfStatus:
    """A program of a session, as it was last looked at.

    Attributes:
        session: its name.
        program: its name.
        functions: that are attached.
        submit_failures: times that an event was not submitted, by errno; None of a program that
            does not count them.
        metrics: what its manifest exports.
        tables: maps that are read for it; whether one held more than was read at the last look.
    """

    session: str
    program: str
    functions: tuple[FunctionRuns, ...] = ()
    submit_failures: Mapping[str, int] | None = None
    metrics: tuple[MetricValues, ...] = ()
    tables: Mapping[str, bool] | None = None


def session_json(balance: SessionBalance, programs: Iterable[BpfStatus]) -> dict[str, Any]:
    """A session's entry in `--json` and in `/v1/status`: its balance, and its BPF programs."""
    own = [one for one in programs if one.session == balance.name] if balance.source == BPF else []
    return {**ledger_json.to_json(balance), "programs": [_program_json(one) for one in own]}


def _program_json(status: BpfStatus) -> dict[str, Any]:
    """Its counters; what its maps hold are metrics."""
    failures = status.submit_failures
    return {
        "program": status.program,
        "failures": dict(failures) if failures is not None else None,
        "functions": [
            {
                "function": one.function,
                "id": one.id,
                "runs": one.runs,
                "run_time_ns": one.run_time_ns,
                "recursion_misses": one.recursion_misses,
            }
            for one in status.functions
        ],
    }
