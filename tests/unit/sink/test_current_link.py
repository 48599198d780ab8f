# SPDX-License-Identifier: Apache-2.0
"""The link of a fixed name that leads to the running segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectord.errors import SinkError
from collectord.reader.verify import State, verify
from collectord.sink.repair import repair
from tests.support import segments as support
from tests.support.segments import files_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.perf_tools import Perf

LINK = "current-perf.data"


def leads_to(directory: Path) -> str:
    """Return where the link leads, "" without one."""
    link = directory / LINK
    return str(link.readlink()) if link.is_symlink() else ""


def test_it_follows_the_running_segment(tmp_path: Path, perfs: tuple[Perf, ...]) -> None:
    """It leads to one segment after the other, and is gone with the last one."""
    sink = support.make_sink(tmp_path)
    first = sink.next_segment(1, support.OPENING)
    sink.lead(first)
    second = sink.next_segment(2, support.OPENING)
    assert leads_to(tmp_path) == first.paths.partial.name
    assert [len(perf.script(tmp_path / LINK)) for perf in perfs] == [0] * len(perfs)
    sink.lead(second)
    assert leads_to(tmp_path) == second.paths.partial.name
    sink.seal(first, support.fill(first), support.closing())
    assert leads_to(tmp_path) == second.paths.partial.name
    sink.seal(second, support.fill(second), support.closing())
    assert leads_to(tmp_path) == ""
    sink.lead(second)  # too late
    assert leads_to(tmp_path) == ""
    assert len(list(files_in(tmp_path))) == 4


def test_it_is_no_segment(tmp_path: Path) -> None:
    """Nobody lists, checks or repairs a file twice because of it."""
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, support.OPENING)
    sink.lead(segment)
    (verdict,) = verify([tmp_path])
    assert (verdict.path, verdict.state) == (segment.paths.partial, State.RUNNING)
    assert [outcome.path for outcome in repair(tmp_path)] == [segment.paths.partial]
    assert not [*tmp_path.glob("*.perf.data"), *tmp_path.glob("*.data.partial")][1:]
    sink.close()
    assert not list(files_in(tmp_path))


def test_it_is_set_anew_after_a_kill(tmp_path: Path) -> None:
    """The next segment takes the link over, and what a kill left half-way."""

    def work() -> None:
        sink = support.make_sink(tmp_path)
        segment = sink.next_segment(1, support.OPENING)
        support.fill(segment)
        sink.lead(segment)

    support.killed(work)
    (tmp_path / f".{LINK}.new").symlink_to("nothing")
    assert leads_to(tmp_path)
    repair(tmp_path)
    assert not (tmp_path / LINK).exists()  # it leads nowhere
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, support.OPENING)
    sink.lead(segment)
    assert leads_to(tmp_path) == segment.paths.partial.name
    assert not (tmp_path / f".{LINK}.new").is_symlink()
    sink.close()


def test_a_file_of_the_users_choice_needs_none(tmp_path: Path) -> None:
    """The name of a single file is known before it is written."""
    sink = support.make_sink(tmp_path, single_file=str(tmp_path / "out.data"))
    sink.lead(sink.next_segment(1, support.OPENING))
    assert leads_to(tmp_path) == ""
    sink.close()


def test_something_else_of_that_name_stays(tmp_path: Path) -> None:
    """Only links are replaced."""
    (tmp_path / LINK).write_bytes(b"mine")
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, support.OPENING)
    with pytest.raises(SinkError, match="cannot link to the segment"):
        sink.lead(segment)
    sink.close()
    assert [path.name for path in files_in(tmp_path)] == [LINK]
    assert (tmp_path / LINK).read_bytes() == b"mine"
