# SPDX-License-Identifier: Apache-2.0
"""Scrapes cost what records nothing: no ring and no counter of the kernel is read for them."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER

if TYPE_CHECKING:
    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = pytest.mark.usefixtures("tracefs")

SCRAPES: Final = 50
SESSIONS: Final = "".join(
    f"""
[[session]]
name = "{kind}-{os.getpid()}"
[[session.source]]
kind = "{kind}"
events = ["{EVENT}"]
filter = "{FILTER}"
"""
    for kind in ("perf", "tracefs")
)
SCRAPER: Final = f"""
import sys, urllib.request
for _ in range({SCRAPES}):
    assert urllib.request.urlopen(sys.argv[1]).read()
"""
# A descriptor of a ring, or of counters, as /proc names it.
RING: Final = re.compile(r"perf_event|/per_cpu/cpu")
# read, ioctl, pread64, readv, splice; a line has number and arguments, those in hexadecimal.
READS: Final = {0, 16, 17, 19, 275}
CALL: Final = re.compile(r"NR (\d+) \(([0-9a-f]+),")


def rings(daemon: daemons.Daemon) -> set[int]:
    """Return a daemon's descriptors of rings and of their counters."""
    found = set()
    for path in Path(f"/proc/{daemon.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            if RING.search(str(path.readlink())):
                found.add(int(path.name))
    return found


def test_a_scrape_reads_no_ring(
    tmp_path: Path, start_cli: Start, generator: Generator, perf: Perf
) -> None:
    """Within a flush interval, with series of each CPU, however often somebody asks."""
    config = daemons.write_sessions(tmp_path, SESSIONS, flush="1m")
    config.write_text(config.read_text().replace("[metrics]", "[metrics]\nper_cpu = true"))
    trace = tmp_path / "trace"
    with daemons.running(start_cli, config) as daemon:
        assert 'cpu="' in daemon.metrics()
        with generator.start("count", nr=NUMBER, count=1_000) as running:
            running.run()
        known = rings(daemon)
        host, port = daemon.metrics_address
        scraper = (sys.executable, "-c", SCRAPER, f"http://{host}:{port}/metrics")
        words = ("-q", "-e", "raw_syscalls:sys_enter", "-p", str(daemon.pid), "-o", trace, "--")
        done = perf.run("record", *words, *scraper)
        assert done.returncode == 0, done.stderr
        known &= rings(daemon)  # a number that was closed meanwhile may be a scraper's
        daemon.stop()
    text = perf.run("script", "-i", trace, "-F", "trace").stdout
    calls = [(int(number), int(first, 16)) for number, first in CALL.findall(text)]
    assert len(calls) > SCRAPES
    assert known
    assert not [call for call in calls if call[0] in READS and call[1] in known]
