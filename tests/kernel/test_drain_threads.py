# SPDX-License-Identifier: Apache-2.0
"""Drain threads are scheduled as the configuration says, and as the kernel shows it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.kernel.host import thread_scheduling
from collectord.kernel.host.thread_scheduling import CAP_SYS_NICE
from collectord.text import cpu_list
from tests.support import daemons

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen

    from tests.support.generator import Generator

    Start = Callable[..., Popen[str]]

BURST: Final = 1000
NORMAL: Final = os.SCHED_OTHER
FIFO: Final = os.SCHED_FIFO
CPUS: Final = tuple(sorted(os.sched_getaffinity(0)))
OWN_NICE: Final = os.getpriority(os.PRIO_PROCESS, 0)
# The limits first: raising them takes a capability too.
UNPRIVILEGED: Final = (
    *("prlimit", "--nice=0:0", "--rtprio=0:0"),
    *("setpriv", "--bounding-set=-sys_nice"),
)


def _config(directory: Path, *lines: str) -> Path:
    path = daemons.write_config(directory)
    added = "".join(f"{line}\n" for line in lines)
    path.write_text(path.read_text().replace("[daemon]\n", f"[daemon]\n{added}", 1))
    return path


def _scheduling(pid: int) -> dict[str, tuple[int, int, int, str]]:
    """Policy, priority, nice value and CPUs by the name of each thread that drains or writes."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        stat = (task / "stat").read_text()
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        fields = stat[stat.rindex(")") + 2 :].split()  # from the third on
        allowed = next(
            line.split()[1]
            for line in (task / "status").read_text().splitlines()
            if line.startswith("Cpus_allowed_list:")
        )
        found[name] = (int(fields[38]), int(fields[37]), int(fields[16]), allowed)
    return found


def _told(status: dict[str, Any]) -> dict[str, tuple[str, int, int, str]]:
    return {
        one["name"]: (one["policy"], one["priority"], one["nice"], one["cpus"])
        for one in status["drain"]["threads"]
    }


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        ("auto", ("normal", 0, OWN_NICE) if OWN_NICE else ("fifo", 1, 0)),
        ("normal", ("normal", 0, OWN_NICE)),
        ("nice:-7", ("normal", 0, -7)),
        ("fifo:7", ("fifo", 7, OWN_NICE)),
    ],
)
def test_threads_have_what_is_configured(
    start_cli: Start,
    tmp_path: Path,
    generator: Generator,
    priority: str,
    expected: tuple[str, int, int],
) -> None:
    """Both drain threads, and no other; /proc and /v1/status agree, and nothing is lost."""
    if expected[0] == "fifo" and not thread_scheduling.permitted({CAP_SYS_NICE}).realtime_max:
        pytest.fail("this host refuses SCHED_FIFO even to root")
    config = _config(
        tmp_path, "shards = 2", f'drain_priority = "{priority}"', f'drain_cpus = "{CPUS[-1]}"'
    )
    with daemons.running(start_cli, config) as daemon:
        seen, status = _scheduling(daemon.pid), daemon.status()
        with generator.start("count", count=BURST, nr=daemons.NUMBER) as load:
            load.run()
        daemon.await_stored(BURST)
        assert daemon.session()["unaccounted"] == 0
        assert daemon.stop().status == 0
    policy = FIFO if expected[0] == "fifo" else NORMAL
    for name in ("drain/0", "drain/1"):
        assert seen[name] == (policy, expected[1], expected[2], str(CPUS[-1]))
        assert _told(status)[name] == (*expected, str(CPUS[-1]))
    assert status["drain"]["lacks"] == []
    drains = [one["drains"] for one in status["drain"]["threads"]]
    assert drains == [cpu_list.render(CPUS[share::2]) for share in range(2)]
    rest = cpu_list.render(CPUS)
    others = {name: what for name, what in seen.items() if not name.startswith("drain/")}
    assert {"writer"} < set(others)
    assert set(others.values()) == {(NORMAL, 0, OWN_NICE, rest)}


def test_what_is_not_permitted_is_told(start_cli: Start, tmp_path: Path) -> None:
    """The threads run as the process, and log, status and `check` name what gives the rest."""
    config = _config(tmp_path, 'drain_priority = "fifo:7"')
    check = start_cli("check", config, prefix=UNPRIVILEGED)
    text, _ = check.communicate()
    reason = "drain_priority fifo:7 is not permitted, normal instead: CAP_SYS_NICE"
    assert check.returncode == 0
    assert f"warning: {reason}" in text
    with daemons.running(start_cli, config, prefix=UNPRIVILEGED) as daemon:
        seen, status = _scheduling(daemon.pid), daemon.status()
        ended = daemon.stop()
    assert seen["drain/0"] == (NORMAL, 0, OWN_NICE, cpu_list.render(CPUS))
    (told,) = status["drain"]["lacks"]
    assert told.startswith(reason)
    assert "LimitRTPRIO=7" in told
    assert [line["reason"] for line in ended.named("drain_threads_degraded")] == [told]
    assert ended.status == 0
