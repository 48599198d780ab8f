# SPDX-License-Identifier: Apache-2.0
"""`run` and `record` as processes: start, what they tell to whom, and how they end."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.conftest import ROOT, cli_command, cli_environment
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER
from tests.support.patience import patient
from tests.support.recording import check_balance, result_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemons import Daemon
    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf

    Start = Callable[..., subprocess.Popen[str]]
    Run = Callable[..., subprocess.CompletedProcess[str]]
    Perfs = tuple[Perf, ...]

pytestmark = pytest.mark.usefixtures("tracefs")

BURST: Final = 5_000
SERIES_LIMIT: Final = 300
RECORDING: Final = "recording: 3 sessions, 0 degraded, 0 losing"
STATES: Final = ("running", "degraded", "stopped", "failed")
ESCAPE: Final = "\x1b[31mred"
ESCAPE_SHOWN: Final = r"\x1b[31mred"
ESCAPE_TOML: Final = r"\u001b[31mred"
TRACED: Final = f"""
[[session]]
name = "traced-{os.getpid()}"

[[session.source]]
kind = "tracefs"
events = ["{EVENT}"]
filter = "{FILTER}"
"""
CALLS: Final = ("-e", EVENT, "--filter", FILTER)
STATUS_FAILED: Final = 1
HANG_S: Final = patient(30)  # a second daemon that serves would run for ever
PESTER_S: Final = 0.005
_PTY_BYTES: Final = 65536


def _burst(generator: Generator, count: int = BURST) -> int:
    with generator.start("count", count=count, nr=NUMBER) as running:
        assert running.run()["events"] == count
    return count


def _default_config(directory: Path) -> Path:
    """Return the configuration that is installed, with its places in `directory`."""
    text = (ROOT / "config" / "collectord.toml").read_text()
    for key, default, value in (
        ("state_dir", "/var/lib/collectord", f"{directory}/state"),
        ("listen", "127.0.0.1:9590", "127.0.0.1:0"),
        ("socket", "/run/collectord/control.sock", f"{directory}/control.sock"),
    ):
        line = f'# {key} = "{default}"'
        assert text.count(line) == 1, line
        text = text.replace(line, f'{key} = "{value}"')
    path = directory / "collectord.toml"
    path.write_text(text)
    return path


def _documented_metrics() -> dict[str, str]:
    """Return the names and types of the table of docs/metrics.md."""
    rows = re.findall(
        r"^\| `(collectord_\w+)` \| (\w+) \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE
    )
    assert rows
    return dict(rows)


def _series(text: str) -> dict[str, float]:
    """Return the samples of a scrape by their names with labels."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert len(found) == len(lines), "a series twice"
    return found


@pytest.mark.vm
def test_default_configuration(
    tmp_path: Path, start_cli: Start, run_cli: Run, perfs: Perfs
) -> None:
    """The installed configuration runs: metrics, status and all sessions; its stop seals all."""
    state = tmp_path / "state"
    with daemons.running(start_cli, _default_config(tmp_path)) as daemon:
        assert f"READY=1\nSTATUS={RECORDING}" in daemon.notified
        text = daemon.metrics()
        types = dict(re.findall(r"^# TYPE (collectord_\w+) (\w+)$", text, re.MULTILINE))
        assert types == _documented_metrics()
        assert "_created" not in text
        series = _series(text)
        assert len(series) <= SERIES_LIMIT
        space = os.statvfs(tmp_path)
        share = space.f_blocks * space.f_frsize * 5 // 100
        assert series["collectord_store_limit_bytes"] == min(2 << 30, share)

        status = daemon.status()
        assert status["pid"] == daemon.pid
        assert {(s["name"], s["source"], s["state"]) for s in status["sessions"]} == {
            ("profile", "perf", "running"),
            ("exec", "perf", "running"),
            ("blackbox", "bpf", "running"),
        }
        code, answer = daemon.get("/v1/sessions/exec")
        assert (code, [s["name"] for s in answer["sessions"]]) == (200, ["exec"])
        assert answer["sessions"][0]["ledger_basis"] == "exact"
        code, answer = daemon.get("/v1/sessions/nobody")
        assert (code, answer["sessions"]) == (404, ["blackbox", "exec", "profile"])

        subprocess.run(["true"], check=True)  # an exec, a fork and an exit
        ended = daemon.stop()
        assert "STOPPING=1\nSTATUS=flushing" in daemon.read_notices()
    assert ended.status == 0, ended.log
    assert not (tmp_path / "control.sock").exists()
    assert daemons.left_open(state) == []
    segments = daemons.sealed(state)
    assert {path.parent.name for path in segments} == {"profile", "exec", "blackbox"}
    (execs,) = (path for path in segments if path.parent.name == "exec")
    ledger = daemons.manifest(execs)["ledger"]
    assert ledger["produced"] == ledger["stored"] >= 3
    assert run_cli("segments", "verify", state).returncode == 0
    for path in segments:
        for perf in perfs:
            assert len(perf.script(path)) >= daemons.manifest(path)["samples"]


