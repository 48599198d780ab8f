# SPDX-License-Identifier: Apache-2.0
"""Answers beside a tool of bcc that needs kprobes."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from collectord.cli import answer
from tests.support import bcc_tools
from tests.support.patience import patient
from tests.support.recording import recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

READS: Final = 64
_READ_BYTES: Final = 128 << 10
# Time, name, process, disk, direction, sector, bytes, latency in ms.
_ROW: Final = r" dd +(\d+) +(loop\d+) +R +(\d+) +(\d+) +([\d.]+)"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    """Provide a disk of zeros."""
    image = tmp_path / "image"
    image.write_bytes(bytes(READS * _READ_BYTES))
    words = ["losetup", "--find", "--show", str(image)]
    made = subprocess.run(words, capture_output=True, text=True, check=True)
    yield made.stdout.strip()
    subprocess.run(["losetup", "--detach", made.stdout.strip()], check=True)


def test_requests_are_those_of_biosnoop(
    start_cli: Start, capsys: pytest.CaptureFixture[str], *, disk: str, tmp_path: Path
) -> None:
    """Each read of a program: its process, its size, and the time in the device."""
    events = "block:block_rq_issue,block:block_rq_complete"
    words = ("-a", "-m", "4MiB", "-e", events, "--via", "ftrace")
    load = ("dd", f"if={disk}", "of=/dev/null", f"bs={_READ_BYTES}", "iflag=direct", "status=none")
    with (
        bcc_tools.running("biosnoop-bpfcc", begun="LAT(ms)") as tool,
        recording(start_cli, tmp_path, *words),
    ):
        subprocess.run(load, check=True, timeout=patient(60))
        tool.await_text(_ROW, READS)
    assert answer.run(["--json", "slow-io", "--param", "limit=100000", str(tmp_path / "out")]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ours = [row for row in rows if row["comm"] == "dd"]
    print(tool.text, *map(json.dumps, ours), sep="\n")  # noqa: T201
    raise AssertionError
