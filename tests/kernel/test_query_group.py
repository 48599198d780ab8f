# SPDX-License-Identifier: Apache-2.0
"""A reader who has nothing but the group of the state directory, while its files change."""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER
from tests.support.examples import examples
from tests.support.somebody import SOMEBODY

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemons import Daemon
    from tests.support.generator import Generator

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

GROUP: Final = 54_321
PAGES: Final = f"pages-{os.getpid()}"
FILES: Final = {"calls": "*.perf.data", PAGES: "*.trace.dat"}
STREAMS: Final = tuple(FILES)
ROUNDS: Final = examples(6)
# The first argument of a call is the number of calls before it, and all are made on one CPU.
STATEMENT: Final = """
SELECT count(*) AS found, count(DISTINCT args[1]) AS different, min(args[1]) AS first,
    max(args[1]) AS last,
    (SELECT coalesce(sum(samples), 0)::BIGINT FROM segments WHERE state = 'sealed') AS sealed
FROM sys_enter
"""
SESSIONS: Final = "".join(
    f"""
[[session]]
name = "{name}"
{more}

[[session.source]]
kind = "{kind}"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "{ring}"
"""
    for name, kind, ring, more in (
        ("calls", "perf", "8MiB", 'segment_bytes = "256KiB"\nsegment_age = "0"'),
        (PAGES, "tracefs", "8MiB", 'segment_bytes = "256KiB"\nsegment_age = "0"'),
        ("flight", "perf", "64KiB", 'mode = "flight-recorder"'),
    )
)


@contextmanager
def _disturbed(daemon: Daemon) -> Iterator[list[str]]:
    """Rotate and take snapshots over and over for a block; the list has what was done."""
    ended = threading.Event()
    done: list[str] = []

    def disturb() -> None:
        while not ended.wait(0.05):  # as fast as it is let
            daemon.post("/v1/rotate", {})
            daemon.post("/v1/snapshot", {"sessions": ["flight"]})
            done.append("both")

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join()


def test_results_are_consistent_while_files_come_and_go(
    stage: Path,
    start_cli: Callable[..., subprocess.Popen[str]],
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
    generator: Generator,
) -> None:
    """No record is missing between the oldest and the newest, none is there twice, no error."""
    config = daemons.write_sessions(
        stage, SESSIONS, retention={"bytes": "6MiB", "compress_after": "300ms"}
    )
    # The load is far over the budget, and compression would wait for its minute to pass.
    config.write_text(config.read_text().replace("[daemon]", '[daemon]\nbudget = "0"'))
    state = stage / "state"
    as_group = ("setpriv", f"--regid={GROUP}", "--clear-groups")
    as_reader = ("setpriv", f"--reuid={SOMEBODY}", f"--regid={GROUP}", "--clear-groups")

    def ask(*words: str | Path) -> str:
        done = run_cli(*words, prefix=as_reader)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return str(done.stdout)

    def row(name: str) -> dict[str, Any]:
        return dict(json.loads(ask("query", "--json", "--session", name, STATEMENT, state)))

    def check_events(name: str) -> bool:
        """See that `events` counts what the newest manifest says, whenever it is compressed.

        True once this was seen of any segment of the session.
        """
        segment = max((state / name).glob(FILES[name]), default=None)
        if segment is None:
            return name in checked
        try:
            stored = daemons.manifest(segment)["samples"]
            counts = json.loads(ask("events", "--count", "--json", segment))
        except (AssertionError, FileNotFoundError):
            if segment.exists():
                raise
            return name in checked  # it was deleted, to make room
        assert sum(one["count"] for one in counts["events"]) == stored
        checked.add(name)
        return True

    checked: set[str] = set()
    with (
        daemons.running(start_cli, config, prefix=as_group) as daemon,
        generator.start("count", nr=NUMBER, endless=1, rate=20_000, cpu=0) as load,
    ):
        load.go()
        daemon.await_stored(20_000)
        newest = dict.fromkeys(STREAMS, 0)
        oldest = dict.fromkeys(STREAMS, 0)
        with _disturbed(daemon) as disturbances:
            daemons.wait_for(lambda: disturbances, "a first rotation")
            for _ in range(ROUNDS):
                for name in STREAMS:
                    found = row(name)
                    span = found["last"] - found["first"] + 1
                    assert found["found"] == found["different"] == span, (name, found)
                    assert found["last"] > newest[name], (name, found)
                    assert found["first"] >= oldest[name], (name, found)
                    assert found["sealed"] <= found["found"], (name, found)
                    newest[name], oldest[name] = found["last"], found["first"]
                    check_events(name)
        load.end()
        for name in STREAMS:  # until now they may have been deleted before they were read
            daemons.wait_for(partial(check_events, name), f"a sealed segment of {name}")
        assert len(disturbances) > ROUNDS / 2
        assert all(oldest.values()), "nothing was deleted"
        ended = daemon.stop()
    assert ended.status == 0
