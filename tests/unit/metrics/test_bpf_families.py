# SPDX-License-Identifier: Apache-2.0
"""Metrics of BPF programs: families, series, names that collide."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import prometheus_client
import pytest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from collectord.errors import PlanError
from collectord.metrics import prometheus
from collectord.plan.bpf_metrics import check_metrics
from collectord.programs.bpf_program import BpfProgram
from collectord.programs.program_manifest import BpfManifest, MetricConfig
from collectord.session.maps.map_reader import failures
from collectord.session.maps.program_status import BpfStatus, FunctionRuns, MetricValues, Series
from collectord.source.open_program import Counts
from tests.support import balances

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

LATENCY: Final = MetricValues(
    name="latency_seconds",
    type="histogram",
    help="Time of requests.",
    label_names=("device",),
    bounds=(1e-06, 0.001, 1023.0),
    series=(
        Series(("sda",), 2.5, (1, 0, 2, 4)),
        Series(("other",), None, (0, 1, 0, 0)),
    ),
)
DROPS: Final = MetricValues("drops_total", "counter", "What is dropped.", (), (), (Series((), 7),))
PROGRAM: Final = {"session": "io", "program": "biolatency"}
STATUS: Final = BpfStatus(
    **PROGRAM,
    functions=(FunctionRuns("on_done", 17, 1000, 2_500_000_000, 3),),
    submit_failures={"ENOSPC": 5, "EBUSY": 0, "ENOENT": 0, "other": 0},
    metrics=(LATENCY, DROPS),
    tables={"latency": False, "drops": True},
)


def registry(*programs: BpfStatus) -> CollectorRegistry:
    """Return the registry of a daemon with these programs."""
    status = replace(balances.status(), bpf=programs)
    return prometheus.registry(lambda: status, kernel_release="6.12.0")


def scrape(*programs: BpfStatus) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Parse one scrape back into (name, labels) to value, for BPF programs only."""
    text = prometheus_client.generate_latest(registry(*programs)).decode()
    samples = [s for f in text_string_to_metric_families(text) for s in f.samples]
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for sample in samples
        if sample.name.startswith("collectord_bpf_")
    }
    assert len(found) == sum(s.name.startswith("collectord_bpf_") for s in samples)
    return found


def of(
    found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str
) -> float:
    """Return the value of one series of the program."""
    return found[f"collectord_bpf_{name}", frozenset({**PROGRAM, **labels}.items())]


def test_no_program_no_series() -> None:
    """A daemon without BPF programs has the families of any program, without a series."""
    text = prometheus_client.generate_latest(registry()).decode()
    assert "# TYPE collectord_bpf_program_runs_total counter" in text
    assert not re.search(r"^collectord_bpf", text, re.MULTILINE)


def test_cost_and_failures() -> None:
    """Runs, time in seconds, runs left out, and failed submissions by errno, 0 included."""
    found = scrape(STATUS)
    assert of(found, "program_runs_total", function="on_done") == 1000
    assert of(found, "program_run_seconds_total", function="on_done") == 2.5
    assert of(found, "program_recursion_misses_total", function="on_done") == 3
    assert of(found, "submit_failures_total", errno="ENOSPC") == 5
    assert of(found, "submit_failures_total", errno="EBUSY") == 0
    assert of(found, "table_truncated", table="latency") == 0
    assert of(found, "table_truncated", table="drops") == 1


def test_what_is_not_counted_is_no_zero() -> None:
    """No runs without statistics, no misses before Linux 5.12, no errno without counts."""
    quiet = replace(
        STATUS,
        functions=(FunctionRuns("on_done", 17, None, None, None),),
        submit_failures=None,
        tables=None,
        metrics=(),
    )
    assert scrape(quiet) == {}


