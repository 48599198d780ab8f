# SPDX-License-Identifier: Apache-2.0
"""A daemon under test: its configuration, its reports, and its end."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.control import client
from collectord.model import INCIDENTS
from collectord.session.loss_watch import LOSING_BEGAN, LOSING_ENDED
from collectord.sink import chain_log
from collectord.sink.covered_note import PREFIX
from tests.support.patience import patient
from tests.support.perf_tools import complaints, in_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.perf_tools import Perf

# A system call that nobody makes but the generators of this run, as are the seven that follow.
NUMBER: Final = 1_000_000 + 8 * os.getpid()
EVENT: Final = "raw_syscalls:sys_enter"
FILTER: Final = f"id == {NUMBER}"
# A hang is a failure, and not a slow machine.
PATIENCE_S: Final = patient(60)
_LOOK_S: Final = patient(0.01)  # a look takes long where processors are emulated
_CONTROL: Final = "control.sock"
_BESIDE: Final = re.compile(r"\.(\d+\.map|modules)\.gz(\.new)?$")
_METRICS: Final = re.compile(r"^metrics +http://(\S+):(\d+)/metrics$", re.MULTILINE)


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Poll until `condition` is true.

    Raises:
        AssertionError: it never became true.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(_LOOK_S)


def write_sessions(
    directory: Path,
    sessions: str,
    *,
    state: Path | None = None,
    flush: str = "100ms",
    chunk: str = "128KiB",
    staging: str = "16MiB",
    retention: Mapping[str, str] | None = None,
) -> Path:
    """Configure a daemon with these [[session]] tables, whose files are below a directory.

    Without `retention` nothing is ever deleted.
    """
    limits = {"bytes": "0", "age": "0", "free": "0"} | dict(retention or {})
    path = directory / "collectord.toml"
    path.write_text(
        f"""
[daemon]
state_dir = "{state or directory / "state"}"
flush_interval = "{flush}"
chunk = "{chunk}"
staging = "{staging}"

[metrics]
listen = "127.0.0.1:0"

[control]
socket = "{directory / _CONTROL}"

[retention]
{"".join(f'{key} = "{value}"' + chr(10) for key, value in limits.items())}
{sessions}
"""
    )
    return path


def write_config(
    directory: Path,
    state: Path | None = None,
    *,
    retention: Mapping[str, str] | None = None,
    segment_bytes: str = "256MiB",
    segment_age: str = "0",
    ring: str = "4MiB",
    staging: str = "16MiB",
) -> Path:
    """Configure one session, `calls`, of this run's marked system calls; see `write_sessions`."""
    session = f"""
[[session]]
name = "calls"
segment_bytes = "{segment_bytes}"
segment_age = "{segment_age}"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "{ring}"
"""
    return write_sessions(directory, session, state=state, staging=staging, retention=retention)


def _read(connection: socket.socket, path: str) -> tuple[int, bytes]:
    """Ask for a page; return its status and content once the other side has closed its end.

    So what a daemon has open afterwards is not for those who asked it.
    """
    connection.settimeout(PATIENCE_S)
    connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
    with HTTPResponse(connection) as answer:
        answer.begin()
        content = answer.read()
    assert not connection.recv(1)
    return answer.status, content


class Ended(NamedTuple):
    """The end of a daemon."""

    status: int
    stdout: str
    log: str

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of its JSON log."""
        return [json.loads(line) for line in self.log.splitlines()]

    def named(self, event: str) -> list[dict[str, Any]]:
        """Return the log's lines of one event."""
        return [line for line in self.events() if line["event"] == event]

    def complaints(self) -> list[dict[str, Any]]:
        """Return its warnings and errors, except losses: a busy host fills small rings."""
        return [
            line
            for line in self.events()
            if line["level"] != "info" and line["event"] not in {LOSING_BEGAN, LOSING_ENDED}
        ]


