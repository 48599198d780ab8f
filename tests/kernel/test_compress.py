# SPDX-License-Identifier: Apache-2.0
"""Segments are compressed by a daemon, or after a recording; stock tools read them as before."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.trace_cmds import TraceCmd

pytestmark = pytest.mark.usefixtures("tracefs")

CALLS: Final = 8_000
PAGES: Final = f"pages-{os.getpid()}"
FORMS: Final = {"calls": "perf.data", PAGES: "trace.dat", "kept": "perf.data"}
SESSIONS: Final = "".join(
    f"""
[[session]]
name = "{name}"
segment_bytes = "512KiB"
segment_age = "0"
compress = {"false" if name == "kept" else "true"}

[[session.source]]
kind = "{kind}"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "8MiB"
"""
    for name, kind in (("calls", "perf"), (PAGES, "tracefs"), ("kept", "perf"))
)


def test_old_segments_are_compressed(
    start_cli: Callable[..., subprocess.Popen[str]],
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: tuple[Perf, ...],
    trace_cmds: tuple[TraceCmd, ...],
) -> None:
    """Each record is in one segment, the metrics have both sizes, and a session is left out."""
    state = tmp_path / "state"
    config = daemons.write_sessions(tmp_path, SESSIONS, retention={"compress_after": "500ms"})
    # The load is far over the budget, and compression would wait for its minute to pass.
    config.write_text(config.read_text().replace("[daemon]", '[daemon]\nbudget = "0"'))
    with daemons.running(start_cli, config) as daemon:

        def ratio(name: str, source: str) -> float:
            labels = f'{{session="{name}",source="{source}"}}'
            taken = daemon.metric(f"collectord_segment_bytes{labels}")
            return daemon.metric(f"collectord_segment_uncompressed_bytes{labels}") / max(taken, 1)

        def is_compressed(name: str, source: str) -> bool:
            return ratio(name, source) > 3

        with generator.start("count", nr=NUMBER, count=CALLS, rate=100_000) as load:
            load.run()
        daemon.await_stored(CALLS)
        run_cli("rotate", "--socket", tmp_path / "control.sock")
        for name, source in (("calls", "perf"), (PAGES, "tracefs")):
            compressed = partial(is_compressed, name, source)
            daemons.wait_for(compressed, f"compression of {name}")
        assert ratio("kept", "perf") == 1
        assert [daemon.session(name)["unaccounted"] for name in ("calls", PAGES)] == [0, 0]
        ended = daemon.stop()
    assert ended.status == 0
    assert not ended.named("segment_not_compressed") + ended.named("segments_not_compressed")
    segments = {name: sorted((state / name).glob(f"*.{form}")) for name, form in FORMS.items()}
    assert daemons.readable_samples(perfs, segments["calls"]) == CALLS
    for trace_cmd in trace_cmds:
        lines = [line for segment in segments[PAGES] for line in trace_cmd.report(segment)]
        # Beside the heartbeats.
        assert sum(EVENT.partition(":")[2] in line for line in lines) == CALLS
    rows = json.loads(run_cli("segments", "verify", "--json", state).stdout)["segments"]
    assert {row["finding"] for row in rows} == {None}
    packed = {row["path"] for row in rows if row["uncompressed_bytes"]}
    assert packed >= {str(segments[name][0]) for name in ("calls", PAGES)}
    assert not packed & set(map(str, segments["kept"]))


@pytest.mark.parametrize("via", ["perf", "ftrace"])
def test_a_recording_is_compressed_at_its_end(
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    via: str,
    *,
    generator: Generator,
    perfs: tuple[Perf, ...],
    trace_cmds: tuple[TraceCmd, ...],
) -> None:
    """Stock tools read each of its records, and the result has both sizes."""
    path = tmp_path / "out"
    load = generator.command("count", nr=NUMBER, count=CALLS)
    words = ("record", "-z", "--json", "--via", via, "-o", path, "-e", EVENT, "--filter", FILTER)
    done = run_cli(*words, "--", *load)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    (session,), (row,) = answer["sessions"], answer["compressed"]
    assert (session["stored"], session["unaccounted"]) == (CALLS, 0)
    assert (row["path"], row["result"]) == (str(path), "packed")
    assert row["before_bytes"] > 3 * row["after_bytes"] > 0
    if via == "perf":
        assert daemons.readable_samples(perfs, [path]) == CALLS
    for trace_cmd in trace_cmds if via == "ftrace" else ():
        assert len(trace_cmd.report(path)) == CALLS
