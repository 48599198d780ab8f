# SPDX-License-Identifier: Apache-2.0
"""The commands of the manual do what it says: they run, as they stand there, beside one daemon.

`make docs` cannot tell whether a command works; this can. Recordings are cut to a moment. What
not every host can run is marked in the manual, and tests/unit/docs parses it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import manual, manual_host

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.manual import Block
    from tests.support.manual_host import ManualHost

# The README's examples stand on these pages, too (tests/unit/docs).
RUN: Final = [
    block
    for block in manual.all_blocks("console")
    if not block.parsed_only and block.page != manual.README
]
PAGES: Final = list(dict.fromkeys(block.page for block in RUN))
# Fails to open a file, as the manual's examples see others do, often enough for a short recording.
_BUSY: Final = """
import os, time
while True:
    try:
        open("/nonexistent")
    except FileNotFoundError:
        time.sleep(0.01)
"""

# A flight recorder of a busy host has overwritten records between two snapshots, and misses those
# of an interrupt that comes while its program stores another (`busy` in bpf/collectord.h).
_MISSING: Final = re.compile(
    r"collectord: [\d,]+ records? of blackbox (?:was|were) (?:overwritten|lost) .*\n"
)

pytestmark = pytest.mark.usefixtures("tracefs", "bcc")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManualHost]:
    """Provide a daemon with its default places and sessions, on a host where something happens."""
    busy = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        with manual_host.running(tmp_path_factory.mktemp("manual")) as started:
            yield started
    finally:
        busy.kill()
        busy.wait()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page(page: Path, host: ManualHost) -> None:
    """Each ends well, complains of nothing, and prints tables with the heads that are shown."""
    for block in (block for block in RUN if block.page == page):
        check(block, host)


def check(block: Block, host: ManualHost) -> None:
    """Run the commands of one block, one after the other in the folder of its page."""
    for step in block.steps():
        command = re.sub(r"--duration \S+", "--duration 200ms", step.command)
        done = host.shell(command, block.page.stem)
        told = f"{block.place}: {command}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, told
        assert "collectord: " not in _MISSING.sub("", done.stderr), told
        assert bool(done.stdout) == bool(step.shown), told
        assert "nothing was counted" not in done.stdout, told
        if step.shown and re.fullmatch(r"[A-Z][A-Z ,]+", step.shown[0]):  # the head of a table
            assert step.shown[0].split() == done.stdout.split("\n")[0].split(), told
