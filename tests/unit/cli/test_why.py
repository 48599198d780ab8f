# SPDX-License-Identifier: Apache-2.0
"""`collectord why`: answers about one subject, as sentences with the commands behind them."""

from __future__ import annotations

import json
import re
import shlex
import string
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import answer, answer_file, why, why_questions
from tests.support.ftrace_pages import event, page
from tests.support.query_files import switch, write_trace

if TYPE_CHECKING:
    from pathlib import Path

STEPS: Final = [step for steps in why_questions.QUESTIONS.values() for step in steps]


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Threads 5, 6 and 7 have a CPU one after the other, each for longer than the one before."""
    monkeypatch.setattr(answer_file, "LOCAL", tmp_path / "none")
    path = tmp_path / "trace 1.dat"
    turns = zip((5, 6, 7, 0), (10, 300, 2000, 70000), strict=True)
    write_trace(
        path, {0: [page(1000, *(event(switch(pid), later_ns) for pid, later_ns in turns))]}
    )
    return str(path)


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    """Return the rows of `answer`."""
    assert answer.run(["--json", *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.answer}-{step.title}")
def test_sentences_are_of_columns_that_there_are(step: why_questions.Step, tmp_path: Path) -> None:
    """Each column of a sentence stands in the statement of its answer, and each parameter too."""
    found = answer_file.load(step.answer, tmp_path / "none")
    columns = {name for _, name, _, _ in string.Formatter().parse(step.line) if name} - {"where"}
    wanted = columns | ({step.above} - {""})
    assert [
        name for name in wanted if not re.search(rf"^    .*\b{name},?$", found.text, re.MULTILINE)
    ] == []
    assert step.parameters.keys() <= found.head.parameter.keys()


def test_the_rows_are_those_of_the_commands(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of a section, as it stands, gives its rows first."""
    assert why.run(["cpu", "--json", trace]) == 0
    told = json.loads(capsys.readouterr().out)
    (section,) = told["sections"]
    assert section["answer"] == "cpu-share"
    assert set(told["not_recorded"]) == {"run-queue", "irq-time"}
    _, verb, *words = shlex.split(section["command"])
    assert verb == "answer"
    rows = answered(capsys, *words)
    assert section["rows"] == rows[:3]
    assert rows


def test_a_sentence_for_each_row_within_80_columns(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text has the sentences, the command, and on stderr how to record what is missing."""
    assert why.run(["cpu", trace]) == 0
    captured = capsys.readouterr()
    first, *lines = captured.out.splitlines()
    assert first == "Who had the CPUs:"
    assert any(line.startswith("  next (7): ") and "% of all CPUs" in line for line in lines)
    assert f"  $ collectord answer cpu-share '{trace}'" in lines
    assert all(len(line) <= 80 for line in lines if "$" not in line)
    assert "run-queue needs sched:sched_wakeup; irq-time needs irq:softirq_entry" in captured.err
    assert "collectord record -a -e sched:sched_switch,sched:sched_wakeup" in captured.err


def test_the_command_has_the_window(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Times are written in full, also those that were given as before now."""
    since = ("--since", "2026-01-02T03:04:05.000000678Z")
    assert why.run(["cpu", trace, *since, "--until", "-1m"]) == 0
    out = capsys.readouterr().out
    assert f"$ collectord answer cpu-share {' '.join(since)} --until 20" in out


def test_without_any_answer(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The status is 1 if none of its events was recorded, and one command records them all."""
    assert why.run(["net", trace]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("collectord record -a -e sock:inet_sock_set_state") == 1


def test_rows_without_the_trouble_do_not_count(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thread that was never blocked is no row of who was blocked."""
    assert why.run(["io", trace]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[:2] == ["Who was blocked longest, as for a disk:", "  nothing"]


def test_names_of_hostile_threads_do_no_harm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Braces are no fields of a sentence, and control characters are visible."""
    monkeypatch.setattr(answer_file, "LOCAL", tmp_path / "none")
    path = tmp_path / "trace.dat"
    switched = event(switch(7, next_comm=b"{tid}\x1b[31m{0}"), 10)
    write_trace(path, {0: [page(3000, switched, event(switch(5), 10))]})
    assert why.run(["cpu", str(path)]) == 0
    out = capsys.readouterr().out
    assert "{tid}" in out
    assert "\x1b" not in out
