# SPDX-License-Identifier: Apache-2.0
"""A scrape of a large machine: the time for which the event loop does nothing else."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

import prometheus_client

from collectord.metrics import prometheus
from collectord.metrics.exposition import TEXT, Exposition
from collectord.model import Basis
from tests.bench.row import Row
from tests.support import balances

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.row import Settings

_CPUS: Final = 256
_ROUNDS: Final = 9
_BUDGET_S: Final = 0.1


def _timed(write: Callable[[], bytes]) -> list[float]:
    write()  # labels are put together once
    found = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        write()
        found.append(time.perf_counter() - began)
    return found


def scrape(settings: Settings) -> list[Row]:
    """Write the metrics of the default sessions on 256 CPUs, with the `cpu` label."""
    del settings  # no load: the figures are made up
    status = balances.status(
        balances.session("profile", cpus=_CPUS, basis=Basis.LOST_ONLY),
        balances.session("exec", cpus=_CPUS),
        balances.recorder("blackbox", cpus=_CPUS),
    )
    registry = prometheus.registry(lambda: status, kernel_release="6.12.0", per_cpu=True)
    exposition = Exposition(registry)
    lines = sum(not line.startswith(b"#") for line in exposition.text(TEXT).splitlines())
    ours = _timed(lambda: exposition.text(TEXT))
    peer = _timed(lambda: prometheus_client.generate_latest(registry))
    value = statistics.median(ours)
    return [
        Row(
            f"scrape of {_CPUS} CPUs by CPU, {lines:,} series",
            f"{value * 1e3:.0f} ms ({min(ours) * 1e3:.0f}-{max(ours) * 1e3:.0f})",
            f"{statistics.median(peer) * 1e3:.0f} ms (prometheus_client)",
            value,
            _BUDGET_S,
            "s",
        )
    ]
