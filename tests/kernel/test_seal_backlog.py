# SPDX-License-Identifier: Apache-2.0
"""Segments that fill sooner than a slow disk seals them: how many wait, and what is lost."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from collectord.session.seal_backlog import WAITING_MAX
from tests.support import daemons, overload
from tests.support.daemons import EVENT
from tests.support.disks import slow_ext4
from tests.support.overload import BUSY, NUMBERS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.generator import Generator

    Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

DISK_BYTES: Final = 1 << 30
SEGMENT_BYTES: Final = 256 << 10
TROUBLE: Final = "seals take longer than segments fill"
SEALED: Final = 10  # segments: many more than may wait


class Watch:
    """Counts the unsealed segments of a folder again and again, from a thread."""

    def __init__(self, folder: Path) -> None:
        self.most = 0
        self._folder = folder
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")

    def _run(self) -> None:
        while not self._ending.wait(0.001):
            self.most = max(self.most, len(list(self._folder.glob("*.perf.data.partial"))))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count during the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._ending.set()
            self._thread.join()


def test_few_segments_wait_for_their_seals(
    tmp_path: Path, start_cli: Start, generator: Generator, require: Callable[[str], None]
) -> None:
    """Then the running one goes on beyond its limit, and the ledger is exact in the end."""
    require("loop devices")
    require("write cgroups")
    session = f"""
[[session]]
name = "{BUSY}"
segment_bytes = "{SEGMENT_BYTES}B"
[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "id == {NUMBERS[BUSY]}"
"""
    rate = overload.DISK_BYTES_PER_SECOND
    with slow_ext4(tmp_path / "disk", DISK_BYTES, rate) as disk:
        state = disk.root / "state"
        config = daemons.write_sessions(tmp_path, session, state=state, staging="8MiB")
        watch = Watch(state / BUSY)
        with daemons.running(start_cli, config, prefix=disk.prefix) as daemon, watch.running():
            load = overload.Load(generator, BUSY)
            try:
                daemons.wait_for(
                    lambda: TROUBLE in "".join(daemon.session(BUSY)["degraded"]), "that it is told"
                )
                daemons.wait_for(
                    lambda: len(overload.segments(state, BUSY)) >= SEALED, "sealed segments"
                )
            finally:
                load.end()
            assert daemon.stop().status == 0
        sealed = overload.segments(state, BUSY)
        manifests = [daemons.manifest(path) for path in sealed]
        # Beside those that wait there are the running one and the next.
        assert WAITING_MAX < watch.most <= WAITING_MAX + 3
        assert max(one["bytes"] for one in manifests) > 2 * SEGMENT_BYTES
        ledger = manifests[-1]["ledger"]
        assert (ledger["closed"], ledger["unaccounted"]) == (True, 0)
        assert ledger["produced"] == load.made
