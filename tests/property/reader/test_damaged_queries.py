# SPDX-License-Identifier: Apache-2.0
"""Damaged files in `query`, `events` and `export`: what is sound is read, or a line says why."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from collectord.cli import events, export, query
from collectord.errors import CollectordError
from tests.support import bpf_segments, segments
from tests.support.examples import examples
from tests.support.query_files import GOLDEN, switches, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_OF_ALL = ("SELECT * FROM losses, damage", "FROM segments")


def _trace(directory: Path) -> Path:
    path = directory / "trace.dat"
    captured = (GOLDEN / "sys_enter.page").read_bytes()
    write_trace(path, {0: [switches(1000, *range(20))], 1: [captured, switches(5000, 3, lost=2)]})
    return path


def _tracepoint(directory: Path) -> Path:
    return segments.write_segment(segments.make_sink(directory), samples=40).path


def _programs(directory: Path) -> Path:
    sample, opened = bpf_segments.sample, bpf_segments.opened
    names = [bpf_segments.comm(10, 500, b"a"), bpf_segments.fork(20, 500, 501)]
    records = [sample(number, opened(number), tid=500 + number % 2) for number in range(1, 20)]
    lost = bpf_segments.lost(30, 4)
    return bpf_segments.write(
        directory,
        bpf_segments.chunk(*names, *records),
        bpf_segments.chunk(*records, lost),
        lost_samples={11: 9},
    )


def _check_export(path: Path, told: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is cut out of a damaged one has no damaged record."""
    output = path.with_name("export")
    form = "trace.dat" if path.suffix == ".dat" else "perf.data"
    try:
        export.run(["--format", form, "-o", str(output), str(path)])
    except CollectordError as error:
        told.append(str(error))
        assert not output.exists()
    else:
        capsys.readouterr()
        query.run(["--csv", "SELECT count(*) FROM damage", str(output)])
        assert capsys.readouterr().out.splitlines()[-1] == "0"
        output.unlink()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("make", "statements"),
    [
        (_trace, ("FROM sched_switch", "FROM sys_enter")),
        (_tracepoint, ("FROM sys_enter_getppid", "FROM samples, tasks")),
        (_programs, ("FROM opensnoop", "FROM samples", "FROM tasks", "FROM mappings, samples")),
    ],
)
def test_any_damage(
    make: Callable[[Path], Path],
    statements: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No change of bytes, and no cut, ends in anything but rows or an error of ours."""
    path = make(tmp_path)
    sound = path.read_bytes()
    asked = (*statements, *_OF_ALL)
    # The room for names of tasks fills most of a file, and holds nothing here.
    lively = [at for at in range(len(sound)) if sound[at] not in b"\0\n"]
    told: list[str] = []
    made = random.Random(7)  # noqa: S311  # the same damage in every run
    for number in range(examples(120)):
        data = bytearray(sound)
        for _ in range(made.choice((1, 1, 2, 8))):
            at = made.choice(lively)
            width = made.choice((1, 1, 2, 4, 8))
            data[at : at + width] = made.choice(
                (made.randbytes(width), b"\0" * width, b"\xff" * width)
            )
        if made.random() < 0.2:
            del data[made.randrange(len(data)) :]
        path.write_bytes(data)
        form = ("text", "json", "csv")[number % 3]
        runs: tuple[tuple[Callable[[list[str]], int], list[str]], ...] = (
            (query.run, [asked[number % len(asked)]]),
            (events.run, ["-o", form]),
            (events.run, ["--count"]),
        )
        for run, words in runs:
            try:
                run([*words, str(path)])
            except CollectordError as error:
                told.append(str(error))
            capsys.readouterr()
        _check_export(path, told, capsys)
    assert not [one for one in told if "\n" in one]
