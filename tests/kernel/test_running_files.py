# SPDX-License-Identifier: Apache-2.0
"""A running perf.data is a whole file at every instant, and so is any copy of it."""

from __future__ import annotations

import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_data import parse_header
from collectord.codec.perf_record import iter_records
from tests.support import daemons
from tests.support.daemons import NUMBER
from tests.support.recording import check_balance, daemon, daemon_config, daemon_result

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = pytest.mark.usefixtures("tracefs")

COPIES: Final = 100
COUNT: Final = 5_000
RATE: Final = 2_000
PAUSE_MAX_S: Final = 0.04  # twice the mean: the copies are spread over the time of the load
SMALL_AND_OFTEN: Final = 'chunk = "128KiB"\nstaging = "16MiB"\nflush_interval = "50ms"'


def shown(path: Path) -> bytes:
    """Return the records that a file's header shows."""
    content = path.read_bytes()
    data = parse_header(content).data
    return content[data.offset : data.offset + data.size]


def samples(records: bytes) -> int:
    """Return how many of them are samples."""
    return sum(header.type == RecordType.SAMPLE for header in iter_records(records))


def test_copies_of_a_running_file(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """Stock perf lists of each copy what a flush had shown, without a word, and at last all."""
    chance = random.Random(COPIES)  # noqa: S311
    config = daemon_config(tmp_path, core=SMALL_AND_OFTEN, source='ring = "16MiB"')
    copies = [tmp_path / f"copy{number}" for number in range(COPIES)]
    work = {"nr": NUMBER, "count": COUNT, "rate": RATE}
    with daemon(start_cli, config):
        # The one behind it is prepared, and empty.
        running_file = min((tmp_path / "state").rglob("*.perf.data.partial"))
        with generator.start("count", hold=False, **work) as load:
            load.go()
            for copy in copies:
                time.sleep(chance.uniform(0, PAUSE_MAX_S))
                shutil.copyfile(running_file, copy)
            load.result()
        daemons.wait_for(
            lambda: samples(shown(running_file)) == COUNT, "the flush behind the last sample"
        )
        for perf in perfs:
            assert len(perf.script(running_file)) == COUNT, perf.version
    check_balance(daemon_result(tmp_path), perfs, generated=COUNT)
    contents = list(map(shown, copies))
    # perf reads the same of two copies that show the same.
    different = dict(zip(contents, copies, strict=True))
    counts = {copy: samples(content) for content, copy in different.items()}
    assert contents == sorted(contents, key=len)
    assert len(counts) >= COPIES // 10
    with ThreadPoolExecutor(len(perfs)) as both:
        for read in both.map(lambda perf: [len(perf.script(copy)) for copy in counts], perfs):
            assert read == list(counts.values())
