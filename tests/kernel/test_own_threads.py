# SPDX-License-Identifier: Apache-2.0
"""The program's own threads in what it records of the whole host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.recording import check_balance, recording, segments_of

if TYPE_CHECKING:
    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.alone]

SWITCH: Final = "sched:sched_switch"
_LINE: Final = re.compile(r"\[(\d+)\] .*prev_pid=(\d+) .*next_pid=(\d+) ")


def test_each_switch_to_a_recorders_thread_is_followed_by_the_one_away_from_it(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perf: Perf
) -> None:
    """If half of the switches were missing, other tasks would get our threads' time."""
    with (
        recording(start_cli, tmp_path, "-a", "-e", SWITCH) as ours,
        generator.start("count", count=2000, rate=4000) as running,
    ):
        own = {int(task.name) for task in Path(f"/proc/{ours.process.pid}/task").iterdir()}
        running.run()
    check_balance(ours.session, ())
    (segment,) = segments_of(ours.session)
    runs: dict[int, int] = {}
    away = []
    for line in perf.script(segment, "-F", "trace:tid,cpu,time,event,trace"):
        found = _LINE.search(line)
        assert found, line
        cpu, before, after = map(int, found.groups())
        if runs.get(cpu) in own:
            away.append(before == runs[cpu])
        runs[cpu] = after
    assert len(away) > 1
    assert all(away)