def test_histogram() -> None:
    """Buckets are cumulative with Go's spelling of their bounds; sum and count come together."""
    found = scrape(STATUS)
    buckets = {"1e-06": 1, "0.001": 1, "1023.0": 3, "+Inf": 7}
    for le, count in buckets.items():
        assert of(found, "latency_seconds_bucket", device="sda", le=le) == count
    assert of(found, "latency_seconds_sum", device="sda") == 2.5
    assert of(found, "latency_seconds_count", device="sda") == 7
    assert of(found, "latency_seconds_bucket", device="other", le="+Inf") == 1
    keys = {name for name, labels in found if ("device", "other") in labels}
    assert keys == {"collectord_bpf_latency_seconds_bucket"}


def test_one_family_for_two_programs() -> None:
    """Programs and sessions that export one name are told apart by labels, under one heading."""
    again = replace(STATUS, session="night")
    other = replace(
        STATUS,
        program="nfslatency",
        metrics=(
            replace(
                LATENCY, label_names=("op",), bounds=(1.0,), series=(Series(("r",), 1, (2, 0)),)
            ),
        ),
    )
    text = prometheus_client.generate_latest(registry(STATUS, again, other)).decode()
    assert text.count("# TYPE collectord_bpf_latency_seconds histogram") == 1
    assert text.count("# TYPE collectord_bpf_submit_failures_total counter") == 1
    found = scrape(STATUS, again, other)
    assert of(found, "drops_total") == 7
    assert of(found, "drops_total", session="night") == 7
    assert of(found, "latency_seconds_count", program="nfslatency", op="r") == 2


def test_both_formats_are_valid() -> None:
    """OpenMetrics is strict about bounds, sums and suffixes."""
    text = openmetrics.generate_latest(registry(STATUS)).decode()  # type: ignore[no-untyped-call]  # no annotations
    families = openmetrics_parser.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]  # likewise
    names = {family.name for family in families}
    assert {"collectord_bpf_latency_seconds", "collectord_bpf_drops"} <= names
    assert "_created" not in text


def test_submit_failures_are_those_of_all_cpus() -> None:
    """By errno; a program that counts nothing has no failures to tell, not 0."""
    each = [Counts(10, 1, 2, 3, 4), Counts(10, 10, 20, 30, 40)]
    assert failures(each) == {"ENOSPC": 11, "EBUSY": 22, "ENOENT": 33, "other": 44}
    assert failures([]) is None


def program(name: str, *declared: tuple[str, Any]) -> BpfProgram:
    """Return a program that exports metrics of these names and types."""
    manifest = BpfManifest(
        summary="s",
        license="GPL-2.0-only",
        metric=tuple(MetricConfig(name=m, type=t, help="h", table="t") for m, t in declared),
    )
    return BpfProgram(name=name, path=name, source="", manifest=manifest, origin="shipped")


def test_metrics_that_go_together() -> None:
    """Two programs may export one metric, if they mean the same by it."""
    check_metrics(
        [
            program("a", ("x_total", "counter"), ("y", "histogram")),
            program("b", ("x_total", "counter"), ("y", "histogram"), ("z", "gauge")),
            program("b", ("x_total", "counter"), ("y", "histogram"), ("z", "gauge")),
        ]
    )


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        (
            (program("a", ("x", "gauge")), program("b", ("x", "histogram"))),
            "histogram collectord_bpf_x of BPF program b collides with gauge .*, that of a",
        ),
        (
            (program("a", ("x_total", "counter")), program("b", ("x", "gauge"))),
            "collectord_bpf_x of BPF program b collides with counter",
        ),
        (
            (program("a", ("x", "histogram")), program("b", ("x_count", "gauge"))),
            "gauge collectord_bpf_x_count of BPF program b collides with histogram",
        ),
        (
            (program("a", ("x_sum", "gauge")), program("b", ("x", "histogram"))),
            "histogram collectord_bpf_x of BPF program b collides with gauge .*_x_sum, that of a",
        ),
        (
            (program("a", ("submit_failures_total", "counter")),),
            "collides with counter collectord_bpf_submit_failures, collectord's own",
        ),
    ],
)
def test_metrics_that_collide(programs: tuple[BpfProgram, ...], words: str) -> None:
    """Metrics with the same name and labels are refused before any program is loaded."""
    with pytest.raises(PlanError, match=words) as caught:
        check_metrics(programs)
    assert caught.value.what.startswith("collectord_bpf_")