class Daemon:
    """A `collectord run` whose rings are open.

    Attributes:
        notified: what it has sent to the service manager.
        announced: what it printed up to there.
    """

    def __init__(
        self, process: subprocess.Popen[str], control: Path, notify: socket.socket
    ) -> None:
        self.process = process
        self.notified: list[str] = []
        self._control = control
        self._notify = notify
        self._pid_fd = os.pidfd_open(process.pid)
        try:
            self._await_ready()
        except BaseException:
            os.close(self._pid_fd)
            raise
        self.announced = self._announcement()

    def _await_ready(self) -> None:
        waiting = [self._notify.fileno(), self._pid_fd]
        while not any(notice.startswith("READY=1") for notice in self.read_notices()):
            readable, _, _ = select.select(waiting, [], [], PATIENCE_S)
            told = self._notify.fileno() in readable
            assert told, f"no READY: {self.process.communicate()[1]}"

    def _announcement(self) -> str:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("status"):
                break
        return "".join(lines)

    def read_notices(self) -> list[str]:
        """Return all sd_notify messages so far, earlier ones included."""
        while select.select([self._notify], [], [], 0)[0]:
            self.notified.append(self._notify.recv(4096).decode())
        return self.notified

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def status(self) -> dict[str, Any]:
        """Return the document of `/v1/status`."""
        return dict(self.get("/v1/status")[1])

    def get(self, path: str) -> tuple[int, Any]:
        """Return HTTP status and decoded answer of the control API."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._control))
            status, answer = _read(connection, path)
            return status, json.loads(answer)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the control API for something; returns its answer."""
        return client.post(self._control, path, body)

    def session(self, name: str = "calls") -> dict[str, Any]:
        """Return the balance of a session."""
        (found,) = (s for s in self.status()["sessions"] if s["name"] == name)
        return dict(found)

    def metrics(self) -> str:
        """Return the text of a scrape."""
        with socket.create_connection(self.metrics_address) as connection:
            status, text = _read(connection, "/metrics")
        assert status == HTTPStatus.OK, text
        return text.decode()

    @property
    def metrics_address(self) -> tuple[str, int]:
        """The host and the port of the scrapes."""
        found = _METRICS.search(self.announced)
        assert found, self.announced
        return found[1], int(found[2])

    def metric(self, series: str) -> float:
        """Return the value of one series of a scrape, named as the text has it."""
        for line in self.metrics().splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        message = f"no series {series}"
        raise AssertionError(message)

    def await_stored(self, count: int) -> None:
        """Wait until so many records are on disk."""
        wait_for(lambda: self.session()["stored"] >= count, f"{count} records stored")

    def await_told(self, count: int) -> None:
        """Wait until so many records are in the ledger, stored or lost."""

        def told() -> bool:
            session = self.session()
            return bool(session["stored"] + sum(session["lost"].values()) == count)

        wait_for(told, f"{count} records stored or lost")

    def fds(self) -> list[str]:
        """Return the targets of its descriptors."""
        found = []
        for path in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since it was listed
                found.append(str(path.readlink()))
        return found

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait."""
        self.process.kill()
        self.process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Ended:
        """Send it a signal, and wait for its end."""
        self.process.send_signal(number)
        return self.await_end()

    def await_end(self) -> Ended:
        """Wait for its end."""
        stdout, log = self.process.communicate(timeout=PATIENCE_S)
        return Ended(self.process.returncode, stdout, log)

    def close(self) -> None:
        """Release the process, which may have ended long ago."""
        os.close(self._pid_fd)


@contextmanager
def running(
    start_cli: Callable[..., subprocess.Popen[str]], config: Path, **how: object
) -> Iterator[Daemon]:
    """Start the daemon with this configuration, written by `write_config` or like it.

    It ends with the block at the latest: after a failure as it is meant to, so that it leaves
    nothing in the kernel. `how` is for `start_cli`: `prefix`, or `fresh`.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        path = config.parent / "notify.sock"
        path.unlink(missing_ok=True)
        notify.bind(str(path))
        path.chmod(0o666)  # the daemon may be another user's
        env = {"NOTIFY_SOCKET": str(path)}
        process = start_cli("run", "--config", config, env=env, **how)
        daemon = Daemon(process, config.parent / _CONTROL, notify)
        try:
            yield daemon
        except BaseException:
            with suppress(subprocess.TimeoutExpired):
                daemon.stop()
            raise
        finally:
            daemon.kill()
            daemon.close()


def has_left(pid: int) -> bool:
    """Whether nothing is left of a process but threads that wait for a disk."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "Z"


def sealed(state: Path) -> list[Path]:
    """Return the sealed segments below a directory, oldest first."""
    return sorted(state.rglob("*.perf.data"))


def manifest(segment: Path) -> dict[str, Any]:
    """Return the manifest beside a segment."""
    found: dict[str, Any] = json.loads(Path(f"{segment}.json").read_text())
    return found


def left_open(state: Path) -> list[Path]:
    """Return files below a directory that are no sealed segment, manifest, count, note or list.

    What is kept beside segments for their symbols is no such file either, nor is an incident's.
    """
    names = (".perf.data", ".perf.data.json", ".trace.dat", ".trace.dat.json", ".unclean_stops")
    files = [path for path in state.rglob("*") if path.is_file()]
    return [
        path
        for path in files
        if INCIDENTS not in path.relative_to(state).parts[:1]
        and not path.name.endswith(names)
        and not path.name.startswith((PREFIX, ".kallsyms-", "..kallsyms-", chain_log.NAME))
        and not _BESIDE.search(path.name)
    ]


def readable_samples(perfs: tuple[Perf, ...], segments: list[Path]) -> int:
    """Open each segment in `perf script` and `perf report` of each perf; count its samples.

    Raises:
        AssertionError: a perf complains, or counts something else than the manifest.
    """
    in_each(perfs, segments, _check_readable)
    return sum(manifest(segment)["samples"] for segment in segments)


def _check_readable(perf: Perf, segment: Path) -> None:
    said = manifest(segment)
    losses = any(said["ledger"].get("lost", {}).values())  # what is recovered has none
    lines = perf.script(segment, losses=losses)
    assert len(lines) == said["samples"], f"perf {perf.version}: {segment}"
    if lines:  # a report without samples is an error to perf
        done = perf.run("report", "--stdio", "--force", "-i", segment)
        answer = (done.returncode, complaints(done.stderr, losses=losses))
        assert answer == (0, ""), f"perf {perf.version}: {segment}"
