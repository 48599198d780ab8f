# SPDX-License-Identifier: Apache-2.0
"""BPF programs that a user starts through the daemon, for a time."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.errors import CollectordError, ConfigError, UsageError
from collectord.kernel.bpf import bpf_calls
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    Start = Callable[..., subprocess.Popen[str]]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc"), pytest.mark.alone]

EXECS: Final = 50
PERF: Final = {"kind": "perf", "events": [EVENT]}
# The first word of the interpreter's options is -c where the daemon asks for its version.
NEVER_COMPILES: Final = """#!/bin/sh
if [ "$2" != -c ]; then
    exec sleep 600
fi
exec /usr/bin/python3 "$@"
"""


def configured(directory: Path, *, bpf: str = "") -> Path:
    """Configure a session of perf, and allow two of BPF programs to be started."""
    calls = f'[[session.source]]\nkind = "perf"\nevents = ["{EVENT}"]\nfilter = "{FILTER}"\n'
    path = daemons.write_sessions(directory, f'[[session]]\nname = "calls"\n{calls}')
    limits = '[control]\nmax_sessions = 2\nsession_kinds = ["bpf"]\n'
    path.write_text(f"[bpf]\n{bpf}\n" + path.read_text().replace("[control]\n", limits))
    return path


def table(program: str) -> dict[str, Any]:
    """Return the table of a program's session."""
    source = {"kind": "bpf", "program": program, "ring": "256KiB"}
    return {"source": [source], "duration": "10m"}


def test_programs_are_started_and_leave_nothing(tmp_path: Path, start_cli: Start) -> None:
    """Their events are stored and balanced, their maps are metrics, and all of it goes."""
    loaded = set(bpf_calls.program_ids())
    with daemons.running(start_cli, configured(tmp_path)) as daemon:

        def start(program: str) -> str:
            return str(daemon.post("/v1/sessions", table(program))["session"])

        def stop(name: str) -> dict[str, Any]:
            (stopped,) = daemon.post(f"/v1/sessions/{name}/stop", {})["sessions"]
            assert stopped["state"] == "stopped"
            assert f'session="{name}"' not in daemon.metrics()
            return dict(stopped)

        events, maps = start("execsnoop"), start("biolatency")
        assert set(bpf_calls.program_ids()) > loaded
        for _ in range(EXECS):
            subprocess.run(["/bin/true"], check=True)
        wait_for(lambda: daemon.session(events)["stored"] >= EXECS, "the processes")
        assert f'program="biolatency",session="{maps}"' in daemon.metrics()
        with pytest.raises(UsageError, match="as many sessions as may be started run"):
            start("execsnoop")
        stop(maps)
        with pytest.raises(ConfigError, match="a source of kind perf cannot be started"):
            daemon.post("/v1/sessions", {"source": [PERF], "duration": "1m"})
        with pytest.raises(UsageError, match="execsnoop"):
            start("execsnop")
        found = stop(events)
        assert found["unaccounted"] == 0
        assert found["stored"] + sum(found["lost"].values()) == found["produced"]
        assert {one["name"] for one in daemon.status()["sessions"]} == {"calls"}
        assert set(bpf_calls.program_ids()) == loaded
        ended = daemon.stop()
    assert (ended.status, ended.complaints()) == (0, [])
    segments = (tmp_path / "state" / events).glob("*.json")
    manifests = [json.loads(one.read_text()) for one in segments]
    assert sum(one["samples"] for one in manifests) == found["stored"]


def _comm(pid: str) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def test_a_stop_does_not_wait_for_a_compiler(tmp_path: Path, start_cli: Start) -> None:
    """Whoever waits for the program is told, and the others are sealed."""
    interpreter = tmp_path / "python"
    interpreter.write_text(NEVER_COMPILES)
    interpreter.chmod(0o755)
    config = configured(tmp_path, bpf=f'python = "{interpreter}"')

    def compilers() -> list[str]:
        found: list[str] = []
        for task in Path(f"/proc/{daemon.pid}/task").iterdir():
            with suppress(
                FileNotFoundError, ProcessLookupError
            ):  # the thread, or the child, ended
                children = (task / "children").read_text().split()
                found += (one for one in children if "sleep" in _comm(one))
        return found

    with (
        ThreadPoolExecutor(1) as other,
        daemons.running(start_cli, config) as daemon,
    ):
        answer = other.submit(daemon.post, "/v1/sessions", table("execsnoop"))
        wait_for(compilers, "a compiler")
        ended = daemon.stop()
        with pytest.raises(CollectordError, match="about to stop"):
            answer.result()
    assert (ended.status, ended.complaints()) == (0, [])
    assert not daemons.left_open(tmp_path / "state")
