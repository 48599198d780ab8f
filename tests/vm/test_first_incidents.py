# SPDX-License-Identifier: Apache-2.0
"""The installed service: troubles make incidents by themselves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import bpf_load
from tests.support.daemons import wait_for
from tests.support.disks import STALLED_BYTES, stalling_disk
from tests.support.patience import patient
from tests.vm.service import (
    CONFIG,
    STATE,
    UNIT,
    WITHOUT_BPF,
    journal,
    session,
    shown,
    status_of,
    systemctl,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM: Final = "/usr/local/bin/collectord"
INSTALLED: Final = Path("/opt/collectord")
UNITS: Final = Path("/run/systemd/system")
FAILING: Final = "failing.service"
# The installed triggers, which never fire so: a guest stalls while the service starts.
INSTALLED_OFF: Final = "".join(
    f'[[trigger]]\nname = "{name}"\nkind = "unit"\nunit = "none"\n'
    for name in ("io-stall", "memory-stall", "oom")
)
# The installed triggers, but one alone has answers, as these take an emulated processor minutes;
# and a guest that has stalled by itself has another incident soon.
TRIGGERS: Final = """
[[trigger]]
name = "io-stall"
kind = "pressure"
pressure = "io some 1s/2s"
cooldown = "1m"
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
MEMORY_BYTES: Final = 32 << 20
# Keeps a processor busy, under a name of its own.
BUSY: Final = """
open("/proc/self/comm", "w").write("busy-one")
print("named", flush=True)
while True: pass
"""
SAMPLES: Final = 20  # of the load, about a second's


@pytest.fixture
def with_answers() -> Iterator[None]:
    """Give the installed program what `pip install 'collectord[query,symbols]'` would."""
    (own,) = INSTALLED.glob("lib/python3*/site-packages")
    (of_tests,) = (path for path in map(Path, sys.path) if path.name == "site-packages")
    extras = own / "extras.pth"
    extras.write_text(f"{of_tests}\n")
    yield
    extras.unlink()


@contextmanager
def explained() -> Iterator[None]:
    """Print what the service has logged and noted if the block fails, also for lack of time."""
    try:
        yield
    except BaseException:
        print(journal("--output=short-precise"))  # noqa: T201
        for note in notes():
            moment = note.pop("moment")
            blocked = [(one["comm"], one["pid"]) for one in moment["blocked"]]
            print(json.dumps(note, indent=1), blocked, moment["devices"])  # noqa: T201
        with suppress(OSError):
            print(json.dumps(status_of()["incidents"], indent=1))  # noqa: T201
        raise


def said(*words: str, status: int = 0) -> str:
    """Return what the installed program prints, about the service's own state."""
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == status, done
    assert "\x1b" not in done.stdout
    return done.stdout


def start(triggers: str, flight_recorder: str = "tracefs") -> None:
    """Start the service, and give it triggers once it records."""
    CONFIG.write_text(INSTALLED_OFF)
    systemctl("start", UNIT)
    for name, source in (("blackbox", flight_recorder), ("profile", "perf"), ("exec", "perf")):
        told = session(name)
        assert (told["state"], told["source"]) == ("running", source), told
    CONFIG.write_text(triggers)
    systemctl("reload", UNIT)


def notes() -> list[dict[str, Any]]:
    """Return the notes of all incidents, the oldest first."""
    found = sorted((STATE / "incidents").glob("*/incident.json"))
    return [json.loads(path.read_text()) for path in found]


def reasons(note: dict[str, Any]) -> list[str]:
    """Return what has made an incident, and what has come while it was made."""
    return [f"{note['trigger']}: {note['reason']}", *note["also"]]


def noted(reason: str) -> list[dict[str, Any]]:
    """Return the notes of incidents with a reason of which this is the beginning."""
    return [note for note in notes() if any(one.startswith(reason) for one in reasons(note))]


