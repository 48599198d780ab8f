# SPDX-License-Identifier: Apache-2.0
"""Notices of `collectord query` about records that were lost: how many, and on which CPUs."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from collectord.cli import query
from collectord.codec.perf_attr import RecordType, SampleType
from collectord.codec.perf_features import ClockData, Features
from collectord.codec.perf_record import frame
from collectord.codec.perf_targets import IdPlace
from collectord.sink.base import Opening
from tests.support import bpf_segments
from tests.support.bpf_segments import chunk, exited, lost
from tests.support.bpf_segments import sample as bpf_sample
from tests.support.profiles import ATTR, USER, sample, write
from tests.support.query_files import switches, write_trace
from tests.support.relay_records import SECOND_NS, record
from tests.support.segments import TIME_NS, closing, fill, make_sink
from tests.support.told_segments import reading, rings

if TYPE_CHECKING:
    from pathlib import Path


def _said(capsys: pytest.CaptureFixture[str], statement: str, *words: str | Path) -> list[str]:
    """Return what is said on stderr, without the name of the program."""
    assert query.run([statement, *map(str, words)]) == 0
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix("collectord: ") for line in lines]


def _opening() -> Opening:
    return Opening(clock=reading(100), rings=rings(0, 1))


def _traced(path: Path, lost: dict[int, int | None]) -> Path:
    """Write a file in which each CPU has lost so many records, or 0."""
    write_trace(
        path, {cpu: [switches(1000, 5), switches(2000, 6, lost=n)] for cpu, n in lost.items()}
    )
    return path


@pytest.mark.parametrize(
    ("lost", "where"),
    [
        ({0: 4}, " on CPU 0"),
        ({0: 0, 1: 4}, " on CPU 1"),
        ({0: 1, 1: 0, 2: 3}, " on CPUs 0, 2"),
        (dict.fromkeys(range(4), 1), " on CPUs 0, 1, 2, 3"),
        (dict.fromkeys(range(6), 1), " on CPUs 0, 1, 2, 3 and 2 more"),
        ({0: 0, 1023: 4}, " on CPU 1023"),
        # There is no room for larger numbers.
        ({0: 2, 1024: 2}, ""),
    ],
)
def test_cpus_that_lost_records_are_named(
    lost: dict[int, int], where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them, as far as a line has room, or none."""
    path = _traced(tmp_path / "trace.dat", {**lost})
    for table in ("sched_switch", "losses"):
        assert _said(capsys, f"FROM {table}", path) == [
            f"{sum(lost.values())} records of {path} were lost{where} in what was read"
        ]


def test_one_record_was_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A number of one is told as such."""
    path = _traced(tmp_path / "trace.dat", {1: 1})
    assert _said(capsys, "FROM losses", path) == [
        f"1 record of {path} was lost on CPU 1 in what was read"
    ]


def test_losses_of_no_known_number_name_their_cpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their own line, with all CPUs that lost any."""
    path = _traced(tmp_path / "trace.dat", {0: 4, 1: None, 2: 0})
    assert _said(capsys, "FROM sched_switch", path) == [
        f"4 records of {path} were lost on CPUs 0, 1 in what was read",
        f"records of {path} were lost on CPUs 0, 1 at 1 place, and nothing tells how many",
    ]


def test_nothing_lost_names_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record that notes a loss of nothing is none."""
    none = frame(RecordType.LOST, 0, struct.pack("<QQIIQQQ", 7, 0, 50, 50, 4, 2, 7))
    some = frame(RecordType.LOST, 0, struct.pack("<QQIIQQQ", 7, 3, 50, 50, 5, 1, 7))
    path = write(tmp_path / "perf.data", sample(3, 50, USER, 1), none)
    assert _said(capsys, "SELECT count(*) FROM samples", path) == []
    path = write(tmp_path / "perf.data", sample(3, 50, USER, 1), none, some)
    assert _said(capsys, "SELECT count(*) FROM samples", path) == [
        f"3 records of {path} were lost on CPU 1 in what was read"
    ]


def test_without_its_cpu_no_loss_names_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of several whose CPU is not recorded: those of the others would be half of the truth."""
    attr = replace(ATTR, sample_type=ATTR.sample_type & ~SampleType.CPU)
    lost = frame(RecordType.LOST, 0, struct.pack("<QQIIQQ", 7, 12, 50, 50, 4, 7))
    path = write(tmp_path / "perf.data", lost, attr=attr)
    traced = _traced(tmp_path / "trace.dat", {0: 4})
    assert _said(capsys, "SELECT count(*) FROM losses", path, traced) == [
        f"12 records of {path} were lost in what was read",
        f"4 records of {traced} were lost on CPU 0 in what was read",
    ]


