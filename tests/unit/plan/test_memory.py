# SPDX-License-Identifier: Apache-2.0
"""The limit of all memory that a plan may take."""

from __future__ import annotations

from typing import Final

import pytest

from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import SessionConfig
from collectord.errors import PlanError
from collectord.plan.build import build
from collectord.text.units import Bytes, Least, RingSize
from tests.support.configs import perf_source, tracefs_source
from tests.support.hosts import host

MIB: Final = 1 << 20
EVENT: Final = "sched:sched_switch"
CPUS: Final = (0, 1)
STREAM: Final = SessionConfig(
    name="stream",
    source=(perf_source("cs", ring=RingSize(8 * MIB), sideband_ring=RingSize(MIB)),),
)
RECORDER: Final = SessionConfig(
    name="recorder", mode="flight-recorder", source=(tracefs_source(EVENT, max=Least(40 * MIB)),)
)


@pytest.mark.parametrize(
    ("session", "rings"), [(STREAM, 2 * (8 + 1)), (RECORDER, 40)], ids=["stream", "recorder"]
)
def test_a_plan_that_needs_more_is_refused(session: SessionConfig, rings: int) -> None:
    """Rings as they may grow, staging and the process count; the error has keys to change."""
    needed = rings + 16 + 72

    def planned(memory: int) -> None:
        daemon = DaemonConfig(staging=Bytes(16 * MIB), memory=Bytes(memory * MIB))
        build(
            Config(daemon=daemon, session=(session,)), host(cpus_online=CPUS, numa_nodes=(CPUS,))
        )

    planned(0)
    planned(needed)
    with pytest.raises(PlanError) as refused:
        planned(needed - 1)
    assert f"{rings}MiB of rings, 16MiB of staging" in str(refused.value)
    assert refused.value.what == "memory"
    for key in ("memory", "staging", "ring", "sideband_ring", "aux", "max"):
        assert f"`{key}`" in refused.value.hint
