# SPDX-License-Identifier: Apache-2.0
"""Answers about memory on a cause that the test makes: a process that outgrows its cgroup."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import answer, why
from tests.support import bpf_load
from tests.support.recording import recording

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

LIMIT_BYTES: Final = 16 << 20
EVENTS: Final = ",".join(
    [
        *(f"vmscan:mm_vmscan_{kind}_reclaim_*" for kind in ("direct", "memcg")),
        "oom:mark_victim",
    ]
)


@pytest.mark.parametrize("via", ["perf", "ftrace"])
def test_a_process_that_outgrows_its_cgroup(
    via: str,
    start_cli: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    require: Callable[[str], None],
) -> None:
    """`oom-kills` names the victim and `reclaim` the thread; `why mem` says both."""
    require("memory cgroups")
    with (
        bpf_load.memory_cgroup(f"collectord-answer-{os.getpid()}", LIMIT_BYTES) as cgroup,
        recording(start_cli, tmp_path, "-a", "-e", EVENTS, "--via", via),
        bpf_load.eater(cgroup, "outgrower", 2 * LIMIT_BYTES, score=1000) as victim,
    ):
        assert victim.wait() == -signal.SIGKILL

    def rows(name: str) -> list[dict[str, Any]]:
        assert answer.run(["--json", name, str(tmp_path)]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    (killed,) = [row for row in rows("oom-kills") if row["pid"] == victim.pid]
    assert (killed["allocated_by"], killed["allocated_by_pid"]) == ("outgrower", victim.pid)
    (freed,) = [row for row in rows("reclaim") if row["tid"] == victim.pid]
    assert freed["comm"] == "outgrower"
    assert freed["total_ms"] >= freed["longest_ms"] > 0
    assert why.run(["mem", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert f"({victim.pid}): outgrower ({victim.pid}) found no memory" in told
    assert f"{freed['time'][11:23]} outgrower ({victim.pid})" in told
