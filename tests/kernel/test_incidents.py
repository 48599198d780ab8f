# SPDX-License-Identifier: Apache-2.0
"""Incidents of a real daemon: by hand, by signal, and by triggers that real loads fire."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.config.pressure_limit import PressureLimit
from collectord.daemon.incidents.stall_watch import StallWatch
from collectord.errors import MissingPrivilege
from collectord.kernel.linux import LinuxKernel
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER
from tests.support.disks import stalling_disk
from tests.support.features import require
from tests.support.openers import opening
from tests.support.patience import patient
from tests.support.recording import stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from email.message import Message
    from pathlib import Path

    from tests.support.daemons import Daemon
    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf

    Start = Callable[..., subprocess.Popen[str]]
    Cli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

CPUS: Final = len(LinuxKernel().online_cpus())
BOX: Final = f"""
[[session]]
name = "box"
mode = "flight-recorder"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "1MiB"
"""
# One page, which a burst fills long before anybody reads it.
TINY: Final = (
    BOX.replace('"box"', '"tiny"').replace('mode = "flight-recorder"', "").replace("1MiB", "4KiB")
)
LOSS: Final = """
[[trigger]]
name = "loss"
kind = "loss"
session = "tiny"
answers = []
"""
# Shows a name that clears the screen, and keeps a CPU busy.
LOUD: Final = r"""
import ctypes
ctypes.CDLL(None).prctl(15, b"\x1b[2J\x07loud", 0, 0, 0)
print("named", flush=True)
while True:
    pass
"""


def incidents(tmp_path: Path, *, trigger: str = "") -> list[Path]:
    """Return the finished incidents, oldest first, of one trigger or of all."""
    notes = (tmp_path / "state/incidents").glob(f"*-{trigger}*/incident.json")
    return sorted(note.parent for note in notes)


def note_of(incident: Path) -> dict[str, Any]:
    """Return the note of an incident."""
    return dict(json.loads((incident / "incident.json").read_text()))


def await_incident(tmp_path: Path, trigger: str) -> Path:
    """Wait for the first incident of a trigger."""
    daemons.wait_for(
        lambda: len(incidents(tmp_path, trigger=trigger)) > 0, f"an incident of {trigger}"
    )
    return incidents(tmp_path, trigger=trigger)[0]


@contextmanager
def loud() -> Iterator[subprocess.Popen[str]]:
    """Run a process with a harmful name that keeps a CPU busy."""
    words = [sys.executable, "-c", LOUD]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "named\n"
            yield process
        finally:
            process.kill()


def burst(generator: Generator, count: int) -> None:
    """Make so many calls on one CPU."""
    with generator.start("count", count=count, nr=NUMBER, cpu=0) as load:
        load.run()


def overfill(daemon: Daemon, generator: Generator) -> None:
    """Make more calls than a page holds records of, while the daemon stands still."""
    with stopped(daemon.process):
        burst(generator, 5000)


def triggers(daemon: Daemon) -> dict[str, dict[str, Any]]:
    """Return the status of all triggers by name."""
    return {one["name"]: one for one in daemon.status()["incidents"]["triggers"]}


def test_an_incident_by_hand(
    tmp_path: Path,
    start_cli: Start,
    run_cli: Cli,
    generator: Generator,
    perfs: tuple[Perf, ...],
) -> None:
    """It has the recorder's records, the host and its processes, and can be shown and exported."""
    config = daemons.write_sessions(tmp_path, BOX)
    socket = tmp_path / "control.sock"
    with daemons.running(start_cli, config) as daemon:
        burst(generator, 30)
        with loud() as process:
            words = ("--socket", socket, "--reason", "slow \x1b[2J page")
            made = run_cli("incident", "trigger", *words)
        assert made.returncode == 0, made.stderr
        (incident,) = incidents(tmp_path)
        assert made.stdout.splitlines()[0] == f"made {incident.name}"
        # A second one comes at once: no limit applies, and each record is in one of them.
        burst(generator, 20)
        assert daemon.post("/v1/incident", {})["snapshots"][0]["samples"] == 20
        daemons.wait_for((incident / "summary.txt").exists, "a summary")
        daemons.wait_for(lambda: note_of(incident)["answers"], "an answer")
        status = daemon.status()["incidents"]
        assert (status["kept"], status["failed"]) == (2, 0)
        assert triggers(daemon)["manual"]["made"] == 2
        assert daemon.metric('collectord_incidents_total{trigger="manual"}') == 2
        assert daemon.stop().complaints() == []
    note = note_of(incident)
    assert (note["trigger"], note["kind"]) == ("manual", "request")
    assert [one["samples"] for one in note["snapshots"]] == [30]
    (segment,) = incident.glob("box/*.perf.data")
    assert segment.samefile(tmp_path / "state/box" / segment.name)
    for perf in perfs:
        assert perf.samples([segment]) == 30
    assert daemons.manifest(segment)["snapshot"]["trigger"] == "incident"
    assert process.pid in {one["pid"] for one in note["moment"]["busiest"]}
    assert len(note["moment"]["load"]) == 3
    shown = run_cli("incident", "show", incident.name, "--state-dir", tmp_path / "state")
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout + made.stdout
    assert "\x07" not in shown.stdout
    assert r"\x1b[2J\x07loud" in shown.stdout
    assert r"reason    slow \x1b[2J page" in shown.stdout
    assert "\x1b" not in (incident / "summary.txt").read_text()
    out = tmp_path / "out.tar"
    done = run_cli(
        "incident", "export", incident.name, "-o", out, "--state-dir", tmp_path / "state"
    )
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(["tar", "tf", out], capture_output=True, text=True, check=True).stdout
    assert f"{incident.name}/box/{segment.name}\n" in listed


