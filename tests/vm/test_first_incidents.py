# SPDX-License-Identifier: Apache-2.0
"""The installed service: troubles make incidents by themselves."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.daemons import wait_for
from tests.support.disks import STALLED_BYTES, stalling_disk
from tests.support.patience import patient
from tests.vm.service import CONFIG, STATE, UNIT, journal, session, shown, status_of, systemctl

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM: Final = "/usr/local/bin/collectord"
INSTALLED: Final = Path("/opt/collectord")
UNITS: Final = Path("/run/systemd/system")
FAILING: Final = "failing.service"
# Those that are installed, but an emulated guest stalls by itself, and answers one incident after
# the other, for minutes: so the first makes another one soon, and the others have no answers.
TRIGGERS: Final = """
[[trigger]]
name = "io-stall"
kind = "pressure"
pressure = "io some 1s/2s"
{io}

[[trigger]]
name = "memory-stall"
kind = "pressure"
pressure = "memory some 500ms/2s"
answers = []

[[trigger]]
name = "oom"
kind = "oom-kill"
{oom}
"""
HUNGRY_UNIT: Final = "hungry.service"
# It takes far more memory than its group may have.
HUNGRY: Final = "import time; held = bytearray(b'x') * (400 << 20); time.sleep(600)"
# Keeps a processor busy, under a name of its own.
BUSY: Final = (
    "import ctypes; ctypes.CDLL(None).prctl(15, b'busy-one', 0, 0, 0)\nwhile True: pass\n"
)


@pytest.fixture
def with_answers() -> Iterator[None]:
    """Give the installed program what `pip install 'collectord[query,symbols]'` would."""
    (own,) = INSTALLED.glob("lib/python3*/site-packages")
    (of_tests,) = (path for path in map(Path, sys.path) if path.name == "site-packages")
    extras = own / "extras.pth"
    extras.write_text(f"{of_tests}\n")
    yield
    extras.unlink()


def said(*words: str, status: int = 0) -> str:
    """Return what the installed program prints, about the service's own state."""
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == status, done
    assert "\x1b" not in done.stdout
    return done.stdout


def await_incident(trigger: str, last: str, blocked: str = "") -> dict[str, Any]:
    """Wait for an incident of a trigger, with its answers and its summary; return its note.

    Args:
        trigger: its name.
        last: its last answer.
        blocked: a process that was blocked then; a busy guest has other incidents too.
    """

    def found() -> list[dict[str, Any]]:
        paths = (STATE / "incidents").glob(f"*-{trigger}/incident.json")
        notes = [json.loads(path.read_text()) for path in sorted(paths)]
        return [
            one
            for one in notes
            if any(answer["name"] == last for answer in one["answers"])
            and (not blocked or blocked in {told["comm"] for told in one["moment"]["blocked"]})
        ]

    wait_for(found, f"an incident of {trigger}")
    note = found()[0]
    assert [one["problem"] for one in note["answers"]] == [""] * len(note["answers"]), note
    summary = STATE / "incidents" / note["id"] / "summary.txt"
    wait_for(lambda: f"answer {last}" in summary.read_text(), "the summary of all answers")
    return note


@pytest.mark.usefixtures("service", "with_answers")
def test_a_disk_that_stalls(tmp_path: Path) -> None:
    """The incident names process and device, `why io` agrees, a flame graph shows the load.

    The incident is made while the request is in flight; once it has ended it is the slowest.

    The ledger of the sessions that stream says that their time is complete.
    """
    CONFIG.write_text(TRIGGERS.format(io='cooldown = "5s"', oom="answers = []"))
    systemctl("start", UNIT)
    with stalling_disk(tmp_path / "disk", patient(1)) as stall:
        with subprocess.Popen([sys.executable, "-c", BUSY]) as busy:
            try:
                stall()
            finally:
                busy.kill()
        said("snapshot", "blackbox")
        note = await_incident("io-stall", "flame", "dd")
    assert note["reason"] == "tasks waited for io more than 1 s of 2 s"
    moment = note["moment"]
    (writer,) = (one["pid"] for one in moment["blocked"] if one["comm"] == "dd")
    why = " ".join(said("why", "io").split())
    found = re.search(rf"dd \({writer}\): W\S* of {STALLED_BYTES} bytes on device (\S+),", why)
    assert found, why
    (name,) = (one["name"] for one in moment["devices"] if one["number"] == found[1])
    shown_text = " ".join(said("incident", "show", note["id"]).split())
    assert f"incident {note['id']}" in shown_text
    assert f"{name} ({found[1]}) 1" in shown_text
    flame = tmp_path / "load.svg"
    said("flame", "--since", "-10m", "-o", str(flame))
    assert "busy-one" in flame.read_text()
    assert "busy-one" in (STATE / "incidents" / note["id"] / "flame.svg").read_text()
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()
    assert "exec, perf: complete" in said("ledger", "--session", "exec")


@pytest.mark.usefixtures("service", "with_answers")
def test_a_process_that_is_killed_for_memory() -> None:
    """The limit of its group is passed, and the incident names it."""
    CONFIG.write_text(TRIGGERS.format(io="answers = []", oom='answers = ["oom-kills"]'))
    systemctl("start", UNIT)
    (UNITS / HUNGRY_UNIT).write_text(
        "[Service]\nType=exec\nMemoryMax=64M\nMemorySwapMax=0\n"
        f"ExecStart={sys.executable} -c {shlex.quote(HUNGRY)}\n"
    )
    try:
        systemctl("daemon-reload")
        systemctl("start", HUNGRY_UNIT)
        note = await_incident("oom", "oom-kills")
    finally:
        (UNITS / HUNGRY_UNIT).unlink()
        subprocess.run(["systemctl", "reset-failed"], check=True)
        systemctl("daemon-reload")
    assert "killed 1 process for lack of memory" in note["reason"]
    shown_text = said("incident", "show", note["id"])
    assert "answer oom-kills" in shown_text
    name = Path(sys.executable).resolve().name
    assert re.search(rf"\b{re.escape(name[:15])}\b", shown_text.partition("answer oom-kills")[2])
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()


@pytest.mark.usefixtures("service")
def test_a_unit_that_fails() -> None:
    """OnFailure= makes one incident of it, and the second failure is held back and counted."""
    CONFIG.write_text(
        '[[trigger]]\nname = "unit"\nkind = "unit"\nunit = "failing*"\nanswers = []\n'
    )
    (UNITS / FAILING).write_text(
        "[Unit]\nOnFailure=collectord-incident@%n.service\n"
        "[Service]\nType=oneshot\nExecStart=/bin/false\n"
    )
    try:
        systemctl("daemon-reload")
        systemctl("start", UNIT)
        assert session("blackbox")["state"] == "running"
        systemctl("start", FAILING, status=1)

        def found() -> list[Path]:
            return sorted((STATE / "incidents").glob("*-unit/incident.json"))

        wait_for(found, "an incident of the unit")
        systemctl("reset-failed", FAILING)
        systemctl("start", FAILING, status=1)

        def held_back() -> bool:
            told = {one["name"]: one for one in status_of()["incidents"]["triggers"]}["unit"]
            return bool(told["suppressed"]["cooldown"] == 1)

        wait_for(held_back, "a failure that is held back")
        (path,) = found()
        assert json.loads(path.read_text())["reason"] == f"the unit {FAILING} has failed"
    finally:
        (UNITS / FAILING).unlink()
        subprocess.run(["systemctl", "reset-failed"], check=True)
        systemctl("daemon-reload")
