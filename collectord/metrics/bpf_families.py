# SPDX-License-Identifier: Apache-2.0
"""Metric families of BPF programs: their cost, their failures, and the counts in their maps.

All values were read at the last flush interval. Names in manifests are checked before any program
is loaded (`plan.bpf_metrics`).
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.utils import floatToGoString

from collectord.metrics.families import counter, gauge
from collectord.plan.bpf_metrics import (
    RECURSION_MISSES,
    RUN_SECONDS,
    RUNS,
    SUBMIT_FAILURES,
    TABLE_TRUNCATED,
    family,
)
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from collectord.metrics.families import Labels, Reading
    from collectord.session.maps.program_status import (
        BpfStatus,
        FunctionRuns,
        MetricValues,
        Series,
    )

_PROGRAM: Final = ("session", "program")
_FUNCTION: Final = (*_PROGRAM, "function")


def families(reading: Reading) -> Iterator[Metric]:
    """Yield all families of all sessions' programs; those common to all programs always exist."""
    programs = reading.status.bpf
    functions: list[tuple[Labels, FunctionRuns]] = [
        ((one.session, one.program, function.function), function)
        for one in programs
        for function in one.functions
    ]
    yield from _cost(functions)
    yield counter(
        SUBMIT_FAILURES,
        "Events that a program could not submit, by the kernel's error.",
        (*_PROGRAM, "errno"),
        (
            ((one.session, one.program, errno), count)
            for one in programs
            for errno, count in (one.submit_failures or {}).items()
        ),
    )
    yield gauge(
        TABLE_TRUNCATED,
        "1 if a map has more entries than are read, so that its metrics are incomplete; else 0.",
        (*_PROGRAM, "table"),
        (
            ((one.session, one.program, table), more)
            for one in programs
            for table, more in (one.tables or {}).items()
        ),
    )
    yield from _declared(programs)


def _cost(functions: Sequence[tuple[Labels, FunctionRuns]]) -> Iterator[Metric]:
    yield counter(
        RUNS,
        "Times that a function of the program ran (only with `stats` in [bpf]).",
        _FUNCTION,
        ((labels, function.runs) for labels, function in functions),
    )
    times_ns = [(labels, function.run_time_ns) for labels, function in functions]
    yield counter(
        RUN_SECONDS,
        "Seconds spent in a function of the program (only with `stats` in [bpf]).",
        _FUNCTION,
        ((labels, ns / NS_PER_SECOND if ns is not None else None) for labels, ns in times_ns),
    )
    yield counter(
        RECURSION_MISSES,
        "Times that a function did not run because a program was running on that CPU already.",
        _FUNCTION,
        ((labels, function.recursion_misses) for labels, function in functions),
    )


def _declared(programs: Iterable[BpfStatus]) -> Iterator[Metric]:
    """Yield one family for each name, with the samples of all programs that export it."""
    made: dict[str, Metric] = {}
    for one in programs:
        for metric in one.metrics:
            name = family(metric.name)
            if name not in made:
                made[name] = _empty(name, metric)
            _add(made[name], (one.session, one.program), metric)
    yield from made.values()


def _empty(name: str, metric: MetricValues) -> Metric:
    match metric.type:
        case "counter":
            return CounterMetricFamily(name, metric.help)
        case "gauge":
            return GaugeMetricFamily(name, metric.help)
        case "histogram":
            return HistogramMetricFamily(name, metric.help)


def _add(made: Metric, program: tuple[str, str], metric: MetricValues) -> None:
    """Append a program's samples; programs may differ in the labels of one family."""
    total = "_total" if metric.type == "counter" else ""
    les = (*map(floatToGoString, metric.bounds), "+Inf")
    for series in metric.series:
        labels = dict(
            zip(
                (*_PROGRAM, *metric.label_names),
                (*program, *series.labels),
                strict=True,
            )
        )
        if metric.type == "histogram":
            _add_histogram(made, labels, les, series)
        elif series.value is not None:
            made.add_sample(made.name + total, labels, series.value)


def _add_histogram(
    made: Metric, labels: dict[str, str], les: tuple[str, ...], series: Series
) -> None:
    cumulative = list(accumulate(series.counts))
    for le, count in zip(les, cumulative, strict=True):
        made.add_sample(f"{made.name}_bucket", {**labels, "le": le}, count)
    if series.value is not None:  # both or neither
        made.add_sample(f"{made.name}_count", labels, cumulative[-1])
        made.add_sample(f"{made.name}_sum", labels, series.value)