def test_only_losses_in_the_window_name_their_cpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of another time are neither counted nor named."""
    at = 1_700_000_000 * SECOND_NS
    losses = [
        frame(RecordType.LOST, 0, struct.pack("<QQIIQQQ", 7, 1 + cpu, 50, 50, time_ns, cpu, 7))
        for cpu, time_ns in ((0, SECOND_NS), (1, 10 * SECOND_NS))
    ]
    features = Features(clock_data=ClockData(1, at, 0))
    path = write(tmp_path / "perf.data", *losses, features=features)
    statement = "SELECT count(*) FROM losses"
    assert _said(capsys, statement, path) == [
        f"3 records of {path} were lost on CPUs 0, 1 in what was read"
    ]
    assert _said(capsys, statement, path, "--since", "2023-11-14T22:13:25Z") == [
        f"2 records of {path} were lost on CPU 1 in what was read"
    ]


def test_gaps_in_the_numbers_of_blktrace_name_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file is of one CPU."""
    for cpu, numbers in enumerate(((1, 2), (1, 5))):
        data = b"".join(record(n, time_ns=n * SECOND_NS, cpu=cpu) for n in numbers)
        (tmp_path / f"set.blktrace.{cpu}").write_bytes(data)
    said = _said(capsys, "SELECT count(*) FROM losses", tmp_path / "set")
    assert len(said) == 1
    assert said[0].startswith("3 records of ")
    assert said[0].endswith(" were lost on CPU 1 in what was read")


def test_the_cpus_of_what_the_kernel_counted_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of all segments of a session together, if each event's CPU is known."""
    places = [IdPlace(11, 0, 0, -1), IdPlace(12, 1, 3, -1)]
    for name, ids, known in (
        ("a", {11: 2, 12: 3}, places),
        ("b", {12: 4}, places),
        ("c", {11: 2, 12: 3}, places[:1]),
    ):
        sink = make_sink(tmp_path / name, places=known)
        for token in (1, 2):
            opened = sink.next_segment(token, _opening())
            sink.seal(opened, fill(opened), closing(lost_samples=ids, rings=rings(0, 1)))
    statement = "SELECT count(*) FROM sys_enter_getppid"
    for name, told in (
        ("a", "10 records of exec were lost on CPUs 0, 3 in what was read"),
        ("b", "8 records of exec were lost on CPU 3 in what was read"),
        ("c", "10 records of exec were lost in what was read"),
    ):
        assert _said(capsys, statement, tmp_path / name) == [told]


def test_what_the_kernel_counted_names_no_cpus_of_other_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ring notes a loss late: its notes tell of all CPUs only if they tell of all records."""
    statement = "SELECT count(*) FROM samples"
    note = chunk(lost(TIME_NS, 4, cpu=1), bpf_sample(TIME_NS + 2, exited(1)))
    noted = bpf_segments.write(tmp_path, note)
    _count(noted, 4)
    assert _said(capsys, statement, tmp_path) == [
        "4 records of exec were lost on CPU 1 in what was read"
    ]
    _count(noted, 9)
    assert _said(capsys, statement, tmp_path) == ["9 records of exec were lost in what was read"]
    _count(noted, 4)
    _count(bpf_segments.write(tmp_path, chunk(bpf_sample(TIME_NS, exited(1)))), 9)
    assert _said(capsys, statement, tmp_path) == ["13 records of exec were lost in what was read"]


def _count(path: Path, lost_samples: int) -> None:
    """Make a manifest say how many records the kernel counted as lost."""
    manifest = path.with_name(f"{path.name}.json")
    told = json.loads(manifest.read_bytes()) | {"lost_samples": {"1": lost_samples}}
    manifest.write_text(json.dumps(told))
