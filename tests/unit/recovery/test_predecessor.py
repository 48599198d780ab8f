# SPDX-License-Identifier: Apache-2.0
"""Kills are counted by what they left, whether or not a record was stored by then."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import SessionConfig
from collectord.plan.build import build
from collectord.recovery.predecessor import repair_leftovers
from tests.support import trace_segments as support
from tests.support.configs import perf_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from pathlib import Path


def test_a_kill_before_the_first_record_is_counted(tmp_path: Path) -> None:
    """It left a segment that holds nothing, which is removed; a clean stop leaves none."""
    source = perf_source("sched:sched_switch")
    session = SessionConfig(name="calls", source=(source,))
    config = Config(daemon=DaemonConfig(state_dir=str(tmp_path)), session=(session,))
    plan = build(config, host())
    assert repair_leftovers(plan, tmp_path).unclean_stops == 0
    segment = support.make_sink(tmp_path / "calls").next_segment(1, support.opening())
    for fd in (segment.fd, segment.meta_fd):
        os.close(fd)
    assert repair_leftovers(plan, tmp_path).unclean_stops == 1
    assert list((tmp_path / "calls").iterdir()) == []
    assert repair_leftovers(plan, tmp_path).unclean_stops == 1