def test_counters_begin_at_zero(tmp_path: Path, start_cli: Start, generator: Generator) -> None:
    """Every series is there before anything happened, at 0, and no series comes later."""
    with daemons.running(start_cli, daemons.write_config(tmp_path)) as daemon:
        # The cost is read at the first tick, which may come after READY.
        cost = "collectord_imposed_cpu_seconds_total{"
        daemons.wait_for(lambda: cost in daemon.metrics(), "the first reading of the cost")
        first = _series(daemon.metrics())
        names = '{session="calls",source="perf"'
        counters = {
            f"collectord_{name}_total{names}{more}}}"
            for name, more in (
                ("produced_records", ""),
                ("stored_records", ""),
                ("lost_records", ',stage="kernel_ring",reason="ring_full"'),
                ("lost_records", ',stage="kernel_ring",reason="dropped"'),
                ("lost_records", ',stage="staging",reason="quarantined"'),
                ("lost_records", ',stage="sink",reason="disk_full"'),
                ("lost_records", ',stage="sink",reason="dropped"'),
                ("overwritten_records", ""),
                ("throttles", ""),
                ("starved_passes", ""),
            )
        } | {
            f'collectord_segments_deleted_total{{reason="{reason}",session="calls",source="perf"}}'
            for reason in ("age", "quota", "free_space")
        }
        normal = {_sorted_labels(name): value for name, value in first.items()}
        assert {name: normal.get(_sorted_labels(name)) for name in counters} == dict.fromkeys(
            counters, 0
        )
        daemon.await_stored(_burst(generator))
        later = _series(daemon.metrics())
        assert later.keys() == first.keys()
        fallen = [k for k in first if "_total{" in k and later[k] < first[k]]
        assert not fallen
        assert later[f"collectord_stored_records_total{names}}}"] == BURST
        assert daemon.stop().status == 0


def _sorted_labels(series: str) -> tuple[str, ...]:
    name, _, labels = series.rstrip("}").partition("{")
    return (name, *sorted(filter(None, labels.split(","))))


