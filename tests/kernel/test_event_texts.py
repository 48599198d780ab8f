# SPDX-License-Identifier: Apache-2.0
"""`events` as text, beside perf and trace-cmd on the same records of the running kernel.

They differ in what follows, and in nothing else:

- `events` shows functions as addresses, the peers by the names that this kernel has now.
- perf and trace-cmd take the names of enums that the kernel leaves in a format for 0, so that they
  show other values of `ioprio` and of the mode of a timer as numbers.
- They take the address of the array of pages for 0, and show the number of a page as its address;
  `events` shows a question mark.
- perf 6.12 forgets a task's name at its exit, behind which it still wakes others.
- The plug-ins of libtraceevent, which perf 6.12 loads, give some events a form of their own.
- libtraceevent cuts a mask of several bits in parentheses: its flags of `timer_start` are wrong.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.support.recording import result_of, segments_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from tests.support.perf_tools import Perf
    from tests.support.trace_cmds import TraceCmd

    Cli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

EVENTS: Final = "sched:*,block:*,irq:*,timer:*,raw_syscalls:*"
_SCRIPT: Final = (
    "dd if=/dev/zero of=$0 bs=64k count=8 oflag=direct 2>/dev/null || "
    "dd if=/dev/zero of=$0 bs=64k count=8 conv=fsync 2>/dev/null; "
    "for i in 1 2 3; do /bin/true; sleep 0.02; done"
)
LOAD: Final = ("sh", "-c", _SCRIPT)
_OURS: Final = re.compile(r"\s*(\d+)\.(\d{9}) \[(\d+)\] (.*?)-(\d+|\?)\s+(\w+):(\w+):\s*(.*)")
_PERF: Final = re.compile(r"\s*(.*?)\s+(-?\d+) \[(\d+)\]\s+(\d+)\.(\d+):\s+(\w+):(\w+):\s*(.*)")
_TRACE_CMD: Final = re.compile(
    r"\s*(.*)-(\d+)\s+\[(\d+)\](?:\s+\S{4,6})?\s+(\d+)\.(\d{9}):\s+(\w+):\s*(.*)"
)
# Each with what stands for it on both sides.
_DIFFERENCES: Final = (
    (re.compile(r"\b(function|call_site)=\S+"), r"\1=."),
    (re.compile(r"\bpage=\S+"), "page=."),
    (re.compile(r"\bmode=\S+"), "mode=."),
    (re.compile(r" (none|rt|be|idle|invalid|0x\d),(\d+),(\d+) "), r" .,\2,\3 "),
    (re.compile(r"(bucket_expiry=.*) flags=\S*$"), r"\1"),
)
_BY_PLUGINS: Final = frozenset(
    {"sched_switch", "sched_wakeup", "sched_wakeup_new", "hrtimer_start", "hrtimer_expire_entry"}
)
# Idle threads, and tasks that were gone, by perf's names: of the latter nobody knows more.
_TASKS: Final = {"swapper": ("<idle>", "0"), ":-1": ("<...>", "?")}


class Place(NamedTuple):
    """A record; those of one place are told apart by their texts."""

    time: int
    cpu: int
    comm: str
    tid: str
    event: str


Texts = dict[Place, Counter[str]]


def _by_place(found: Iterable[tuple[Place, str]]) -> Texts:
    texts: Texts = defaultdict(Counter)
    for place, text in found:
        for pattern, instead in _DIFFERENCES:
            text = pattern.sub(instead, text)  # noqa: PLW2901
        texts[place][text.strip()] += 1
    return texts


def _matches(pattern: re.Pattern[str], lines: Iterable[str]) -> Iterator[re.Match[str]]:
    for line in lines:
        found = pattern.fullmatch(line)
        assert found, line
        yield found


def _shown(run_cli: Cli, segments: Iterable[Path], unit_ns: int) -> Texts:
    done = run_cli("events", *segments)
    assert (done.returncode, done.stderr) == (0, "")
    found = _matches(_OURS, done.stdout.splitlines())
    return _by_place(
        (Place(int(m[1] + m[2]) // unit_ns, int(m[3]), m[4], m[5], m[7]), m[8]) for m in found
    )


def _recorded(run_cli: Cli, directory: Path, via: str) -> list[Path]:
    done = run_cli(
        "record", "-a", "-e", EVENTS, "--via", via, "-m", "8MiB", "--json",
        "--output-dir", directory / "out", "--", *LOAD, directory / "file",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return segments_of(result_of(done.stdout))


def _compare(ours: Texts, theirs: Texts, without: frozenset[str] = frozenset()) -> None:
    assert ours.keys() - theirs.keys() == set()
    assert theirs.keys() - ours.keys() == set()
    shown = [place for place in ours if place.event not in without]
    assert [(at, ours[at], theirs[at]) for at in shown if ours[at] != theirs[at]] == []
    names = Counter(place.event for place in ours)
    assert {"sched_switch", "softirq_entry", "hrtimer_start", "sys_enter"} <= names.keys()


def test_texts_of_perf_are_those_of_perf_script(
    run_cli: Cli, perfs: tuple[Perf, ...], tmp_path: Path
) -> None:
    """Time, CPU, task and every field of every event, apart from the differences above."""
    segments = _recorded(run_cli, tmp_path, "perf")
    ours = _shown(run_cli, segments, 1000)
    fields = ("-F", "trace:comm,tid,cpu,time,event,trace")
    names = {place._replace(comm=""): place.comm for place in ours}
    for perf in perfs:
        lines = [line for path in segments for line in perf.script(path, *fields)]
        theirs = _by_place((_place(m, names), m[8]) for m in _matches(_PERF, lines))
        _compare(ours, theirs, _BY_PLUGINS if perf.version != "6.1" else frozenset())


def _place(found: re.Match[str], names: Mapping[Place, str]) -> Place:
    """Return the place of a line of perf; a task whose name perf has forgotten has ours."""
    comm, tid = _TASKS.get(found[1], (found[1], found[2]))
    nameless = Place(int(found[4] + found[5]), int(found[3]), "", tid, found[7])
    return nameless._replace(comm=names.get(nameless, comm) if comm == f":{tid}" else comm)


def test_texts_of_ftrace_are_those_of_trace_cmd(
    run_cli: Cli, trace_cmds: tuple[TraceCmd, ...], tmp_path: Path
) -> None:
    """The same of a trace.dat, without the plug-ins that give some events a form of their own."""
    segments = _recorded(run_cli, tmp_path, "ftrace")
    ours = _shown(run_cli, segments, 1)
    for trace_cmd in trace_cmds:
        lines = [line for path in segments for line in trace_cmd.report(path, "-N", "-t")]
        theirs = _by_place(
            (Place(int(m[4] + m[5]), int(m[3]), m[1], m[2], m[6]), m[7])
            for m in _matches(_TRACE_CMD, lines)
        )
        _compare(ours, theirs)
