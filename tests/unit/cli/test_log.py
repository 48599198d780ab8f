# SPDX-License-Identifier: Apache-2.0
"""The log: rate limits per ring, foreign text, rendering."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from collectord.cli import log

pytestmark = pytest.mark.slow


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        """Return the time."""
        return self.now_ns


def test_one_line_per_event_and_ring_and_interval() -> None:
    """Within the interval a second line is dropped; the first after it tells how many were."""
    clock = Clock()
    limit = log.RateLimit(interval_ns=100, clock_ns=clock)
    assert "suppressed" not in limit(None, "warning", {"event": "ring_lost", "ring": "a"})
    for _ in range(3):
        with pytest.raises(structlog.DropEvent):
            limit(None, "warning", {"event": "ring_lost", "ring": "a"})
    clock.now_ns += 100
    assert limit(None, "warning", {"event": "ring_lost", "ring": "a"})["suppressed"] == 3
    clock.now_ns += 100
    assert "suppressed" not in limit(None, "warning", {"event": "ring_lost", "ring": "a"})


def test_other_rings_and_events_are_limited_apart() -> None:
    """A line about another ring, another event, or no ring at all is not held back."""
    limit = log.RateLimit(interval_ns=100, clock_ns=Clock())
    lines = [
        ("warning", {"event": "ring_lost", "ring": "a"}),
        ("warning", {"event": "ring_lost", "ring": "b"}),
        ("warning", {"event": "ring_throttled", "ring": "a"}),
        ("info", {"event": "opened"}),
        ("info", {"event": "opened"}),
    ]
    for level, line in lines:
        assert limit(None, level, dict(line)) == line


def test_lines_of_a_kind_are_limited_together() -> None:
    """Lines with the same `limit_by` value count together; the value is not printed."""
    limit = log.RateLimit(interval_ns=100, clock_ns=Clock())
    first = limit(None, "warning", {"event": "refused", "peer": "a", "limit_by": "metrics"})
    assert first == {"event": "refused", "peer": "a"}
    limit(None, "warning", {"event": "refused", "peer": "b", "limit_by": "control"})
    with pytest.raises(structlog.DropEvent):
        limit(None, "warning", {"event": "refused", "peer": "c", "limit_by": "metrics"})


def test_memory_of_the_limit_is_bounded() -> None:
    """However many kinds there are, the oldest are forgotten."""
    limit = log.RateLimit(interval_ns=100, clock_ns=Clock())
    kinds = 10_000
    for number in range(kinds):
        limit(None, "warning", {"event": "refused", "limit_by": number})
    with pytest.raises(structlog.DropEvent):
        limit(None, "warning", {"event": "refused", "limit_by": kinds - 1})
    assert "suppressed" not in limit(None, "warning", {"event": "refused", "limit_by": 0})


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Away from a terminal each line is one JSON object with event, level, time and the keys."""
    log.configure(console=False)
    structlog.get_logger().warning("ring_lost", ring="exec/perf/data/cpu3", lost=17)
    captured = capsys.readouterr()
    line = json.loads(captured.err)
    assert captured.out == ""
    assert (line["event"], line["level"]) == ("ring_lost", "warning")
    assert (line["ring"], line["lost"]) == ("exec/perf/data/cpu3", 17)
    assert line["timestamp"].endswith("Z")


def test_json_lines_are_valid(capsys: pytest.CaptureFixture[str]) -> None:
    """A path that is no UTF-8 has its odd bytes visible, and no lone surrogate."""
    log.configure(console=False)
    structlog.get_logger().info("segment_deleted", path="/d\udcff", paths=["/e\udcfe"])
    line = json.loads(capsys.readouterr().err)
    assert (line["path"], line["paths"]) == (r"/d\xff", [r"/e\xfe"])


