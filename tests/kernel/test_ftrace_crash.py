# SPDX-License-Identifier: Apache-2.0
"""kill -9 of an ftrace session: its rings live on, and with their rest its balance is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.reader.verify import list_segments
from tests.kernel.test_ftrace_record import write_config
from tests.support import daemons, kills
from tests.support.daemons import EVENT, FILTER, NUMBER

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.generator import Generator
    from tests.support.trace_cmds import TraceCmd

    Start = Callable[..., subprocess.Popen[str]]
    TraceCmds = tuple[TraceCmd, ...]

pytestmark = pytest.mark.alone

TRANSPORTS: Final = ("read", "mmap", "splice")
BURST: Final = 3_000
LAST_BURST: Final = 60_000


def test_killed_after_retention(
    tmp_path: Path, tracefs: Path, start_cli: Start, generator: Generator
) -> None:
    """Stored events are known though retention deleted them: none is salvaged again."""
    config = write_config(tmp_path, session='segment_bytes = "1MiB"')
    text = config.read_text().replace('bytes = "0"', 'bytes = "1B"', 1)
    config.write_text(text)
    with daemons.running(start_cli, config) as daemon:
        # A segment that is large enough is sealed as the next records come.
        for part in (1, 2, 3):
            with generator.start("count", count=LAST_BURST // 3, nr=NUMBER) as running:
                assert running.run()["events"] == LAST_BURST // 3
            daemon.await_stored(part * LAST_BURST // 3)
        state = tmp_path / "state"
        daemons.wait_for(lambda: not list(state.rglob("*-000001.*")), "the first one's deletion")
        daemons.wait_for(lambda: len(list(state.rglob("*.trace.dat"))) <= 1, "the others'")
        daemon.kill()
    assert list((tracefs / "instances").glob("collectord-calls*"))
    with daemons.running(start_cli, config) as successor:
        ended = successor.stop()
    (told,) = ended.named("instance_salvaged")
    kills.check_salvaged(told, LAST_BURST)
    assert told["lost"]["staging/dropped"] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_rings_that_somebody_emptied(
    tmp_path: Path, tracefs: Path, start_cli: Start, generator: Generator, transport: str
) -> None:
    """After a reset the counters tell less than is stored: no figure is made up, none negative."""
    config = write_config(tmp_path, source=f'transport = "{transport}"')
    with daemons.running(start_cli, config) as daemon:
        with generator.start("count", count=BURST, nr=NUMBER) as running:
            assert running.run()["events"] == BURST
        # Pages that are spliced count as stored on their way to the file.
        daemons.wait_for(
            lambda: sum(row.samples or 0 for row in list_segments([tmp_path / "state"])) == BURST,
            "all records in the file",
        )
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
    """The remains of a killed `record` are salvaged by the next one into the same directory."""
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
