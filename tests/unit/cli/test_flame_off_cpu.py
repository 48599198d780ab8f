# SPDX-License-Identifier: Apache-2.0
"""`collectord flame --off-cpu`: the time from a thread's leaving to its coming back, by stacks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from collectord.cli import flame
from collectord.codec.perf_attr import SampleType
from collectord.codec.perf_features import ClockData, Features
from collectord.errors import UsageError
from tests.support.profiles import (
    SWITCH_ATTR,
    SWITCH_CGROUP_ATTR,
    USER,
    cgroup,
    comm,
    fork,
    mapped,
    sample,
    switch,
    write,
    write_switches,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("own_cache")

AT: Final = 0x5000_0000_0000
UTC_NS: Final = 1_764_000_000_000_000_000
ONE_S: Final = 1_000_000_000
IDLE: Final = 0


def _task(pid: int, name: bytes) -> bytes:
    return comm(0, pid, name) + mapped(1, pid, "/nowhere/x", addr=AT)


def _told(
    capsys: pytest.CaptureFixture[str], *words: str | Path
) -> tuple[dict[str, int], list[str]]:
    """Return the times by stacks, and what is said on stderr, of a call that succeeds."""
    assert flame.run([*map(str, words), "--off-cpu"]) == 0
    told = capsys.readouterr()
    lines = (line.rpartition(" ") for line in told.out.splitlines())
    said = [line.removeprefix("collectord: ") for line in told.err.splitlines()]
    return {stack: int(count) for stack, _, count in lines}, said


def test_each_wait_counts_for_the_stack_that_it_began_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On whichever CPU a thread comes back; the idle thread and a dead one do not wait."""
    path = write_switches(
        tmp_path / "perf.data",
        _task(50, b"a"),
        _task(60, b"b"),
        switch(10, 50, IDLE, (USER, AT + 0x10)),
        switch(30, 60, IDLE, (USER, AT + 0x20)),
        switch(31, IDLE, 50, cpu=1),
        switch(40, 50, 60, (USER, AT + 0x30), 0, cpu=1),  # it could run on
        switch(55, 60, 50, (USER, AT + 0x20), cpu=1),
        switch(60, IDLE, 60),
        switch(61, 60, IDLE, (USER, AT + 0x40), 0x10),
        switch(62, 50, IDLE, (USER, AT + 0x10), 0x20, cpu=1),
        switch(99, IDLE, IDLE),
    )
    found, said = _told(capsys, path)
    assert found == {"a;[x+0x10]": 21, "a;[x+0x30]": 15, "b;[x+0x20]": 10 + 5}
    assert said == []
    by_pid, _ = _told(capsys, path, "--by", "pid")
    assert by_pid["b-60;[x+0x20]"] == 15
    by_cpu, _ = _told(capsys, path, "--by", "cpu")
    assert by_cpu == {
        "CPU 0;[x+0x10]": 21,
        "CPU 0;[x+0x20]": 10,
        "CPU 1;[x+0x30]": 15,
        "CPU 1;[x+0x20]": 5,
    }


