# SPDX-License-Identifier: Apache-2.0
"""The kernel makes one sample for all who count a software event on a CPU, with one id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.recording import check_listed, recording

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.alone]

PAGES = 2000


def test_two_recordings_of_one_software_event_both_open(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """A file holds no id but its own, though the kernel gives it samples of the other's."""
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
    with (
        generator.start("faults", pages=PAGES) as running,
        recording(start_cli, places[0], "-e", "page-faults", "-a") as first,
        recording(start_cli, places[1], "-e", "page-faults", "-a") as second,
    ):
        running.go()
        running.result()
    results = [first.session, second.session]
    for result in results:
        assert result["stored"] >= PAGES
        check_listed(result, perfs)
    assert sum(ring["relabelled"] for result in results for ring in result["rings"]) > 0