def await_answers(incident: str, last: str) -> dict[str, Any]:
    """Wait for the answers of an incident, of which this is the last one; return its note."""

    def found() -> list[dict[str, Any]]:
        return [
            note
            for note in notes()
            if note["id"] == incident and last in {one["name"] for one in note["answers"]}
        ]

    wait_for(found, f"the answer {last} of {incident}")
    (note,) = found()
    assert [one["problem"] for one in note["answers"]] == [""] * len(note["answers"]), note
    summary = STATE / "incidents" / incident / "summary.txt"
    wait_for(lambda: f"answer {last}" in summary.read_text(), "the summary of all answers")
    return note


@contextmanager
def busy_one() -> Iterator[None]:
    """Keep a processor busy, from before the first samples of it."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"named\n"
            before = session("profile")["stored"]
            wait_for(lambda: session("profile")["stored"] >= before + SAMPLES, "samples of it")
            yield
        finally:
            process.kill()


@pytest.mark.usefixtures("service", "with_answers")
@explained()
def test_a_disk_that_stalls(tmp_path: Path) -> None:
    """The incident names process and device, `why io` agrees, a flame graph shows the load.

    The incident is made while the request is in flight; once it has ended it is the slowest.

    The flight recorder is the BPF program, as on each host that has bcc. The ledger of a session
    that streams says that its time is complete.
    """
    WITHOUT_BPF.unlink()

    def stalled() -> list[dict[str, Any]]:
        return [
            note
            for note in noted("io-stall: tasks waited for io more than 1 s of 2 s")
            if "dd" in {one["comm"] for one in note["moment"]["blocked"]}
        ]

    with stalling_disk(tmp_path / "disk") as stall:
        start(TRIGGERS.format(io="", oom="answers = []"), "bpf")
        with busy_one():
            stall(lambda: wait_for(stalled, "an incident of the stall"))
        said("snapshot", "blackbox")
    (made, *_) = stalled()
    note = await_answers(made["id"], "flame")
    assert [one["name"] for one in note["answers"]] == ["why-io", "flame"]
    moment = note["moment"]
    (writer,) = (one["pid"] for one in moment["blocked"] if one["comm"] == "dd")
    why = " ".join(said("why", "io").split())
    found = re.search(rf"dd \({writer}\): W\S* of {STALLED_BYTES} bytes on device (\S+),", why)
    assert found, why
    (name,) = (one["name"] for one in moment["devices"] if one["number"] == found[1])
    told = " ".join(said("incident", "show", made["id"]).split())
    assert f"incident {made['id']}" in told
    assert f"{name} ({found[1]}) 1" in told
    assert f"{writer} dd D" in told
    flame = tmp_path / "load.svg"
    said("flame", "--since", "-10m", "-o", str(flame))
    assert "busy-one" in flame.read_text()
    assert "busy-one" in (STATE / "incidents" / made["id"] / "flame.svg").read_text()
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()
    assert "exec, perf: complete" in said("ledger", "--session", "exec")


@pytest.mark.usefixtures("service", "with_answers")
@explained()
def test_a_process_that_is_killed_for_memory() -> None:
    """The limit of its group is passed, and the incident names it."""
    start(TRIGGERS.format(io="answers = []", oom='answers = ["oom-kills"]'))
    reason = "oom: the kernel killed 1 process for lack of memory"
    with (
        bpf_load.memory_cgroup(f"collectord-test-{os.getpid()}", MEMORY_BYTES) as cgroup,
        bpf_load.eater(cgroup, "hungry-one", 2 * MEMORY_BYTES, score=1000) as victim,
    ):
        assert victim.wait(patient(60)) == -signal.SIGKILL
        wait_for(lambda: noted(reason), "an incident of the kill")
    (made,) = noted(reason)
    await_answers(made["id"], "oom-kills")
    _, _, answer = said("incident", "show", made["id"]).partition("answer oom-kills")
    assert re.search(rf"\b{victim.pid} +hungry-one\b", answer), answer
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()


@pytest.mark.usefixtures("service")
def test_a_unit_that_fails() -> None:
    """OnFailure= makes one incident of it, and the second failure is held back and counted."""
    CONFIG.write_text(
        INSTALLED_OFF
        + '[[trigger]]\nname = "unit"\nkind = "unit"\nunit = "failing*"\nanswers = []\n'
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
