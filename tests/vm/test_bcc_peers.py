# SPDX-License-Identifier: Apache-2.0
"""A tool of bcc beside an answer: the same waits for a CPU.

It runs in the guest, because it compiles for the headers of its kernel.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import answer
from tests.support import answer_causes
from tests.support.answer_causes import HOG_S
from tests.support.patience import patient
from tests.support.recording import recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.recording import Start

pytestmark = pytest.mark.usefixtures("tracefs")

EVENTS: Final = "sched:sched_switch,sched:sched_wakeup,sched:sched_wakeup_new"
_WAITS: Final = re.compile(r"^tid = (\d+).*\n.*\n((?: +\d+ -> \d+ .*\n)+)", re.MULTILINE)
_SLOT: Final = re.compile(r"^ +(\d+) -> (\d+) +: (\d+)", re.MULTILINE)


@contextmanager
def _bcc(*words: str) -> Iterator[list[str]]:
    """Run a tool of bcc, which prints a line when it traces; its output is there at the end."""
    told: list[str] = []
    process = subprocess.Popen(
        ["/usr/bin/python3", "-u", *words], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield told
            process.send_signal(signal.SIGINT)
            told.append(process.communicate(timeout=patient(60))[0])
        finally:
            process.kill()


def _first(capsys: pytest.CaptureFixture[str], name: str, place: Path, comm: str) -> Any:  # noqa: ANN401 - JSON
    """Return the first row of an answer about processes of a name."""
    assert answer.run(["--json", name, "--param", "limit=1000", str(place)]) == 0
    rows = map(json.loads, capsys.readouterr().out.splitlines())
    return next(row for row in rows if row["comm"] == comm)


def test_runqlat_agrees(
    start_cli: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A process waits for the CPU of another one: as often, and as long at most."""
    with (
        _bcc("/usr/sbin/runqlat-bpfcc", "-L") as waits,
        recording(start_cli, tmp_path, "-a", "-m", "16MiB", "-e", EVENTS),
    ):
        subprocess.run([sys.executable, answer_causes.__file__, "cpu"], check=True)
    place = tmp_path / "out"

    waited = _first(capsys, "run-queue", place, "cpu-victim")
    theirs = dict(_WAITS.findall("".join(waits)))
    slots = [tuple(map(int, slot)) for slot in _SLOT.findall(theirs[str(waited["tid"])])]
    assert sum(count for *_, count in slots) == pytest.approx(waited["waits"], abs=1)
    low, high = max(slot[:2] for slot in slots if slot[2])
    assert low * 0.98 <= waited["longest_ms"] * 1000 <= high * 1.02
    assert waited["longest_ms"] > HOG_S * 900
