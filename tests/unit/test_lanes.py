# SPDX-License-Identifier: Apache-2.0
"""`make test` runs its lanes side by side, and reports on them."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests import lanes
from tests.lanes import Ended, Lane
from tests.support.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def program(name: str, text: str) -> Lane:
    """Return a lane that is a Python program."""
    return Lane(name, (sys.executable, "-c", text))


@pytest.fixture(autouse=True)
def _logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LOGS", tmp_path / "lanes")


def test_each_lane_runs_and_says_how_it_ended() -> None:
    """Those behind run in their order, whatever becomes of one, and their output is kept."""
    behind = [program("one, two", "print('said'); raise SystemExit(3)"), program("three", "")]
    beside = [program("beside", "raise SystemExit(2)")]
    ended = lanes.run(program("front", "raise SystemExit(1)"), beside, behind)
    assert [(one.name, one.status) for one in ended] == [
        ("front", 1),
        ("beside", 2),
        ("one, two", 3),
        ("three", 0),
    ]
    assert lanes.log_of(behind[0]).read_text() == "said\n"


def test_queues_run_beside_each_other(tmp_path: Path) -> None:
    """The first lane of each ends only when the other runs, too."""
    meeting = str(tmp_path / "meeting")
    os.mkfifo(meeting)
    first = program("first", f"open({meeting!r}, 'w').close()")
    second = program("second", f"open({meeting!r}).close()")
    ended = lanes.run(program("front", ""), [], [first, program("third", "")], [second])
    told = [(each.name, each.status) for each in ended]
    assert told == [("front", 0), ("first", 0), ("third", 0), ("second", 0)]


def test_lanes_whose_failures_are_kept_have_a_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A test that fails once is named and fails no lane; other lanes have one run."""
    once = tmp_path / "tests" / "kernel" / "test_once.py"
    once.parent.mkdir(parents=True)
    once.write_text(
        "from pathlib import Path\n"
        "def test_once() -> None:\n"
        "    mark = Path('seen')\n"
        "    seen = mark.exists()\n"
        "    mark.touch()\n"
        "    assert seen\n"
    )
    words = (sys.executable, "-m", "pytest", "tests/kernel", "-o", f"cache_dir={tmp_path}/cache")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lanes, "ROOT", tmp_path)
    monkeypatch.setattr(lanes, "CACHES", {"beside": tmp_path / "cache"})
    monkeypatch.setattr(lanes, "KERNEL", program("front", ""))
    before = signal.getsignal(signal.SIGTERM)
    try:
        monkeypatch.setattr(lanes, "BESIDE", Lane("beside", words))
        monkeypatch.setattr(lanes, "BEHIND", ())
        assert lanes.main([]) == 0
        monkeypatch.setattr(lanes, "BESIDE", program("beside", ""))
        monkeypatch.setattr(lanes, "BEHIND", (program("other", "raise SystemExit(1)"),))
        assert lanes.main([]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "passed alone:\n  tests/kernel/test_once.py::test_once\n" in capfd.readouterr().out


def test_targets_are_made_behind(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """They have a line in the table; a failure is one of all lanes, and is printed last."""
    monkeypatch.setattr(lanes, "KERNEL", program("front", ""))
    monkeypatch.setattr(lanes, "BESIDE", program("beside", ""))
    monkeypatch.setattr(lanes, "BEHIND", ())
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert lanes.main(["help"]) == 0
        assert lanes.main(["no-such-target"]) == 2
        first = capfd.readouterr().out
        assert lanes.main(["no-such-target", "help"]) == 2
    finally:
        signal.signal(signal.SIGTERM, before)
    assert re.search("this list.*No rule to make target", capfd.readouterr().out, re.DOTALL)
    told = first
    assert "this list" in told
    ended = [line.split() for line in told.splitlines() if line.startswith("  make ")]
    assert [(words[1], words[-1]) for words in ended] == [
        ("help", "ok"),
        ("no-such-target", "FAILED"),
    ]


def test_lanes_behind_know_that_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lane's instances come and go beside them."""
    monkeypatch.delenv("COLLECTORD_BESIDE", raising=False)
    told = program("told", "import os; raise SystemExit('COLLECTORD_BESIDE' not in os.environ)")
    other = Lane("other", told.words)
    assert [one.status for one in lanes.run(told, [other], [told])] == [1, 0, 0]


def test_nothing_is_left_of_lanes_that_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an interrupt ends the front, background lanes end with all that they started."""
    started = "import subprocess, sys; subprocess.run([sys.executable, '-c', WAIT])"
    behind = program("behind", f"WAIT = 'import time; time.sleep(600)'; {started}")
    beside = Lane("beside", behind.words)

    def interrupted(_runner: lanes.Runner, _lane: Lane) -> Ended:
        raise KeyboardInterrupt

    monkeypatch.setattr(lanes.Runner, "front", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lanes.run(program("front", ""), [beside], [behind, behind])


def test_the_table_names_each_lane_and_its_times() -> None:
    """A failed lane stands out; a lane that mostly waits is seen by its processor time."""
    text = lanes.table([Ended("kernel", 0, 61.4, 22.2), Ended("native", 1, 9.6, 8.7)], 71.0)
    assert text.splitlines() == [
        "lanes:",
        "  kernel                       61 s     22 s of CPU  ok",
        "  native                       10 s      9 s of CPU  FAILED",
        "  all                          71 s     31 s of CPU",
    ]


def test_the_processor_time_of_a_lane_is_its_own() -> None:
    """It includes what the lane's children used, and nothing of a lane beside it."""
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}], check=True)"
    idle = "import sys; sys.stdin.read()"
    front, behind = lanes.run(program("front", idle), [], [program("behind", child)])
    assert (front.status, behind.status) == (0, 0)
    assert behind.cpu_seconds >= 0.5
    assert front.cpu_seconds < behind.cpu_seconds


def test_a_share_of_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few at least, and never more than asked for."""
    assert examples(100) <= 100
    monkeypatch.setattr("tests.support.examples.SHARE", 0.05)
    assert [examples(count) for count in (10_000, 100, 20, 2)] == [500, 5, 3, 2]
