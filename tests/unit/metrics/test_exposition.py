# SPDX-License-Identifier: Apache-2.0
"""The text of a scrape of a whole daemon, and the format that a client gets."""

from __future__ import annotations

from typing import Final

import prometheus_client
import pytest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import CollectorRegistry

from collectord.metrics.exposition import OPENMETRICS, TEXT, Exposition, content_type
from collectord.metrics.prometheus import DaemonCollector
from tests.support import balances

PROMETHEUS_2: Final = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def registry(*, per_cpu: bool) -> CollectorRegistry:
    """Return the daemon's own metrics; those of the process change between two readings."""
    status = balances.status(
        balances.session("exec"), balances.recorder("blackbox"), balances.traced("trace")
    )
    made = CollectorRegistry()
    made.register(DaemonCollector(lambda: status, kernel_release="6.12.0", per_cpu=per_cpu))
    return made


@pytest.mark.parametrize("per_cpu", [False, True])
def test_a_whole_scrape_is_that_of_the_client(*, per_cpu: bool) -> None:
    """Every family and series of a daemon, in both formats."""
    source = registry(per_cpu=per_cpu)
    exposition = Exposition(source)
    assert exposition.text(TEXT) == prometheus_client.generate_latest(source)
    assert exposition.text(OPENMETRICS) == openmetrics.generate_latest(source)  # type: ignore[no-untyped-call]  # no annotations


def test_a_second_scrape_has_new_figures() -> None:
    """Labels are kept from one scrape to the next, values are not."""
    sessions = [balances.session("exec", cpus=1)]
    made = CollectorRegistry()
    made.register(
        DaemonCollector(lambda: balances.status(*sessions), kernel_release="6.12.0", per_cpu=False)
    )
    exposition = Exposition(made)
    stored = b'collectord_stored_records_total{session="exec",source="perf"} '
    assert stored + b"90.0\n" in exposition.text(TEXT)
    sessions[:] = [balances.session("exec", cpus=3)]
    assert stored + b"270.0\n" in exposition.text(TEXT)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        (PROMETHEUS_2, OPENMETRICS),
        ("text/plain, application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-texts", TEXT),
    ],
)
def test_the_format_is_one_that_the_client_accepts(accept: str, kind: str) -> None:
    """OpenMetrics for those that name it, as Prometheus does; text for all others."""
    assert content_type(accept) == kind
    body, answered = Exposition(registry(per_cpu=False)).answer(accept)
    assert answered == kind
    assert body.endswith(b"# EOF\n") == (kind == OPENMETRICS)
