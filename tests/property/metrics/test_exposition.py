# SPDX-License-Identifier: Apache-2.0
"""The text of a scrape is the Prometheus client's, byte for byte."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, SummaryMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics

from collectord.metrics.exposition import OPENMETRICS, TEXT, Exposition
from collectord.metrics.families import Family, Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client.metrics_core import Metric

WORDS: Final = st.text(st.sampled_from('ab"\\\nä,{} ='), max_size=6)
NUMBERS: Final = (
    st.integers(-10, 2_000_000) | st.integers(0, 1 << 70) | st.floats() | st.booleans()
)
NAMES: Final = st.lists(
    st.sampled_from(["session", "source", "cpu", "stage", "le"]), unique=True, max_size=4
).map(tuple)


@st.composite
def families(draw: st.DrawFn) -> Metric:
    """Return a family of any kind and size."""
    kind = draw(st.sampled_from(["counter", "gauge", "histogram"]))
    names = draw(NAMES)
    labels = st.tuples(*(WORDS for _ in names))
    rows = draw(st.dictionaries(labels, NUMBERS, max_size=4)).items()
    suffix = {"counter": "_total", "gauge": "", "histogram": "_bucket"}[kind]
    text = draw(WORDS)
    return Family(f"x_{kind}", text, kind, [Part(suffix, names, [*rows])])


@st.composite
def others(draw: st.DrawFn) -> Metric:
    """Return a family of the client's own."""
    if draw(st.booleans()):
        summary = SummaryMetricFamily("x_seconds", draw(WORDS))
        summary.add_metric((), count_value=draw(st.integers(0, 1 << 40)), sum_value=0.5)
        return summary
    counter = CounterMetricFamily("x_all", draw(WORDS), labels=["b", "a"])
    counter.add_metric(("1", draw(WORDS)), draw(NUMBERS))
    return counter


def registry(found: Sequence[Metric]) -> Any:  # noqa: ANN401 - as much of one as is read
    """Return a registry of these families."""
    return SimpleNamespace(collect=lambda: found)


@given(st.lists(families() | others(), max_size=4))
def test_the_text_is_that_of_the_client(found: list[Metric]) -> None:
    """In both formats, whatever the labels have in them; again from the labels that are kept."""
    source = registry(found)
    exposition = Exposition(source)
    for _ in range(2):
        assert exposition.text(TEXT) == prometheus_client.generate_latest(source)
        assert exposition.text(OPENMETRICS) == openmetrics.generate_latest(source)  # type: ignore[no-untyped-call]  # no annotations
