# SPDX-License-Identifier: Apache-2.0
"""kill -9 of an ftrace session: its rings live on, and with their rest its balance is whole.

COLLECTORD_KILLS sets how many instants are tried (5 by default).
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.kernel.test_ftrace_record import write_config
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.generator import Generator
    from tests.support.trace_cmds import TraceCmd

    Start = Callable[..., subprocess.Popen[str]]
    TraceCmds = tuple[TraceCmd, ...]

KILLS: Final = int(os.environ.get("COLLECTORD_KILLS", "5"))
TRANSPORTS: Final = ("read", "mmap", "splice")
BURST: Final = 3_000
LAST_BURST: Final = 60_000
RATE: Final = 40_000.0


@pytest.mark.parametrize("seed", range(KILLS))
def test_killed_daemon(  # noqa: PLR0917  # fixtures
    tmp_path: Path,
    tracefs: Path,
    start_cli: Start,
    generator: Generator,
    trace_cmds: TraceCmds,
    seed: int,
) -> None:
    """The successor salvages what was left; stored and lost are all that the kernel counted."""
    dice = random.Random(seed)  # noqa: S311  # no secret
    transport = TRANSPORTS[seed % len(TRANSPORTS)]
    config = write_config(
        tmp_path,
        session='segment_bytes = "1MiB"',
        source=f'transport = "{transport}"\nring = "8MiB"',
    )
    with daemons.running(start_cli, config) as daemon:
        for _ in range(dice.randrange(3)):
            with generator.start("count", count=BURST, nr=NUMBER) as running:
                assert running.run()["events"] == BURST
        with generator.start("count", count=LAST_BURST, rate=RATE, nr=NUMBER) as running:
            running.go()
            time.sleep(dice.uniform(0, LAST_BURST / RATE))  # the instant is what this is about
            daemon.kill()
            os.kill(running.pid, signal.SIGKILL)
    (instance,) = (tracefs / "instances").glob("collectord-calls*")
    state = tmp_path / "state"

    with daemons.running(start_cli, config) as successor:
        assert list((tracefs / "instances").glob("collectord-calls*")) == [instance]
        ended = successor.stop()
    assert ended.status == 0, ended.log
    (told,) = ended.named("instance_salvaged")
    check_salvaged(told)
    found = sorted(path for path in state.rglob("*.trace.dat"))
    recovered = [path for path in found if daemons.manifest(path)["recovered"]]
    stored = sum(daemons.manifest(path)["samples"] for path in found)
    assert recovered
    assert stored == told["stored"]
    for trace_cmd in trace_cmds:
        assert sum(len(trace_cmd.report(path)) for path in found) == stored
    assert not list((tracefs / "instances").glob("collectord-*"))


def check_salvaged(told: dict[str, Any]) -> None:
    """Assert that a salvage's balance adds up, and that only what was on its way is missing."""
    assert told["basis"] == "exact"
    assert told["unaccounted"] == 0
    lost = dict(told["lost"])
    on_its_way = lost.pop("staging/dropped")
    assert on_its_way >= 0
    assert not any(lost.values())
    assert told["produced"] == told["stored"] + on_its_way


def test_killed_after_retention(
    tmp_path: Path, tracefs: Path, start_cli: Start, generator: Generator
) -> None:
    """What was stored is known though retention deleted it: nothing is salvaged a second time."""
    config = write_config(tmp_path, session='segment_bytes = "1MiB"')
    text = config.read_text().replace('bytes = "0"', 'bytes = "1B"', 1)
    config.write_text(text)
    with daemons.running(start_cli, config) as daemon:
        with generator.start("count", count=LAST_BURST, nr=NUMBER) as running:
            assert running.run()["events"] == LAST_BURST
        daemon.await_stored(LAST_BURST)
        state = tmp_path / "state"
        daemons.wait_for(lambda: not list(state.rglob("*-000001.*")), "the first one's deletion")
        daemons.wait_for(lambda: len(list(state.rglob("*.trace.dat"))) <= 1, "the others'")
        daemon.kill()
    assert list((tracefs / "instances").glob("collectord-calls*"))
    with daemons.running(start_cli, config) as successor:
        ended = successor.stop()
    (told,) = ended.named("instance_salvaged")
    check_salvaged(told)
    assert (told["produced"], told["lost"]["staging/dropped"]) == (LAST_BURST, 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_rings_that_somebody_emptied(
    tmp_path: Path, tracefs: Path, start_cli: Start, generator: Generator, transport: str
) -> None:
    """After a reset the counters tell less than is stored: no figure is made up, none negative."""
    config = write_config(tmp_path, source=f'transport = "{transport}"')
    with daemons.running(start_cli, config) as daemon:
        with generator.start("count", count=BURST, nr=NUMBER) as running:
            assert running.run()["events"] == BURST
        daemon.await_stored(BURST)
        daemon.kill()
    (instance,) = (tracefs / "instances").glob("collectord-calls*")
    (instance / "trace").write_text("\n")
    with daemons.running(start_cli, config) as successor:
        ended = successor.stop()
    (told,) = ended.named("instance_salvaged")
    assert (told["basis"], told["stored"]) == ("lost_only", BURST)
    assert (told["produced"], told["unaccounted"]) == (None, None)
    assert not any(told["lost"].values())


def test_killed_recorder(
    tmp_path: Path,
    tracefs: Path,
    start_cli: Start,
    generator: Generator,
    trace_cmds: TraceCmds,
) -> None:
    """A killed flight recorder's whole window is salvaged: nobody had taken anything out."""
    config = write_config(
        tmp_path, session='mode = "flight-recorder"', source='keep = "30s"\nmax = "16MiB"'
    )
    with daemons.running(start_cli, config) as daemon:
        with generator.start("count", count=BURST, nr=NUMBER) as running:
            assert running.run()["events"] == BURST
        daemon.kill()
    with daemons.running(start_cli, config) as successor:
        ended = successor.stop()
    (told,) = ended.named("instance_salvaged")
    assert (told["produced"], told["stored"], told["unaccounted"]) == (BURST, BURST, 0)
    for trace_cmd in trace_cmds:
        assert len(trace_cmd.report(Path(told["path"]))) == BURST
    assert not list((tracefs / "instances").glob("collectord-*"))


def test_killed_recording(
    tmp_path: Path, tracefs: Path, start_cli: Start, generator: Generator
) -> None:
    """What a killed `record` left is salvaged by the next one into the same directory."""
    out = tmp_path / "out"
    words = ("record", "-e", EVENT, "--filter", FILTER, "--via", "ftrace", "-a")
    process = start_cli(*words, "--output-dir", out)
    daemons.wait_for(lambda: list(out.glob("*.partial")), "the first segment")
    marked = tracefs / "instances"
    daemons.wait_for(lambda: _is_on(marked), "the events")
    with generator.start("count", count=BURST, nr=NUMBER) as running:
        assert running.run()["events"] == BURST
    process.kill()
    process.wait()
    assert list(marked.glob("collectord-record*"))
    done = start_cli(*words, "--output-dir", out, "--", "true")
    log = done.communicate()[1]
    assert done.returncode == 0, log
    assert "instance_salvaged" in log
    assert not list(marked.glob("collectord-*"))
    stored = sum(daemons.manifest(path)["samples"] for path in out.glob("*.trace.dat"))
    assert stored == BURST


def _is_on(instances: Path) -> bool:
    return any(
        (path / "tracing_on").read_text().strip() == "1"
        for path in instances.glob("collectord-record*")
    )