PROFILE: Final = """
[[session]]
name = "profile"

[[session.source]]
kind = "perf"
events = ["cpu-clock"]
frequency = 97
call_graph = "fp"
"""


def asked(daemon: Daemon, path: str) -> tuple[Message, bytes]:
    """Return head and content of a page on the metrics address."""
    connection = HTTPConnection(*daemon.metrics_address, timeout=daemons.PATIENCE_S)
    connection.request("GET", path)
    with closing(connection), connection.getresponse() as answer:
        return answer.headers, answer.read()


def drawn_on_page(daemon: Daemon, name: str) -> bool:
    """Whether the page has the flame graph of an incident."""
    told = json.loads(asked(daemon, "/overview.json")[1])["incidents"]
    return any(one["is_drawn"] for one in told if one["id"] == name)


def test_the_load_before_it_is_drawn(tmp_path: Path, start_cli: Start) -> None:
    """A flame graph of what other sessions have sampled is in it, and the page has it too."""
    config = daemons.write_sessions(tmp_path, BOX + PROFILE)
    with daemons.running(start_cli, config) as daemon:
        with loud():
            before = daemon.session("profile")["stored"]
            daemons.wait_for(lambda: daemon.session("profile")["stored"] > before + 50, "samples")
            name = daemon.post("/v1/incident", {})["incident"]
        incident = tmp_path / "state/incidents" / name
        daemons.wait_for(lambda: note_of(incident)["answers"], "an answer")
        (answer,) = note_of(incident)["answers"]  # the recorder has nothing to answer from
        assert (answer["name"], answer["problem"]) == ("flame", "")
        drawn = (incident / "flame.svg").read_bytes()
        assert rb"\x1b[2J\x07loud" in drawn
        assert b"\x1b" not in drawn
        assert b"wrote 0 " not in (incident / answer["file"]).read_bytes()
        daemons.wait_for(lambda: drawn_on_page(daemon, name), "the page's incident")
        headers, page = asked(daemon, f"/incidents/{name}/flame.svg")
        assert (headers["Content-Type"].split(";")[0], page) == ("image/svg+xml", drawn)
        assert "sandbox" in headers["Content-Security-Policy"]
        assert f"incident  {name}" in asked(daemon, f"/incidents/{name}/summary")[1].decode()
        assert daemon.stop().status == 0


def test_a_request_that_has_not_ended_has_a_device(tmp_path: Path, start_cli: Start) -> None:
    """The incident names its process and its device, although it has no record of an end."""
    require("loop devices")
    config = daemons.write_sessions(tmp_path, BOX)
    with (
        daemons.running(start_cli, config) as daemon,
        stalling_disk(tmp_path / "disk", patient(1)) as stall,
        ThreadPoolExecutor(1) as pool,
    ):
        stalled = pool.submit(stall)

        def is_named() -> bool:
            daemon.post("/v1/incident", {})
            return stalled.done() or _names(note_of(incidents(tmp_path)[-1])["moment"])

        daemons.wait_for(is_named, "a request in flight")
        stalled.result()
        assert daemon.stop().status == 0
    moments = [note_of(one)["moment"] for one in incidents(tmp_path)]
    assert any(map(_names, moments)), moments


