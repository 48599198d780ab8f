# SPDX-License-Identifier: Apache-2.0
"""While everything moves the ledger is a bracket, and what it cannot explain stays 0."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import daemons
from tests.support.daemons import NUMBER
from tests.support.recording import check_balance, daemon, daemon_config, daemon_result, stopped

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

COUNT: Final = 30_000
# The size of a ring, for a burst that it holds a few hundred calls of.
SMALL: Final = 4
BURST: Final = 10_000
READINGS: Final = 12
OFTEN: Final = 'flush_interval = "20ms"'


@pytest.mark.parametrize("pages", [2048, SMALL], ids=["room", "overload"])
@pytest.mark.parametrize("scope", ["system", "process"])
def test_the_live_bracket_holds(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perf: Perf,
    scope: str,
    pages: int,
) -> None:
    """At full speed on all CPUs, no reading of a running ring leaves a record unaccounted."""
    threads = len(os.sched_getaffinity(0))
    readings: set[int] = set()
    losing = pages == SMALL
    with (
        generator.start("count", nr=NUMBER, endless=1, threads=threads, later=threads) as running,
        generator.start("count", nr=NUMBER, count=BURST, cpu=0) as burst,
    ):
        pids = f"\npids = [{running.pid}, {burst.pid}]" if scope == "process" else ""
        config = daemon_config(
            tmp_path,
            core=OFTEN,
            target=f'scope = "{scope}"{pids}',
            source=f'ring = "{pages}pages"',
        )
        with daemon(start_cli, config) as collector:

            def poll() -> dict[str, Any]:
                session = collector.session()
                assert session["unaccounted"] == 0, session
                assert [ring["unaccounted"] for ring in session["rings"]] == [0] * threads
                return session

            running.go()
            while len(readings) < READINGS:
                readings.add(poll()["produced"])
                if losing and len(readings) == READINGS // 2:
                    with stopped(collector.process):  # nobody empties what this fills
                        burst.run()
                    losing = False
            generated = running.end()["events"] + (BURST if pages == SMALL else 0)
            daemons.wait_for(lambda: poll()["produced"] >= generated, "all that was made")
            assert _series(collector.metrics(), "collectord_unaccounted_records") == [0]
    result = daemon_result(tmp_path)
    check_balance(result, [perf] if pages == SMALL else [], generated=generated)
    if pages == SMALL:
        assert result["lost"]["kernel_ring/ring_full"] > BURST // 2


def test_a_scrape_balances(start_cli: Start, tmp_path: Path, generator: Generator) -> None:
    """The metrics of one scrape add up once the system is quiet, losses and all."""
    total = 2 * COUNT
    config = daemon_config(tmp_path, core=OFTEN, source='ring = "1pages"')
    with (
        generator.start("count", nr=NUMBER, count=total // 2, threads=2) as running,
        daemon(start_cli, config) as collector,
    ):
        with stopped(collector.process):
            running.run()
        scrape = ""

        def adds_up() -> bool:
            nonlocal scrape
            scrape = collector.metrics()
            stored = sum(_series(scrape, "collectord_stored_records_total"))
            return stored + sum(_series(scrape, "collectord_lost_records_total")) == total

        daemons.wait_for(adds_up, "every call stored or lost")
        assert _series(scrape, "collectord_produced_records_total") == [total]
        lost = sum(_series(scrape, "collectord_lost_records_total"))
        assert 0 < lost < total
        assert _series(scrape, "collectord_unaccounted_records") == [0]


def _series(scrape: str, name: str) -> list[float]:
    """Return the values of a metric's series."""
    lines = [line for line in scrape.splitlines() if line.startswith(f"{name}{{")]
    return [float(line.rpartition(" ")[2]) for line in lines]
