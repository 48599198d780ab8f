# SPDX-License-Identifier: Apache-2.0
"""Kills are counted by what they left, whether or not a record was stored by then."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import SessionConfig
from collectord.plan.build import build
from collectord.recovery.predecessor import Leftovers
from tests.support import segments
from tests.support import trace_segments as support
from tests.support.configs import perf_source
from tests.support.hosts import host
from tests.support.segments import files_in

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.plan.plan import Plan


def test_a_kill_before_the_first_record_is_counted(tmp_path: Path) -> None:
    """It left a segment that holds nothing, which is removed; a clean stop leaves none."""
    source = perf_source("sched:sched_switch")
    session = SessionConfig(name="calls", source=(source,))
    config = Config(daemon=DaemonConfig(state_dir=str(tmp_path)), session=(session,))
    plan = build(config, host())
    assert unclean_stops(plan, tmp_path) == 0
    segment = support.make_sink(tmp_path / "calls").next_segment(1, support.opening())
    for fd in (segment.fd, segment.meta_fd):
        os.close(fd)
    assert unclean_stops(plan, tmp_path) == 1
    assert list(files_in(tmp_path / "calls")) == []
    assert unclean_stops(plan, tmp_path) == 1


def unclean_stops(plan: Plan, state: Path) -> int:
    """Return what a start counts."""
    leftovers = Leftovers(plan, state)
    leftovers.begin()
    return leftovers.repaired.unclean_stops


def test_segments_of_rings_that_are_held_are_sealed_later(tmp_path: Path) -> None:
    """Those that were left at the start, and no others; the stop is counted then already."""
    source = perf_source("sched:sched_switch")
    sessions = [SessionConfig(name=name, source=(source,)) for name in ("calls", "others")]
    daemon = DaemonConfig(state_dir=str(tmp_path), opener="/run/opener.sock")
    plan = build(Config(daemon=daemon, session=tuple(sessions)), host())
    folder = tmp_path / "calls"
    left = segments.orphan(folder, samples=10)
    leftovers = Leftovers(plan, tmp_path)
    leftovers.begin()
    assert leftovers.repaired.unclean_stops == 1
    assert left.exists()
    own = segments.orphan(folder, samples=20)
    leftovers.repair(tmp_path / "others")
    assert left.exists()
    leftovers.repair(folder)
    assert (left.exists(), own.exists()) == (False, True)
    left.with_name(left.name.removesuffix(".partial") + ".json").unlink()
    leftovers.repair_rest()
    assert leftovers.repaired.damaged_files == 0
    again = Leftovers(plan, tmp_path)
    again.begin()
    assert again.repaired.unclean_stops == 2
    again.repair_rest()
    assert not own.exists()