def test_ready_means_counting(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """No event after READY is missed."""
    with daemons.running(start_cli, daemons.write_config(tmp_path)) as daemon:
        rings = [fd for fd in _fds(daemon) if "[perf_event]" in fd]
        assert rings
        made = _burst(generator)
        ended = daemon.stop()
    assert ended.status == 0
    segments = daemons.sealed(tmp_path / "state")
    assert daemons.manifest(segments[-1])["ledger"]["produced"] == made
    assert daemons.readable_samples(perfs, segments) == made


def test_no_ready_without_rings(tmp_path: Path, run_cli: Run) -> None:
    """A daemon whose events the kernel refuses never says READY, and leaves nothing."""
    config = daemons.write_config(tmp_path)
    config.write_text(config.read_text().replace(FILTER, "no_such_field == 1"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify.sock"))
        done = run_cli(
            "run", "--config", config, env={"NOTIFY_SOCKET": str(tmp_path / "notify.sock")}
        )
        assert done.returncode != 0
        assert "no_such_field" in done.stderr
        assert "Traceback" not in done.stderr
        while select.select([notify], [], [], 0)[0]:
            assert not notify.recv(4096).startswith(b"READY=1")
    assert done.stdout == ""
    assert not (tmp_path / "control.sock").exists()
    assert not (tmp_path / "state").exists() or daemons.left_open(tmp_path / "state") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signals(
    tmp_path: Path, start_cli: Start, *, generator: Generator, perfs: Perfs, number: signal.Signals
) -> None:
    """A stop signal costs nothing: what the rings still hold is flushed, sealed and balanced."""
    state = tmp_path / "state"
    config = daemons.write_config(tmp_path)
    config.write_text(config.read_text().replace('"100ms"', '"60s"'))  # nothing is flushed before
    with daemons.running(start_cli, config) as daemon:
        made = _burst(generator)
        ended = daemon.stop(number)
        assert "STOPPING=1\nSTATUS=flushing" in daemon.read_notices()
    assert ended.status == 0, ended.log
    assert [line["signal"] for line in ended.named("stop_requested")] == [number.name]
    assert {line["level"] for line in ended.events()} == {"info"}
    assert daemons.left_open(state) == []
    assert not (tmp_path / "control.sock").exists()
    (segment,) = daemons.sealed(state)
    ledger = daemons.manifest(segment)["ledger"]
    assert (ledger["produced"], ledger["stored"], ledger["unaccounted"]) == (made, made, 0)
    assert daemons.readable_samples(perfs, [segment]) == made


def _pester(process: subprocess.Popen[str], *numbers: signal.Signals) -> tuple[str, str]:
    """Send signals, some hundred a second, until the process has ended; gives what it printed."""
    with ThreadPoolExecutor(1) as reader:
        printed = reader.submit(process.communicate)
        try:
            while wait([printed], PESTER_S).not_done:
                for number in numbers:
                    process.send_signal(number)
        finally:  # the reader would wait for a process that does not end
            process.kill()
        return printed.result()


def test_other_signals_end_nothing(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """Hangups and strays leave the daemon running, and come to nothing in the midst of a stop."""
    others = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
    with daemons.running(start_cli, daemons.write_config(tmp_path)) as daemon:
        for number in others:
            daemon.process.send_signal(number)
        made = _burst(generator)
        daemon.await_stored(made)
        daemon.process.send_signal(signal.SIGTERM)
        _, log = _pester(daemon.process, *others)
        assert daemon.process.returncode == 0, log
    assert "reload_requested" in log
    # SIGUSR1 may have ended one.
    assert daemons.readable_samples(perfs, daemons.sealed(tmp_path / "state")) == made


def test_hangup_ends_a_recording(tmp_path: Path, start_cli: Start) -> None:
    """A closed terminal ends `record` as Ctrl-C does, strays end nothing, and all is sealed."""
    out = tmp_path / "out"
    # It would ignore a hangup that nohup had these tests ignore.
    prefix = ("env", "--default-signal=HUP")
    process = start_cli("record", "-a", *CALLS, "--output-dir", out, "--json", prefix=prefix)
    daemons.wait_for(lambda: list(out.glob("*.partial")), "a recording")
    process.send_signal(signal.SIGHUP)
    stdout, stderr = _pester(process, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
    assert process.returncode == 0, stderr
    assert result_of(stdout)["state"] == "stopped"
    assert daemons.left_open(out) == []


def test_a_command_has_the_default_signals(tmp_path: Path, run_cli: Run) -> None:
    """The signal settings of `record` do not reach COMMAND."""
    words = ("-o", tmp_path / "perf.data", "--", "sh", "-c", "kill -USR1 $$; exit 3")
    assert run_cli("record", *CALLS, *words).returncode == 128 + signal.SIGUSR1


@pytest.mark.parametrize("shared", ["control", "metrics"])
def test_second_daemon(
    tmp_path: Path,
    start_cli: Start,
    run_cli: Run,
    *,
    generator: Generator,
    perfs: Perfs,
    shared: str,
) -> None:
    """A second daemon with the same socket or port says so and fails; the first one goes on."""
    state = tmp_path / "state"
    second = tmp_path / "second"
    second.mkdir()
    with daemons.running(start_cli, daemons.write_config(tmp_path)) as daemon:
        made = _burst(generator)
        # Of the same state directory too: what the first one writes is not to be repaired.
        config = daemons.write_config(second, state)
        text = config.read_text()
        if shared == "control":
            place = str(tmp_path / "control.sock")
            text = text.replace(str(second / "control.sock"), place)
        else:
            found = re.search(r"http://([\d.]+:\d+)/metrics", daemon.announced)
            assert found
            place = found[1]
            text = text.replace("127.0.0.1:0", place)
        config.write_text(text)
        done = run_cli("run", "--config", config, timeout_s=HANG_S)
        assert done.returncode == STATUS_FAILED
        complaints = [line for line in done.stderr.splitlines() if line.startswith("collectord:")]
        assert len(complaints) == 1, done.stderr
        assert place in complaints[0]
        assert "Traceback" not in done.stderr
        assert done.stdout == ""

        made += _burst(generator)
        daemon.await_stored(made)
        now = daemon.session()
        assert (now["produced"], now["stored"], now["state"]) == (made, made, "running")
        assert daemon.metric("collectord_cpus_online") > 0
        assert daemon.stop().status == 0
    assert daemons.left_open(state) == []
    own = [p for p in daemons.sealed(state) if daemons.manifest(p)["samples"] == made]
    assert len(own) == 1
    assert daemons.readable_samples(perfs, own) == made


@pytest.mark.parametrize("shared", ["directory", "instance"])
def test_second_daemon_of_the_same_name(
    tmp_path: Path, start_cli: Start, run_cli: Run, generator: Generator, *, shared: str
) -> None:
    """A daemon whose session another one runs says what to change, before it opens anything."""
    second = tmp_path / "second"
    second.mkdir()
    config = daemons.write_config(tmp_path)
    state = tmp_path / "state" if shared == "directory" else second / "state"
    other = daemons.write_config(second, state)
    if shared == "instance":
        # The instance comes last: whatever is opened in the order of sessions is before it.
        for path in (config, other):
            path.write_text(path.read_text() + TRACED)
    with daemons.running(start_cli, config) as daemon:
        done = run_cli("run", "--config", other, timeout_s=HANG_S)
        assert done.returncode == STATUS_FAILED
        (complaint,) = done.stderr.splitlines()
        assert complaint.startswith("collectord: ")
        assert "rename the session" in complaint
        assert f"pid {daemon.pid}" in complaint
        assert ("state_dir" in complaint) == (shared == "directory")
        assert list(second.iterdir()) == [other]
        made = _burst(generator)
        daemon.await_stored(made)
        assert daemon.stop().status == 0


def test_port_in_use_leaves_nothing(tmp_path: Path, run_cli: Run) -> None:
    """A daemon that cannot serve its metrics has opened no ring and written no segment."""
    config = daemons.write_config(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        done = run_cli("run", "--config", config, timeout_s=HANG_S)
    assert done.returncode == STATUS_FAILED
    (complaint,) = done.stderr.splitlines()
    assert f"127.0.0.1:{port}" in complaint
    assert list(tmp_path.iterdir()) == [config]


def test_difference_from_the_running_daemon(
    tmp_path: Path, start_cli: Start, run_cli: Run
) -> None:
    """`check --diff` of its own file finds none; of a changed one it names what differs."""
    config = daemons.write_config(tmp_path)
    words = ("check", config, "--diff", "--socket", tmp_path / "control.sock")
    with daemons.running(start_cli, config) as daemon:
        same = run_cli(*words)
        assert (same.returncode, same.stdout) == (0, "the daemon runs this plan\n"), same.stderr
        digest = hashlib.sha256(config.read_bytes()).hexdigest()
        assert daemon.status()["config_sha256"] == digest
        config.write_text(config.read_text().replace('ring = "4MiB"', 'ring = "8MiB"'))
        other = run_cli(*words).stdout.splitlines()
        assert other[0] == "session calls (perf): changed"
        assert "  rings[0].requested_bytes: 4194304 -> 8388608" in other
        assert daemon.stop().status == 0


@pytest.mark.parametrize("place", ["state", "socket"])
def test_missing_places(tmp_path: Path, run_cli: Run, place: str) -> None:
    """A directory that cannot be had is one complaint with its path, and leaves nothing."""
    config = daemons.write_config(tmp_path)
    missing = "/proc/collectord" if place == "state" else f"{tmp_path}/run"
    old = tmp_path / ("state" if place == "state" else "control.sock")
    new = missing if place == "state" else f"{missing}/control.sock"
    config.write_text(config.read_text().replace(f'"{old}"', f'"{new}"'))
    done = run_cli("run", "--config", config, timeout_s=HANG_S)
    assert done.returncode == STATUS_FAILED
    (complaint,) = done.stderr.splitlines()
    assert missing in complaint
    assert list(tmp_path.iterdir()) == [config]


def test_json_log(tmp_path: Path, start_cli: Start, generator: Generator) -> None:
    """Without a terminal each line of the log is one JSON object on stderr, none on stdout."""
    with daemons.running(start_cli, daemons.write_config(tmp_path)) as daemon:
        _burst(generator)
        ended = daemon.stop()
    for line in ended.events():
        assert {"event", "level", "timestamp"} <= line.keys()
    (sealed,) = ended.named("segment_sealed")
    assert (sealed["session"], sealed["samples"]) == ("calls", BURST)
    assert "segment_sealed" not in daemon.announced + ended.stdout


def test_console_log_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal the log is plain text."""
    config = daemons.write_config(tmp_path)
    with ExitStack() as stack:
        ours, theirs = os.openpty()
        stack.callback(os.close, ours)
        try:
            process = stack.enter_context(
                subprocess.Popen(
                    cli_command("run", "--config", config),
                    cwd=tmp_path,
                    env=cli_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=theirs,
                    text=True,
                )
            )
        finally:
            os.close(theirs)
        stack.callback(process.kill)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("status"):
                break
        process.send_signal(signal.SIGINT)
        log = _read_terminal(ours)
        assert process.wait() == 0, log
    assert "stop_requested" in log
    assert "segment_sealed" in log
    assert "Traceback" not in log
    for line in log.splitlines():
        with pytest.raises(json.JSONDecodeError):
            json.loads(line)


def _read_terminal(fd: int) -> str:
    """Return all that comes until the other side is closed."""
    text = b""
    while True:
        try:
            part = os.read(fd, _PTY_BYTES)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return text.decode()
        text += part


def test_log_of_a_ring_in_trouble_is_limited() -> None:
    """A process that repeats a message a thousand times for each ring writes one line for each."""
    script = (
        "from collectord.cli import log\n"
        "log.configure()\n"
        "for n in range(1000):\n"
        "    log.get_logger().error('ring_quarantined', ring=f'cpu{n % 2}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=cli_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [json.loads(line)["ring"] for line in done.stderr.splitlines()] == ["cpu0", "cpu1"]


def _fds(daemon: Daemon) -> list[str]:
    """Return the process's descriptors, without sockets, which come and go with requests."""
    found = []
    for entry in Path(f"/proc/{daemon.pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue  # closed meanwhile
        if not target.startswith("socket:"):
            found.append(target)
    return found


def _threads(daemon: Daemon) -> int:
    return len(list(Path(f"/proc/{daemon.pid}/task").iterdir()))


def test_rotations_leak_nothing(tmp_path: Path, start_cli: Start, generator: Generator) -> None:
    """Threads and descriptors are as many after ten rotations as after the first ones."""
    state = tmp_path / "state"
    config = daemons.write_config(tmp_path, segment_bytes="256KiB")
    with daemons.running(start_cli, config) as daemon:
        made = _burst(generator)

        def quiet() -> bool:
            """Everything is written, and only the running and the next segment are open."""
            return (
                daemon.session()["stored"] == made
                and len(list(state.rglob("*.perf.data.partial"))) == 2
                and len(list(state.rglob("*.json.partial"))) == 2
            )

        daemons.wait_for(quiet, "the first rotations")
        before = _threads(daemon), len(_fds(daemon))
        sealed = len(daemons.sealed(state))
        # A burst makes one rotation at least, and more the faster the next files are prepared.
        while len(daemons.sealed(state)) < sealed + 10:
            made += _burst(generator)
            daemons.wait_for(quiet, "more rotations")
        # At most: a directory was maybe being read when they were counted before.
        daemons.wait_for(
            lambda: _threads(daemon) <= before[0] and len(_fds(daemon)) <= before[1],
            f"no more than {before}",
        )
        assert daemon.stop().status == 0


def test_foreign_text_is_escaped(tmp_path: Path, run_cli: Run, generator: Generator) -> None:
    """Escape sequences in names and paths reach no terminal."""
    out = tmp_path / ESCAPE
    program = tmp_path / f"generator-{ESCAPE}"
    program.symlink_to(generator.program)
    command = [str(program), *generator.command("count", count=BURST, nr=NUMBER)[1:]]
    shown = [run_cli("record", *CALLS, "--output-dir", out, "--", *command)]
    shown += [run_cli("segments", action, out) for action in ("list", "verify")]
    assert [done.returncode for done in shown] == [0, 0, 0]
    shown.append(run_cli("record", *CALLS, "--output-dir", out, "--", tmp_path / f"no-{ESCAPE}"))
    config = daemons.write_config(tmp_path, out)
    text = config.read_text().replace(ESCAPE, ESCAPE_TOML)
    for content in (text, text.replace("segment_bytes", f'"{ESCAPE_TOML}"')):
        config.write_text(content)
        shown.append(run_cli("check", config))
    for done in shown:
        text = done.stdout + done.stderr
        assert "\x1b" not in text
        assert ESCAPE_SHOWN in text


def test_degraded_session(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """If an optional source is absent, its session runs without it, and reports that."""
    config = daemons.write_config(tmp_path)
    with config.open("a") as file:
        file.write(
            '\n[[session.source]]\nkind = "perf"\nwhen = "present"\n'
            'events = ["absent_pmu/config=1/"]\n'
        )
    with daemons.running(start_cli, config) as daemon:
        assert re.search(r"^ +lacks .*absent_pmu", daemon.announced, re.MULTILINE)
        made = _burst(generator)
        daemon.await_stored(made)
        now = daemon.session()
        assert now["state"] == "degraded"
        assert any("absent_pmu" in reason for reason in now["degraded"])
        state = 'collectord_session_state{session="calls",source="perf",state="%s"}'
        told = {name: daemon.metric(state % name) for name in STATES}
        assert told == {name: float(name == "degraded") for name in STATES}
        assert daemon.stop().status == 0
    assert daemons.readable_samples(perfs, daemons.sealed(tmp_path / "state")) == made


def test_record_until_interrupted(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """Without a command `record` goes on until Ctrl-C, and then gives its balance."""
    out = tmp_path / "out"
    process = start_cli("record", "-a", *CALLS, "--output-dir", out, "--json")
    made = 0

    def begun() -> bool:
        """Return whether a record of ours is in the file."""
        nonlocal made
        made += _burst(generator, 100)
        return any(
            NUMBER.to_bytes(8, "little") in path.read_bytes()
            for path in out.glob("*.perf.data.partial")
        )

    daemons.wait_for(begun, "a recording")
    made += _burst(generator)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert (process.returncode, stderr) == (0, "")
    session = result_of(stdout)
    check_balance(session, perfs)
    assert BURST < session["stored"] <= made
    assert session["state"] == "stopped"


def test_record_for_a_duration(run_cli: Run, tmp_path: Path, perfs: Perfs) -> None:
    """With a duration `record` ends by itself."""
    out = tmp_path / "out"
    words = ("-a", *CALLS, "--output-dir", out, "--json", "--duration", "200ms")
    done = run_cli("record", *words)
    assert (done.returncode, done.stderr) == (0, "")
    check_balance(result_of(done.stdout), perfs, generated=0)


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 128 + signal.SIGTERM)],
    ids=["0", "3", "SIGTERM"],
)
def test_record_passes_the_status_on(
    run_cli: Run, tmp_path: Path, script: str, status: int
) -> None:
    """`record -- COMMAND` has the command's status, and its balance all the same."""
    out = tmp_path / "out"
    done = run_cli(
        "record", *CALLS, "--output-dir", out, "--json", "--", "sh", "-c", f"echo out; {script}"
    )
    assert (done.returncode, done.stderr) == (status, "out\n")
    session: dict[str, Any] = result_of(done.stdout)
    assert (session["produced"], session["unaccounted"]) == (0, 0)
    assert daemons.left_open(out) == []
