# SPDX-License-Identifier: Apache-2.0
"""Answers beside the tools of bcc, which have measured the same load at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import answer, query
from tests.support import answer_causes, bcc_tools
from tests.support.patience import patient
from tests.support.recording import recording

if TYPE_CHECKING:
    from collections.abc import Callable

    Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

_CAUSES: Final = Path(answer_causes.__file__)
_NAMES: Final = ("cpu-hog", "cpu-victim", "ping", "pong")
_NEAR_NS: Final = 1000
# From the wake-up or the switch before to the one with which a thread runs.
_WAITS: Final = """
WITH moves AS (
    SELECT mono_ns, event_pid AS tid, 'waits' AS what FROM sched_wakeup
    UNION ALL
    SELECT mono_ns, event_pid, 'waits' FROM sched_wakeup_new
    UNION ALL
    SELECT mono_ns, prev_pid, CASE WHEN prev_state & 255 = 0 THEN 'waits' ELSE 'sleeps' END
    FROM sched_switch
    UNION ALL
    SELECT mono_ns, next_pid, 'runs' FROM sched_switch
), pairs AS (
    SELECT
        tid, what, mono_ns,
        lag(what) OVER by_tid AS what_before,
        lag(mono_ns) OVER by_tid AS since_ns
    FROM moves
    WINDOW by_tid AS (PARTITION BY tid ORDER BY mono_ns)
)
SELECT tid, mono_ns - since_ns AS waited_ns
FROM pairs
WHERE what = 'runs' AND what_before = 'waits'
"""


def test_waits_for_a_cpu_are_those_of_runqlat(
    start_cli: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each thread of a load waited as often as runqlat says, and as long.

    The threads begin and end while both record, so none of their waits is at an edge. The numbers
    of waits are equal, those of `run-queue` too. As each has a clock reading of its own, some
    hundred nanoseconds apart, waits that are within a microsecond of the border of two slots may
    be in either; an interrupt between the two readings may move two of a
    thread, and one in a hundred, further.
    """
    events = ",".join(f"sched:sched_{name}" for name in ("switch", "wakeup", "wakeup_new"))
    words = ("-a", "-m", "16MiB", "-e", events, "--via", "ftrace")
    with bcc_tools.running("runqlat", "-L") as tool, recording(start_cli, tmp_path, *words):
        subprocess.run([sys.executable, _CAUSES, "cpu"], check=True, timeout=patient(60))

    def rows(verb: Callable[[list[str]], int], *asked: str) -> list[dict[str, Any]]:
        assert verb(["--json", *asked, str(tmp_path / "out")]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    own: dict[int, list[int]] = defaultdict(list)
    for row in rows(query.run, _WAITS):
        own[row["tid"]].append(row["waited_ns"])
    theirs = bcc_tools.histograms(tool, "tid")
    answered = rows(answer.run, "run-queue", "--param", "limit=100000")
    ours = {row["tid"]: row for row in answered if row["comm"] in _NAMES}
    assert sorted(row["comm"] for row in ours.values()) == sorted(_NAMES)
    for tid, row in ours.items():
        waits, slots = own[tid], theirs[tid]
        assert row["waits"] == len(waits) == sum(slots.values()), row
        assert row["longest_ms"] == pytest.approx(max(waits) / 1e6, abs=0.001)
        _check_slots(waits, slots)
    waited = {row["comm"]: sum(theirs[tid].values()) for tid, row in ours.items()}
    assert min(waited["ping"], waited["pong"]) >= answer_causes.ROUNDS


def _check_slots(waits_ns: list[int], slots: dict[int, int]) -> None:
    """Compare how many waits are shorter than each border of a histogram's slots."""
    stray = 2 + len(waits_ns) // 100
    for border_us in [*slots][1:]:
        shorter = sum(count for least_us, count in slots.items() if least_us < border_us)
        least, most = (
            sum(wait < border_us * 1000 + near_ns for wait in waits_ns)
            for near_ns in (-_NEAR_NS, _NEAR_NS)
        )
        assert least - stray <= shorter <= most + stray, (border_us, slots, sorted(waits_ns))
