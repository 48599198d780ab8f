# SPDX-License-Identifier: Apache-2.0
"""`answer` on causes that the test makes: each one names its cause, and perf has the figures."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import answer, answer_file, query, why
from collectord.errors import UsageError
from tests.support import answer_causes, cpus
from tests.support.answer_causes import CALLS, HOG_S, OPENS, PACKETS, PAGES, REFUSED, STALL_S
from tests.support.disks import STALL_S as DISK_STALL_S
from tests.support.disks import STALLED_BYTES as WRITTEN_BYTES
from tests.support.disks import stalling_disk
from tests.support.patience import patient
from tests.support.programs import compile_waiting
from tests.support.recording import recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.perf_tools import Perf

    Cli = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]
    Rows = list[dict[str, Any]]
    Ask = Callable[..., Rows]

pytestmark = pytest.mark.usefixtures("tracefs")

EVENTS: Final = ",".join(
    dict.fromkeys(
        event
        for one in answer_file.load_all().values()
        if isinstance(one, answer_file.AnswerFile)
        for event in one.head.events
        if not event.startswith(("bpf:", "software:"))
    )
)
_CAUSES: Final = Path(answer_causes.__file__)
# The processes that make the causes: whatever else runs on the host comes in no row of these.
_OURS: Final = re.compile(
    r"cpu-\w+|stall-\w+|ping|pong|caller|opener|toucher|receiver|refused|connector|dd"
)
_LATENCY: Final = re.compile(
    r"^ .*?:(\d+) +\|.*?\| +(\d+) \| avg: .*?\| max: *([\d.]+) ms", re.MULTILINE
)
_GETPPID: Final = re.compile(r" *getppid +(\d+) +(\d+) +([\d.]+) .* ([\d.]+) +[\d.]+%")


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return the rows of an answer about the processes of the causes."""

    def rows(name: str, place: Path, *words: str) -> Rows:
        params = ["--param", "limit=100000", *words] if name not in _WITHOUT_LIMIT else [*words]
        status = answer.run(["--json", name, *params, str(place)])
        told = capsys.readouterr()
        assert (status, told.err) == (0, "")
        return [json.loads(line) for line in told.out.splitlines()]

    return rows


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return the rows of a query."""

    def rows(statement: str, place: Path) -> Rows:
        assert query.run(["--json", statement, str(place)]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return rows


_WITHOUT_LIMIT: Final = ("cpu-timeline", "io-latency", "off-cpu-stacks")


def _ours(rows: Rows, key: str = "comm") -> dict[str, Any]:
    """Return the first row about a process of the causes."""
    return next(row for row in rows if _OURS.fullmatch(row[key] or ""))


def test_answers_name_the_causes_and_perf_has_the_same_figures(
    require: Callable[[str], None],
    start_cli: Start,
    ask: Ask,
    asked: Ask,
    *,
    perf: Perf,
    tmp_path: Path,
) -> None:
    """All answers, of one load that perf events and ftrace record at the same time."""
    require("page fault tracepoints")
    require("loop devices")
    places = {via: tmp_path / via for via in ("perf", "ftrace")}
    with ExitStack() as stack:
        stall = stack.enter_context(stalling_disk(tmp_path / "disk"))
        with ExitStack() as recordings:
            for via, place in places.items():
                place.mkdir()
                words = ("-a", "-m", "16MiB", "-e", EVENTS, "--via", via)
                recordings.enter_context(recording(start_cli, place, *words))
            with cpus.never_idle():
                subprocess.run([sys.executable, _CAUSES], check=True, timeout=patient(60))
                stall()
        for place in places.values():
            _check(ask, place / "out")
        with pytest.raises(UsageError, match="at the same time"):
            answer.run(["cpu-share", *map(str, places.values())])
        (segment,) = (places["perf"] / "out").glob("*.perf.data")
        _check_perf(ask, asked, segment, perf)


def _check(ask: Ask, place: Path) -> None:
    share = _ours(ask("cpu-share", place))
    assert (share["comm"], share["run_ms"] > HOG_S * 950) == ("cpu-hog", True), share
    busy = ask("cpu-timeline", place)
    assert max(row["busy_percent"] for row in busy) > 90
    # On a busy host the others may wait longer, at their time, for whoever is there.
    waited = next(row for row in ask("run-queue", place) if row["comm"].startswith("cpu-"))
    assert (waited["comm"], waited["ran_instead"]) == ("cpu-victim", "cpu-hog"), waited
    assert waited["total_ms"] > HOG_S * 900
    off = ask("off-cpu", place, "--param", "comm=stall-*")[0]
    assert (off["comm"], off["longest_ms"] > STALL_S * 900) == ("stall-waiter", True), off
    woken = _ours(ask("who-woke-whom", place), "waker")
    assert {woken["waker"], woken["woken"]} == {"ping", "pong"}
    calls = _ours(ask("syscalls", place))
    told = calls["comm"], calls["syscall"], calls["calls"], calls["errors"]
    assert told == ("caller", "getppid", CALLS, 0)
    failed = _ours(ask("syscalls", place, "--param", "order=errors"))
    assert (failed["comm"], failed["syscall"], failed["errors"]) == ("opener", "openat", OPENS)
    faults = _ours(ask("page-faults", place))
    assert (faults["comm"], faults["pages"] >= PAGES) == ("toucher", True), faults
    irq = ask("irq-time", place, "--param", "order=runs")
    assert (irq[0]["name"], irq[0]["runs"] >= PACKETS) == ("NET_RX", True), irq
    storm = next(row for row in ask("exec-storm", place) if row["started_by"] == "sh")
    started = storm["program"], storm["started_by"], storm["starts"]
    assert started == ("/bin/true", "sh", answer_causes.PROGRAMS)
    opens = _ours(ask("opens", place, "--param", "failed=true"))
    assert (opens["comm"], opens["failed"], opens["error"]) == ("opener", OPENS, "ENOENT")
    tcp = _ours(ask("tcp", place))
    assert (tcp["comm"], tcp["tries"], tcp["failed"]) == ("refused", REFUSED, REFUSED)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", tcp["peer"])
    slow = _ours(ask("slow-io", place))
    assert (slow["comm"], slow["bytes"], slow["kind"][0]) == ("dd", WRITTEN_BYTES, "W"), slow
    assert slow["device_ms"] >= DISK_STALL_S * 1000
    _check_why(place, ask("slow-io", place)[0])
    latency = [row for row in ask("io-latency", place) if row["device"] == slow["device"]]
    assert latency[-1]["to_us"] >= DISK_STALL_S * 1e6


def _check_why(place: Path, slow: dict[str, Any]) -> None:
    """`why io` names the process and the device of the slowest request, at the time of its end.

    That of a busy host may be another one than the test's.
    """
    with redirect_stdout(io.StringIO()) as told, redirect_stderr(io.StringIO()):
        assert why.run(["io", str(place)]) == 0
    heading, first = " ".join(told.getvalue().split()).split(": ", 1)
    assert heading == "The slowest requests of block devices"
    name = f"{slow['time'][11:23]} {slow['comm']} ({slow['tid']}): {slow['kind']} of "
    size, device = f"{slow['bytes']} bytes", f"device {slow['device']}"
    assert first.startswith(f"{name}{size} on {device}, "), slow


def _check_perf(ask: Ask, asked: Ask, segment: Path, perf: Perf) -> None:
    """Compare the waits with `perf sched latency`, and the calls with `perf trace -s`.

    perf takes a thread that was preempted (256, since Linux 4.14) for one that sleeps, and leaves
    out the wait that has not ended when the records do.
    """
    done = perf.run("sched", "latency", "-p", "-i", segment)
    latency = {
        int(found[1]): (int(found[2]), float(found[3])) for found in _LATENCY.finditer(done.stdout)
    }
    statement = "SELECT DISTINCT prev_pid FROM sched_switch WHERE prev_state = 256"
    preempted = {row["prev_pid"] for row in asked(statement, segment)}
    waits = {row["tid"]: (row["waits"], row["longest_ms"]) for row in ask("run-queue", segment)}
    common = (waits.keys() & latency.keys()) - preempted
    same = {tid for tid in common if waits[tid][0] == latency[tid][0]}
    assert len(same) > max(20, len(common) / 2)
    assert {tid: waits[tid] for tid in same} == {tid: latency[tid] for tid in same}
    done = perf.run("trace", "-s", "-i", segment)
    part = (done.stdout + done.stderr).partition(" caller (")[2].splitlines()
    getppid = next(found for line in part if (found := _GETPPID.match(line)))
    calls = _ours(ask("syscalls", segment))
    told = calls["calls"], calls["errors"], calls["total_ms"], calls["longest_ms"]
    assert told == (int(getppid[1]), int(getppid[2]), float(getppid[3]), float(getppid[4]))


def test_what_lasts_over_a_gap_is_left_out(
    run_cli: Cli, ask: Ask, asked: Ask, tmp_path: Path
) -> None:
    """No thread is off the CPU for longer than a recording, of two in one folder."""
    for _ in range(2):
        words = ("record", "-a", "-m", "4MiB", "-e", "sched:sched_switch")
        done = run_cli(*words, "--output-dir", tmp_path, "--", "sleep", "0.1")
        assert done.returncode == 0, done.stderr
    statement = "SELECT (epoch_ns(last) - epoch_ns(first)) / 1e6 AS ms FROM segments"
    spans = [row["ms"] for row in asked(statement, tmp_path)]
    assert len(spans) == 2
    rows = ask("off-cpu", tmp_path)
    assert len(rows) > 10
    assert max(row["longest_ms"] for row in rows) <= max(spans)


def test_a_stalled_lock_is_the_call_that_left_the_cpu(
    start_cli: Start, ask: Ask, capsys: pytest.CaptureFixture[str], *, tmp_path: Path
) -> None:
    """The first stack is the one that waited for it, and its time that of `off-cpu`."""
    waiting = compile_waiting(tmp_path)
    words = ("-a", "-g", "-m", "16MiB", "-e", "sched:sched_switch")
    with recording(start_cli, tmp_path, *words), cpus.never_idle():
        subprocess.run([waiting], check=True, timeout=patient(60))
    place, ours = tmp_path / "out", ("--param", "comm=lock-waiter")
    rows = ask("off-cpu-stacks", place, *ours)
    first, second = (row["folded"].split(";") for row in rows[:2])
    assert first[0] == second[0] == "lock-waiter"
    # The functions that make the system calls are called by these.
    assert (first[first.index("main") + 1], second[second.index("main") + 1]) == (
        "update", "rest"), rows  # fmt: skip
    assert any(frame.startswith("futex_wait") for frame in first)
    assert rows[1]["off_us"] >= 100_000
    (whole,) = ask("off-cpu", place, *ours)
    assert sum(row["off_us"] for row in rows) == pytest.approx(
        whole["off_ms"] * 1000, abs=len(rows)
    )
    asleep, runnable = (
        sum(row["off_us"] for row in ask("off-cpu-stacks", place, *ours, "--param", f"only={why}"))
        for why in ("asleep", "runnable")
    )
    told = whole["off_ms"] - whole["blocked_ms"] - whole["runnable_ms"], whole["runnable_ms"]
    assert (asleep, runnable) == pytest.approx([one * 1000 for one in told], abs=len(rows))
    assert answer.run(["off-cpu-stacks", *ours, str(place)]) == 0
    head, root, below, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["off_us", "share", "stack"]
    assert root.split()[1:][0] == "100.0%"
    assert below.split()[2].startswith("update;")


@pytest.mark.usefixtures("bcc")
def test_answers_from_bpf_programs(
    require: Callable[[str], None], start_cli: Start, ask: Ask, tmp_path: Path
) -> None:
    """Paths that are opened, connections and slow requests, as shipped programs record them."""
    require("loop devices")
    programs = ("--bpf", "opensnoop", "--bpf", "tcplife", "--bpf", "biosnoop")
    with stalling_disk(tmp_path / "disk") as stall, recording(start_cli, tmp_path, *programs):
        subprocess.run([sys.executable, _CAUSES, "files"], check=True, timeout=patient(60))
        stall()
    place = tmp_path / "out"
    opens = _ours(ask("opens", place, "--param", "failed=true"))
    told = opens["comm"], opens["path"], opens["failed"], opens["error"]
    assert told == ("opener", "/nonexistent", OPENS, "ENOENT")
    slow = _ours(ask("slow-io", place))
    assert (slow["comm"], slow["bytes"], slow["kind"][0]) == ("dd", WRITTEN_BYTES, "W"), slow
    assert slow["device_ms"] >= DISK_STALL_S * 1000
    tcp = _ours(ask("tcp", place))
    assert (tcp["comm"], tcp["way"], tcp["tries"]) == ("connector", "out", REFUSED)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", tcp["peer"])
    assert tcp["longest_ms"] > 0


# More faults than anything else makes at that time.
_TOUCHED: Final = 30_000
_TOUCH: Final = f"""
import mmap
with mmap.mmap(-1, {_TOUCHED} * 4096) as memory:
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, len(memory), 4096):
        memory[at] = 1
"""


def test_samples_of_page_faults_name_their_cause(
    start_cli: Start, ask: Ask, perf: Perf, tmp_path: Path
) -> None:
    """Samples of perf have the addresses; each of a session stands for a fault or several."""
    theirs = tmp_path / "perf.data"
    with recording(start_cli, tmp_path, "-a", "-m", "4MiB", "-e", "minor-faults:u"):
        done = perf.run(
            *("record", "-q", "-a", "-d", "-c", "1", "-m", "4M", "-e", "page-faults:u"),
            *("-o", theirs, "--", sys.executable, "-c", _TOUCH),
        )
        assert done.returncode == 0, done.stderr
    row = ask("page-faults", theirs)[0]
    assert row["comm"].startswith("python")
    assert row["times"] >= row["pages"] >= _TOUCHED
    assert (row["writes"], row["in_kernel"]) == (None, 0)
    (segment,) = (tmp_path / "out").glob("*.perf.data")
    sampled = ask("page-faults", segment)[0]
    assert (sampled["process"], sampled["pages"]) == (row["process"], None)
    assert sampled["times"] > _TOUCHED / 2
