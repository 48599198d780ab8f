# SPDX-License-Identifier: Apache-2.0
"""The status of running BPF programs: values, read once per flush interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from collectord.ledger import ledger_json
from collectord.text.foreign import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord.ledger.record_ledger import SessionBalance

BPF: Final = "bpf"
MetricType = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a metric; for a histogram one set of buckets.

    Attributes:
        labels: values of the metric's own labels.
        value: of a counter or gauge; for a histogram the sum of the observed values, None if the
            program does not keep it.
        counts: for a histogram the count of each bucket; the last bucket has no bound.
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
        help: the metric's help text.
        label_names: names of its own labels.
        bounds: for a histogram the highest value of each bucket but the last.
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
    """The kernel's counts for one function of a program since it was loaded.

    Attributes:
        function: its name in the program's text.
        id: the kernel's program id.
        runs: how often it ran, None if that is not counted.
        run_time_ns: time spent in it, None if that is not counted.
        recursion_misses: how often it did not run because a program was running on that CPU, None
            before Linux 5.12.
    """

    function: str
    id: int
    runs: int | None
    run_time_ns: int | None
    recursion_misses: int | None


@dataclass(frozen=True, slots=True)
class BpfStatus:
    """A program of a session, as of its last reading.

    Attributes:
        session: the session's name.
        program: the program's name.
        functions: the attached functions.
        submit_failures: how often an event was not submitted, by errno; None if the program does
            not count them.
        metrics: the metrics that its manifest exports.
        tables: the maps read for it, and whether each held more than the last reading took.
    """

    session: str
    program: str
    functions: tuple[FunctionRuns, ...] = ()
    submit_failures: Mapping[str, int] | None = None
    metrics: tuple[MetricValues, ...] = ()
    tables: Mapping[str, bool] | None = None


def session_json(balance: SessionBalance, programs: Iterable[BpfStatus]) -> dict[str, Any]:
    """Return a session's entry in `--json` and `/v1/status`: its balance and its BPF programs."""
    own = [one for one in programs if one.session == balance.name] if balance.source == BPF else []
    return {**ledger_json.to_json(balance), "programs": [_program_json(one) for one in own]}


def _program_json(status: BpfStatus) -> dict[str, Any]:
    """Return a program's counters; the contents of its maps are metrics."""
    failures = status.submit_failures
    return {
        "program": status.program,
        "failures": dict(failures) if failures is not None else None,
        "functions": [plain(one) for one in status.functions],
    }
