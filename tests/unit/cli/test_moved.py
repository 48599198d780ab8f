# SPDX-License-Identifier: Apache-2.0
"""A trace.dat that is sealed while it is read: its pages move, and a reader finds them all."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from collectord.cli.query_parts import complain_of
from collectord.reader import trace_tables
from collectord.reader.segment_tables import open_catalogue
from tests.support import segments
from tests.support.trace_segments import CPUS, closing, fill, make_sink, opening, sub_buffers

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from pathlib import Path

    from collectord.reader.event_file import EventFile
    from collectord.reader.segment_tables import Catalogue

COUNTS: Final = (2, 1)
PAGES: Final = [b"".join(sub_buffers(count)) for count in COUNTS]
STEPS: Final = 12  # more than a seal has


@contextmanager
def _sealing(
    directory: Path, cpus: Mapping[int, int] = CPUS
) -> Iterator[Generator[str, None, object]]:
    """Give the steps of a seal of a segment whose pages were all shown."""
    sink = make_sink(directory, cpus=cpus)
    segment = sink.next_segment(1, opening(cpus))
    done = fill(segment, COUNTS)
    sink.flush(segment, {ring: size for ring, size, _ in done.tracks})
    yield sink.seal_steps(segment, done, closing(cpus))
    sink.close()


def _opened(directory: Path, stack: ExitStack) -> Catalogue:
    return open_catalogue([directory], stack, session=None, nearest=lambda *_: "")


def _pages(file: EventFile) -> list[bytes]:
    """Read the pages of each CPU, as a scan does."""
    (source,) = file.sources
    fd, spans = file.contents(source)
    return [os.pread(fd, size, at) for _, at, size in spans]


@pytest.mark.parametrize("before", [True, False], ids=["opened before", "opened then"])
@pytest.mark.parametrize("count", range(STEPS))
def test_pages_are_found_at_each_step_of_a_seal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: int,
    before: bool,  # parametrized
) -> None:
    """Whoever cannot find them now waits for the next step; nothing is told, as nothing lacks."""
    with _sealing(tmp_path) as steps, ExitStack() as stack:
        monkeypatch.setattr(time, "sleep", lambda _: next(steps))
        catalogue = _opened(tmp_path, stack) if before else None
        for _ in zip(range(count), steps, strict=False):
            pass
        catalogue = catalogue or _opened(tmp_path, stack)
        (file,) = catalogue.files
        assert _pages(file) == PAGES
        assert complain_of(catalogue, ()) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("last", ["gap closed", "head moved"])
def test_pages_that_move_while_they_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """A copy that was made of other places is made again."""
    copy = trace_tables._copy
    copied: list[int] = []

    with _sealing(tmp_path) as steps, ExitStack() as stack:

        def slowly(fd: int, at: int, size: int, to: tuple[int, int]) -> None:
            if not copied:
                segments.walk_to(steps, last)
            copied.append(size)
            copy(fd, at, size, to)

        (file,) = _opened(tmp_path, stack).files
        monkeypatch.setattr(trace_tables, "_copy", slowly)
        monkeypatch.setattr(time, "sleep", lambda _: next(steps))
        assert _pages(file) == PAGES
    assert len(copied) == 2 * len(PAGES)


def test_pages_that_stay_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may hold a seal up; a CPU without pages has its place behind the file's end."""
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waited"))
    with _sealing(tmp_path, {**CPUS, 12: 2}) as steps, ExitStack() as stack:
        segments.walk_to(steps, "cut")
        (file,) = _opened(tmp_path, stack).files
        assert _pages(file) == PAGES


def test_a_seal_that_does_not_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result is not taken for a whole one."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with _sealing(tmp_path) as steps, ExitStack() as stack:
        catalogue = _opened(tmp_path, stack)
        segments.walk_to(steps, "gap closed")
        (file,) = catalogue.files
        assert _pages(file) == []
        assert complain_of(catalogue, ()) == 1
    assert capsys.readouterr().err.count("a seal is moving its pages") == 1
    assert 1 < sum(waits) < 10


def test_pages_that_a_killed_seal_left_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody moves them any more: what is there is read, and a repair finds the rest."""

    def seal() -> None:
        with _sealing(tmp_path) as steps:
            segments.walk_to(steps, "gap closed")
            os.kill(os.getpid(), signal.SIGKILL)

    segments.killed(seal)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waited"))
    with ExitStack() as stack:
        (file,) = _opened(tmp_path, stack).files
        assert _pages(file)[0] == PAGES[0]
        assert file.move == ""
