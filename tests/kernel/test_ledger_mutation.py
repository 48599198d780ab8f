# SPDX-License-Identifier: Apache-2.0
"""A core that forgets one record after the walk: the ledger must miss exactly that one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import mutant as mutants
from tests.support.daemons import NUMBER
from tests.support.recording import CALLS, script, segments_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.trace_cmds import TraceCmd

pytestmark = pytest.mark.usefixtures("tracefs", "bcc")

ROOT: Final = Path(__file__).resolve().parents[2]
COUNT: Final = 20_000
BPF: Final = ("--bpf", "syscall_stream", "--bpf-arg", f"nr={NUMBER}")
BUFFER: Final = (*BPF, "--transport", "ringbuf")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ((*CALLS, "-C", "0"), ("count", {"nr": NUMBER, "count": COUNT, "cpu": 0})),
        ((*CALLS, "-a"), ("count", {"nr": NUMBER, "count": COUNT, "threads": 4})),
        (CALLS, ("count", {"nr": NUMBER, "count": COUNT, "threads": 4, "later": 4})),
        ((*CALLS, "--per-thread"), ("count", {"nr": NUMBER, "count": COUNT})),
        ((*CALLS, "-C", "0", "-m", "1"), ("count", {"nr": NUMBER, "count": COUNT, "cpu": 0})),
        (("-e", "page-faults"), ("faults", {"pages": COUNT})),
        (("-e", "page-faults", "-m", "1"), ("faults", {"pages": COUNT})),
        ((*BPF, "-C", "0"), ("count", {"nr": NUMBER, "count": COUNT, "cpu": 0})),
        ((*BPF, "-m", "1"), ("count", {"nr": NUMBER, "count": COUNT, "cpu": 0})),
        ((*BUFFER, "-C", "0"), ("count", {"nr": NUMBER, "count": COUNT, "cpu": 0})),
        ((*BUFFER, "-m", "1"), ("count", {"nr": NUMBER, "count": COUNT, "threads": 4})),
    ],
    ids=[
        *("cpu", "system", "process", "thread", "overload", "software", "software overload"),
        *("bpf", "bpf overload", "bpf ring buffer", "bpf ring buffer overload"),
    ],
)
def test_a_forgotten_record_is_missed(
    tmp_path: Path,
    *,
    generator: Generator,
    perf: Perf,
    mutant: Path,
    words: tuple[str, ...],
    command: tuple[str, dict[str, int]],
) -> None:
    """On an exact source a record that vanishes is one unaccounted for, whatever else is lost."""
    mode, options = command
    session = _missed(
        tmp_path, generator.command(mode, now=True, hold=False, **options), mutant, words
    )
    fields = ("-F", "comm,tid,time,event")  # a line each, of BPF events too
    listed = sum(len(script(perf, path, *fields)) for path in segments_of(session))
    assert listed == session["stored"]


@pytest.mark.parametrize("transport", ["read", "mmap", "splice"])
@pytest.mark.parametrize("ring", ["4MiB", "64KiB"], ids=["all", "overload"])
def test_a_forgotten_event_is_missed(  # noqa: PLR0917  # fixtures
    tmp_path: Path,
    generator: Generator,
    trace_cmds: tuple[TraceCmd, ...],
    mutant: Path,
    transport: str,
    ring: str,
) -> None:
    """The same holds where events come by whole sub-buffers."""
    words = (*CALLS, "-a", "--via", "ftrace", "--transport", transport, "-m", ring)
    load = generator.command("count", now=True, hold=False, nr=NUMBER, count=COUNT)
    session = _missed(tmp_path, load, mutant, words)
    for trace_cmd in trace_cmds:
        reported = sum(len(trace_cmd.report(path)) for path in segments_of(session))
        assert reported == session["stored"]


def _missed(
    directory: Path, load: Sequence[str], mutant: Path, words: Sequence[str]
) -> dict[str, Any]:
    """Record with the mutant, which the balance must show; give the session."""
    session = mutants.record(mutant, directory, load, words)
    assert session["ledger_basis"] == "exact"
    assert session["unaccounted"] == 1
    assert session["produced"] == session["stored"] + sum(session["lost"].values()) + 1
    assert sorted(ring["unaccounted"] for ring in session["rings"])[-2:] in ([1], [0, 1])
    return session