def test_waits_are_of_the_cgroup_of_the_thread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A switch has that of the thread that leaves."""
    records = (
        cgroup(0, 70, b"/a"),
        _task(50, b"a"),
        switch(10, 50, IDLE, (USER, AT + 0x10), cgroup=70),
        switch(31, IDLE, 50, cpu=1, cgroup=1),
    )
    path = write_switches(tmp_path / "perf.data", *records, attr=SWITCH_CGROUP_ATTR)
    assert _told(capsys, path, "--by", "cgroup") == ({"/a;[x+0x10]": 21}, [])
    without = write_switches(tmp_path / "other", switch(10, 50, IDLE, (USER, AT)))
    with pytest.raises(UsageError, match="no file has the cgroups"):
        flame.run([str(without), "--off-cpu", "--by", "cgroup"])


def test_waits_that_are_not_seen_as_a_whole_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time up to the end is known; that of a wait whose beginning or end is lost is not."""
    path = write_switches(
        tmp_path / "perf.data",
        _task(50, b"a"),
        fork(2, 50, 61),  # replayed
        switch(5, IDLE, 60),  # begun before
        switch(5, IDLE, 61, cpu=3),  # likewise
        fork(6, 50, 70),
        switch(6, IDLE, 70, cpu=1),  # begins to run
        switch(10, 50, IDLE, (USER, AT + 0x10), cpu=2),
        switch(20, 50, IDLE, (USER, AT + 0x20), cpu=2),  # how it came back is lost
        switch(25, IDLE, 50, cpu=2),
        switch(30, 50, IDLE, (USER, AT + 0x30), cpu=2),
        switch(90, IDLE, IDLE),
    )
    found, said = _told(capsys, path)
    assert found == {"a;[x+0x20]": 5, "a;[x+0x30]": 60}
    assert said == [
        "1 wait has no end in what was read, and was not counted",
        "2 waits had begun before what was read, and were not counted",
        "1 wait had not ended, and was counted up to the end",
    ]


def test_only_the_part_of_a_wait_within_the_time_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot tell its time of day is left out."""
    clock = Features(clock_data=ClockData(1, UTC_NS, ONE_S))
    records = (
        _task(50, b"a"),
        switch(1 * ONE_S, 50, IDLE, (USER, AT + 0x10)),
        switch(4 * ONE_S, IDLE, 50),
        switch(5 * ONE_S, 50, IDLE, (USER, AT + 0x20)),
        switch(9 * ONE_S, IDLE, IDLE),
    )
    path = write_switches(tmp_path / "perf.data", *records, features=clock)

    def utc(seconds: int) -> str:
        return f"2025-11-24T16:00:{seconds - 1:02}Z"

    found, said = _told(capsys, path, "--since", utc(2), "--until", utc(7))
    assert found == {"a;[x+0x10]": 2 * ONE_S, "a;[x+0x20]": 2 * ONE_S}
    assert said == ["1 wait had not ended, and was counted up to the end"]
    found, said = _told(capsys, path, "--until", utc(3))
    assert found == {"a;[x+0x10]": 2 * ONE_S}
    other = write_switches(tmp_path / "other.data", *records)
    found, said = _told(capsys, other, "--since", utc(2))
    assert found == {}
    assert any("was left out" in line for line in said)


def test_the_switches_of_all_threads_are_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recording of a process has those alone with which it leaves."""
    path = write_switches(
        tmp_path / "perf.data",
        *(switch(at, 50, IDLE, (USER, AT)) for at in (10, 20, 30)),
    )
    _, said = _told(capsys, path)
    assert "collectord record -a" in said[0]
    without = replace(SWITCH_ATTR, sample_type=SWITCH_ATTR.sample_type & ~SampleType.CALLCHAIN)
    for other in (
        write_switches(tmp_path / "chainless.data", attr=without),
        write(tmp_path / "profile.data", sample(1, 50, USER, AT)),
    ):
        with pytest.raises(UsageError, match="task switches with call chains"):
            flame.run([str(other), "--off-cpu"])
    with pytest.raises(UsageError, match="do not go together"):
        flame.run([str(path), "--off-cpu", "-e", "sched:*"])


def test_viewers_know_that_it_is_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pictures and profiles say their unit."""
    path = write_switches(
        tmp_path / "perf.data",
        _task(50, b"a"),
        switch(10, 50, IDLE, (USER, AT + 0x10)),
        switch(2_000_010, IDLE, 50),
    )
    for suffix, text in (
        (".svg", "2,000,000 ns"),
        (".speedscope.json", '"unit":"nanoseconds"'),
        (".firefox.json", '"weight":[2.0],"weightType":"tracing-ms"'),
    ):
        output = tmp_path / f"x{suffix}"
        flame.run([str(path), "--off-cpu", "-o", str(output)])
        assert text in output.read_text()
        assert "time off the CPU of" in output.read_text()
    assert "wrote 2,000,000 ns to" in capsys.readouterr().out