def _names(moment: dict[str, Any]) -> bool:
    """Whether a process `dd` waits, and a loop device has a request."""
    return "dd" in {one["comm"] for one in moment["blocked"]} and any(
        one["name"].startswith("loop") for one in moment["devices"]
    )


def test_a_signal_makes_one(tmp_path: Path, start_cli: Start, generator: Generator) -> None:
    """SIGUSR2 stores all recorders as ever, and it is an incident."""
    with daemons.running(start_cli, daemons.write_sessions(tmp_path, BOX)) as daemon:
        burst(generator, 10)
        daemon.process.send_signal(signal.SIGUSR2)
        incident = await_incident(tmp_path, "signal")
        assert daemon.stop().status == 0
    (segment,) = incident.glob("box/*.perf.data")
    assert daemons.manifest(segment)["snapshot"]["trigger"] == "signal"


def await_held_back(daemon: Daemon, generator: Generator, more_than: int) -> None:
    """Lose records until the trigger was held back more often."""

    def held_back() -> bool:
        overfill(daemon, generator)
        return bool(triggers(daemon)["loss"]["suppressed"]["cooldown"] > more_than)

    daemons.wait_for(held_back, "a trigger that is held back")


def test_a_loss_fires_and_the_next_daemon_knows(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """A ring that overflows makes one incident; others are held back, also after a restart."""
    config = daemons.write_sessions(tmp_path, BOX + TINY + LOSS)
    with daemons.running(start_cli, config) as daemon:
        overfill(daemon, generator)
        incident = await_incident(tmp_path, "loss")
        note = note_of(incident)
        assert note["reason"].startswith("tiny lost ")
        assert "kernel_ring/ring_full" in note["reason"]
        assert [one["session"] for one in note["snapshots"]] == ["box"]
        await_held_back(daemon, generator, 0)
        assert daemon.stop().status == 0
    with daemons.running(start_cli, config) as daemon:
        before = triggers(daemon)["loss"]
        assert (before["made"], before["suppressed"]["cooldown"] > 0) == (1, True)
        await_held_back(daemon, generator, before["suppressed"]["cooldown"])
        held = 'collectord_incidents_suppressed_total{cause="cooldown",trigger="loss"}'
        assert daemon.metric(held) > before["suppressed"]["cooldown"]
        assert daemon.status()["incidents"]["kept"] == 1
        assert daemon.stop().status == 0
    assert incidents(tmp_path) == [incident]


PRESSURE: Final = """
[[trigger]]
name = "{name}"
kind = "pressure"
pressure = "cpu some {limit}"
answers = []
cooldown = "1h"
"""


def test_pressure_fires(tmp_path: Path, start_cli: Start) -> None:
    """More processes than CPUs wait for each other, and the kernel says so."""
    require("pressure")
    text = PRESSURE.format(name="cpu", limit="20ms/2s")
    with daemons.running(start_cli, daemons.write_sessions(tmp_path, BOX + text)) as daemon:
        with spinning():
            incident = await_incident(tmp_path, "cpu")
        assert triggers(daemon)["cpu"]["trouble"] == ""
        assert daemon.metric('collectord_trigger_degraded{trigger="cpu"}') == 0
        assert daemon.stop().status == 0
    note = note_of(incident)
    assert note["reason"] == "tasks waited for cpu more than 0.02 s of 2 s"
    assert note["moment"]["runnable"]


class Refusing(LinuxKernel):
    """A kernel that does not watch pressure for this process."""

    def open_pressure(self, limit: PressureLimit) -> int:
        """Refuse it."""
        raise MissingPrivilege(f"the kernel does not watch {limit}", need="CAP_SYS_RESOURCE")


@contextmanager
def spinning() -> Iterator[None]:
    """Run one process more than there are CPUs."""
    spinners = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(CPUS + 1)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def test_pressure_is_looked_at_where_the_kernel_refuses() -> None:
    """The daemon finds the same by the kernel's figures, and says that it looks itself."""
    require("pressure")
    limit = PressureLimit.parse("cpu some 20ms/500ms")
    watch = StallWatch(limit, Refusing(), lambda _reason: None)
    assert "CAP_SYS_RESOURCE" in watch.trouble
    found = [watch.poll()]  # it has nothing to compare with

    def is_found() -> bool:
        found.append(watch.poll())
        return bool(found[-1])

    assert found == [""]
    with spinning():
        daemons.wait_for(is_found, "a stall")
    assert re.fullmatch(r"tasks waited for cpu \S+ s of \S+ s", found[-1])
    assert watch.poll() == ""
    watch.close()


def test_the_opener_has_it_watched_where_the_kernel_refuses(
    tmp_path: Path, start_cli: Start
) -> None:
    """The daemon gets a descriptor of each limit in the opener's configuration, and no other."""
    require("pressure")
    place = tmp_path / "opener.sock"
    config = daemons.write_sessions(tmp_path, PRESSURE.format(name="cpu", limit="20ms/2s"))
    config.write_text(config.read_text().replace("[daemon]", f'[daemon]\nopener = "{place}"'))
    told: list[str] = []

    async def scenario() -> None:
        limits = [PressureLimit.parse(f"cpu some {text}") for text in ("20ms/2s", "30ms/2s")]
        watch, other = (StallWatch(one, Refusing(), told.append, str(place)) for one in limits)
        assert watch.trouble == ""
        assert "no trigger of the opener's configuration has this limit" in other.trouble
        with spinning():
            while not told:  # noqa: ASYNC110 - the kernel reports it
                await asyncio.sleep(0.01)
        watch.close()

    with opening(start_cli, config):
        asyncio.run(asyncio.wait_for(scenario(), daemons.PATIENCE_S))
    assert told[0] == "tasks waited for cpu more than 0.02 s of 2 s"


def test_a_unit_has_limits(tmp_path: Path, start_cli: Start, run_cli: Cli) -> None:
    """The first failure makes an incident, the second none; a unit without a trigger is told."""
    text = '[[trigger]]\nname = "web"\nkind = "unit"\nunit = "nginx*"\nanswers = []\n'
    config = daemons.write_sessions(tmp_path, BOX + text)
    words = ("incident", "trigger", "--socket", tmp_path / "control.sock", "--unit")
    with daemons.running(start_cli, config) as daemon:
        assert run_cli(*words, "nginx.service").stdout.startswith("made ")
        assert "held back (cooldown)" in run_cli(*words, "nginx.service").stdout
        assert run_cli(*words, "other.service").returncode == 2
        assert daemon.stop().status == 0
    (incident,) = incidents(tmp_path)
    assert note_of(incident)["reason"] == "the unit nginx.service has failed"


EVENTS: Final = f"""
[[session]]
name = "calls"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "id == {NUMBER + 1}"

[[trigger]]
name = "calls"
kind = "event"
session = "calls"
count = 50
answers = []
"""


def test_events_of_a_session_make_one(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """So many within a flush interval do; the ledger has their number, and fewer do not."""
    config = daemons.write_sessions(tmp_path, BOX + EVENTS)
    with daemons.running(start_cli, config) as daemon:
        for number in range(1, 4):
            with generator.start("count", count=10, nr=NUMBER + 1, cpu=0) as load:
                load.run()
            daemon.await_stored(10 * number)
        assert triggers(daemon)["calls"]["made"] == 0
        with stopped(daemon.process), generator.start("count", count=60, nr=NUMBER + 1) as load:
            load.run()
        incident = await_incident(tmp_path, "calls")
        assert daemon.stop().status == 0
    assert re.fullmatch(
        r"[5-9]\d events of calls came within a flush interval", note_of(incident)["reason"]
    )


COUNTED: Final = """
[[session]]
name = "cache"

[[session.source]]
kind = "bpf"
program = "cachestat"
when = "always"

[[trigger]]
name = "cache"
kind = "event"
session = "cache"
metric = "cache_pages_{counter}"
count = 2000
answers = []
"""
PAGES: Final = 4096


@pytest.mark.usefixtures("bcc")
def test_a_count_in_a_map_makes_one(tmp_path: Path, start_cli: Start) -> None:
    """A program that records nothing counts what it is for; no other metric has that name."""
    require("BPF")
    text = COUNTED.format(counter="added_total")
    with daemons.running(start_cli, daemons.write_sessions(tmp_path, BOX + text)) as daemon:
        assert triggers(daemon)["cache"]["trouble"] == ""

        def is_made() -> bool:
            with (tmp_path / "pages").open("wb") as file:
                file.write(bytes(PAGES << 12))
            return bool(incidents(tmp_path, trigger="cache"))

        daemons.wait_for(is_made, "an incident of a count")
        incident = await_incident(tmp_path, "cache")
        daemons.write_sessions(tmp_path, BOX + COUNTED.format(counter="other_total"))
        daemon.post("/v1/reload", {})
        daemons.wait_for(lambda: triggers(daemon)["cache"]["trouble"], "what is wrong with it")
        assert daemon.stop().status == 0
    assert note_of(incident)["reason"].startswith("cache_pages_added_total of cache has risen by ")


def test_incidents_are_limited(tmp_path: Path, start_cli: Start) -> None:
    """The oldest goes; a reload changes the limit and the triggers."""
    config = daemons.write_sessions(tmp_path, BOX + "[incidents]\nkeep = 2\n")
    with daemons.running(start_cli, config) as daemon:
        names = [daemon.post("/v1/incident", {})["incident"] for _ in range(3)]
        assert [one.name for one in incidents(tmp_path)] == names[1:]
        assert daemon.metric("collectord_incidents_deleted_total") == 1
        daemons.write_sessions(
            tmp_path, BOX + LOSS.replace("tiny", "box") + "[incidents]\nkeep = 1\n"
        )
        daemon.post("/v1/reload", {})
        assert "loss" in triggers(daemon)
        last = daemon.post("/v1/incident", {})["incident"]
        assert [one.name for one in incidents(tmp_path)] == [last]
        assert daemon.stop().status == 0


FROZEN: Final = (
    BOX.replace(
        'mode = "flight-recorder"',
        f'mode = "flight-recorder"\nfreeze_on = "{EVENT}"\nfreeze_filter = "id == {NUMBER + 1}"',
    )
    + '[[trigger]]\nname = "frozen"\nkind = "freeze"\nsession = "box"\nanswers = []\n'
)


def test_a_frozen_recorder_makes_one(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """The records up to the event are in it, though the freeze itself has stored them."""
    with daemons.running(start_cli, daemons.write_sessions(tmp_path, FROZEN)) as daemon:
        burst(generator, 40)
        with generator.start("count", count=1, nr=NUMBER + 1, cpu=0) as load:
            load.run()
        incident = await_incident(tmp_path, "frozen")
        assert daemon.stop().status == 0
    note = note_of(incident)
    frozen, *_ = note["snapshots"]
    assert (frozen["trigger"], frozen["samples"]) == ("freeze", 41)
    first = frozen["segments"][0].rpartition("/")[2]
    assert f"box/{first}" in note["files"]


def test_a_full_ring_makes_one(tmp_path: Path, start_cli: Start, generator: Generator) -> None:
    """A ring that is fuller than `fill`, rounded up, when it is drained; nothing need be lost."""
    # The drain is woken at a quarter.
    text = '[[trigger]]\nname = "full"\nkind = "ring-fill"\nfill = "15%"\nanswers = []\n'
    config = daemons.write_sessions(tmp_path, BOX + TINY + text)
    with daemons.running(start_cli, config) as daemon:
        overfill(daemon, generator)
        incident = await_incident(tmp_path, "full")
        assert daemon.stop().status == 0
    assert note_of(incident)["reason"].startswith("rings of tiny were above 20%")


def test_a_delay(tmp_path: Path, start_cli: Start, generator: Generator) -> None:
    """The snapshot comes after it; others that fire meanwhile are named, with their answers."""
    more = LOSS.replace('"loss"\nkind', '"more"\nkind')
    text = LOSS + 'delay = "500ms"\n' + more.replace("= []", '= ["cpu-share"]')
    config = daemons.write_sessions(tmp_path, BOX + TINY + text)
    with daemons.running(start_cli, config) as daemon:
        overfill(daemon, generator)
        incident = await_incident(tmp_path, "loss")
        assert triggers(daemon)["more"]["made"] == 0
        assert triggers(daemon)["more"]["suppressed"]["busy"] > 0
        daemons.wait_for(lambda: note_of(incident)["answers"], "the answer")
        assert daemon.stop().status == 0
    note = note_of(incident)
    assert note["taken_ns"] - note["fired_ns"] >= 500_000_000
    assert note["also"][0].startswith("more: tiny lost ")
    assert [one["name"] for one in note["answers"]] == ["cpu-share"]