def test_line_that_cannot_be_written_is_no_error() -> None:
    """A full disk under the log does not stop what logs."""
    code = (
        "import os, structlog; from collectord.cli import log; log.configure(console=False); "
        "structlog.get_logger().info('lost'); os._exit(7)"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", code], stderr=full, check=False)
    assert done.returncode == 7


def test_console_lines_escape_foreign_text(capsys: pytest.CaptureFixture[str]) -> None:
    """On the console a process name cannot reach the terminal as an escape sequence."""
    log.configure(console=True)
    structlog.get_logger().info("task_seen", comm="evil\x1b]0;title\x07\n", count=2)
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert "comm=evil\\x1b]0;title\\x07\\n" in line
    assert "count=2" in line


# The start of a service: stderr is a socket of the journal, here a file, or another one.
AS_A_SERVICE = """
import os, sys
from collectord import cli
from collectord.cli import log
status = os.fstat(2)
os.environ["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino + int(sys.argv[1])}"
log.configure()
for level in ("info", "warning", "error"):
    getattr(log.get_logger(), level)("said", text="a\\nb")
sys.exit(cli.main(lambda: None, ["run", "--config", "/nonexistent.toml"]))
"""


def as_a_service(log_file: Path, *, elsewhere: bool = False) -> list[str]:
    """Return the lines of a program whose stderr is the journal, or is not."""
    with log_file.open("wb") as file:
        words = [sys.executable, "-c", AS_A_SERVICE, str(int(elsewhere))]
        done = subprocess.run(words, stderr=file, check=False)
    assert done.returncode == 6
    return log_file.read_text().splitlines()


def test_lines_of_the_journal_have_priorities(tmp_path: Path) -> None:
    """They are JSON too, and so is the error that the program ends with."""
    lines = as_a_service(tmp_path / "log")
    assert [line[:3] for line in lines] == ["<6>", "<4>", "<3>", "<3>"]
    events = [json.loads(line[3:]) for line in lines]
    assert [line["level"] for line in events] == ["info", "warning", "error", "error"]
    assert (events[-1]["event"], events[-1]["exit_code"]) == ("ended_by_error", 6)
    assert "/nonexistent.toml" in events[-1]["error"]


def test_a_file_is_not_the_journal(tmp_path: Path) -> None:
    """A child of a service whose stderr goes elsewhere inherits the journal's variable."""
    lines = as_a_service(tmp_path / "log", elsewhere=True)
    assert [line[:1] for line in lines] == ["{", "{", "{", "c"]
    assert lines[-1].startswith("collectord: ")


def test_library_log_joins(capsys: pytest.CaptureFixture[str]) -> None:
    """Messages that a library logs with `logging` have the same form, including tracebacks."""
    log.configure(console=False)
    try:
        raise ValueError("x")  # noqa: TRY301  # a traceback is wanted
    except ValueError:
        logging.getLogger("aiohttp.server").exception("handler failed")
    line = json.loads(capsys.readouterr().err)
    assert line["event"] == "library_message"
    assert (line["logger"], line["message"]) == ("aiohttp.server", "handler failed")
    assert "ValueError: x" in line["exception"]


def test_level(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines below the level are not written."""
    log.configure(level=logging.WARNING, console=False)
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    assert json.loads(capsys.readouterr().err)["event"] == "loud"


def test_library_log_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    """A library that says the same over and over again is heard once, and not at any length."""
    log.configure(console=False)
    library = logging.getLogger("asyncio")
    for number in range(100):
        library.error("connection %d: %s", number, "x" * 100_000)
    library.error("something else")
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["message"][:12] for line in lines] == ["connection 0", "something el"]
    assert len(lines[0]) < 2_000


def test_rich_stays_out_of_the_daemon() -> None:
    """Loading the log and the daemon's own modules does not load rich."""
    code = (
        "import sys; import collectord.cli.run; "
        "sys.exit(any(name.partition('.')[0] == 'rich' for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("verb", ["record", "run"])
def test_no_server_is_loaded_before_rings_are_open(verb: str) -> None:
    """The libraries of the daemon's metrics and API would take a quarter of a second to load."""
    code = (
        f"import sys; import collectord.cli.{verb}; "
        "loaded = {name.partition('.')[0] for name in sys.modules}; "
        "sys.exit(bool(loaded & {'aiohttp', 'prometheus_client', 'pyroute2', 'rich'}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
