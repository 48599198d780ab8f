# SPDX-License-Identifier: Apache-2.0
"""The control servers, the service manager's socket, and signals."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
import pytest

from collectord.config.listen_address import ListenAddress
from collectord.control import early_signals, service, signals
from collectord.control.api import control_app
from collectord.control.metrics_app import metrics_app
from collectord.control.sockets import claim_tcp, claim_unix
from collectord.errors import ConfigError, KernelError, UsageError
from collectord.metrics import prometheus
from collectord.metrics.exposition import Exposition
from tests.support import balances
from tests.support.commands import Commands, pages, serve_tcp, serve_unix, snapshot
from tests.support.managers import managed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.control.metrics_app import Scrape


def scrape() -> Scrape:
    """Return what answers scrapes of a default host."""
    return Exposition(prometheus.registry(balances.status, kernel_release="6.12.0")).answer


async def get(url: str, *, unix: Path | None = None) -> tuple[int, str, str]:
    """Return status, content type and body of a GET."""
    connector = aiohttp.UnixConnector(str(unix)) if unix else None
    async with (
        aiohttp.ClientSession(connector=connector) as client,
        client.get(url) as response,
    ):
        return response.status, response.headers["Content-Type"], await response.text()


def test_metrics_endpoint() -> None:
    """/metrics is Prometheus text; what is not served is 404."""

    async def scenario() -> None:
        app = metrics_app(scrape(), pages())
        async with serve_tcp(app) as (host, port):
            status, content_type, text = await get(f"http://{host}:{port}/metrics")
            assert (status, content_type.partition(";")[0]) == (200, "text/plain")
            assert 'collectord_stored_records_total{session="exec",source="perf"} 180.0' in text
            assert "process_resident_memory_bytes" in text
            assert (await get(f"http://{host}:{port}/v1/status"))[0] == 404
            assert (await get(f"http://{host}:{port}/"))[0] == 404  # no page was given

    asyncio.run(scenario())


def test_control_api(tmp_path: Path) -> None:
    """The socket serves the whole status and one session's balances as JSON."""
    path = tmp_path / "control.sock"

    async def scenario() -> None:
        async with serve_unix(control_app(balances.status, Commands()), path):
            status, content_type, text = await get("http://localhost/v1/status", unix=path)
            assert (status, content_type) == (200, "application/json")
            whole = json.loads(text)
            assert [session["name"] for session in whole["sessions"]] == [
                "profile",
                "exec",
                "blackbox",
            ]
            assert whole["core"]["chunks"] == 64
            assert whole["drain"] == {
                "lacks": ["something was refused"],
                "threads": [
                    {
                        "name": "drain/0",
                        "tid": 4711,
                        "policy": "fifo",
                        "priority": 10,
                        "nice": 0,
                        "cpus": "1",
                        "drains": "0-1",
                    }
                ],
            }
            assert whole["started"] == "2023-11-14T22:13:20.000+00:00"
            one = json.loads((await get("http://localhost/v1/sessions/exec", unix=path))[2])
            assert [session["stored"] for session in one["sessions"]] == [180]
            every = json.loads((await get("http://localhost/v1/sessions", unix=path))[2])
            assert every == {"sessions": whole["sessions"]}
            plan = json.loads((await get("http://localhost/v1/plan", unix=path))[2])
            assert [session["name"] for session in plan["sessions"]] == ["exec"]

    asyncio.run(scenario())


# More messages than a socket's queue holds (net.unix.max_dgram_qlen).
QUEUE: Final = 10_000
SNAPSHOTS: Final = {
    "segments": ["/s/1.trace.dat"],
    "snapshots": [snapshot(("/s/1.trace.dat",)).to_json()],
}


@pytest.mark.parametrize(
    ("place", "body", "status", "answer"),
    [
        ("mark", b'{"text": "x"}', 200, {"marked": 2}),
        ("mark", b'{"text": "x", "session": "s"}', 200, {"marked": 2}),
        ("snapshot", b"", 200, SNAPSHOTS),
        ("snapshot", b'{"sessions": ["a"]}', 200, SNAPSHOTS),
        ("mark", b"", 400, "missing required field `text`"),
        ("mark", b'{"text": ""}', 400, "the marker has no text"),
        ("mark", b'{"text": "x", "sesion": "s"}', 400, "unknown field `sesion`"),
        ("mark", b"{", 400, "not a request"),
        ("snapshot", b"[]", 400, "not a request"),
        ("snapshot", b'{"sessions": "a"}', 400, "not a request"),
        ("snapshot", b"\xff", 400, "not a request"),
    ],
)
def test_commands(
    place: str, body: bytes, status: int, answer: dict[str, object] | str, tmp_path: Path
) -> None:
    """A command is a POST; what is no request is 400 with the reason and exit status 2."""
    path = tmp_path / "control.sock"
    commands = Commands()

    async def scenario() -> None:
        async with (
            serve_unix(control_app(balances.status, commands), path),
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as client,
            client.post(f"http://localhost/v1/{place}", data=body) as response,
        ):
            assert response.status == status
            shown = await response.json()
            if isinstance(answer, str):
                assert answer in shown["error"]
                assert shown["exit_code"] == UsageError.exit_code
                assert commands.asked == []
            else:
                assert shown == answer
                assert len(commands.asked) == 1

    asyncio.run(scenario())


def test_unknown_session(tmp_path: Path) -> None:
    """An unknown session is 404 with the names there are."""
    path = tmp_path / "control.sock"

    async def scenario() -> None:
        async with serve_unix(control_app(balances.status, Commands()), path):
            status, _, text = await get("http://localhost/v1/sessions/exce", unix=path)
            assert status == 404
            assert json.loads(text)["sessions"] == ["blackbox", "exec", "profile"]

    asyncio.run(scenario())


def test_socket_is_for_owner_and_group_and_goes_with_the_daemon(tmp_path: Path) -> None:
    """Others may not connect, and a stopped daemon leaves no socket."""
    path = tmp_path / "control.sock"

    async def scenario() -> None:
        async with serve_unix(control_app(balances.status, Commands()), path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert not path.exists()

    asyncio.run(scenario())


def test_socket_of_a_killed_daemon_is_taken_over(tmp_path: Path) -> None:
    """A socket that nobody answers on is replaced."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    async def scenario() -> None:
        async with serve_unix(control_app(balances.status, Commands()), path):
            assert (await get("http://localhost/v1/status", unix=path))[0] == 200

    asyncio.run(scenario())


def test_socket_of_a_running_daemon_is_left_alone(tmp_path: Path) -> None:
    """A second daemon is refused, and the first one goes on."""
    path = tmp_path / "control.sock"

    async def scenario() -> None:
        async with serve_unix(control_app(balances.status, Commands()), path):
            with (
                pytest.raises(KernelError, match="cannot serve the control API") as caught,
                claim_unix(path),
            ):
                pass
            assert caught.value.errno == errno.EADDRINUSE
            assert (await get("http://localhost/v1/status", unix=path))[0] == 200

    asyncio.run(scenario())


def test_file_in_the_sockets_place_is_left_alone(tmp_path: Path) -> None:
    """Something that is no socket is never removed."""
    path = tmp_path / "control.sock"
    path.write_text("precious")
    with pytest.raises(KernelError, match="control API"), claim_unix(path):
        pass
    assert path.read_text() == "precious"


def test_missing_directory_of_the_socket(tmp_path: Path) -> None:
    """It is an error that says what to do, and no directory is made."""
    path = tmp_path / "run/collectord/control.sock"
    with pytest.raises(KernelError, match=r"\[control\] socket") as caught, claim_unix(path):
        pass
    assert caught.value.errno == errno.ENOENT
    assert f"make its folder {path.parent}, or" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_address_in_use() -> None:
    """A taken metrics address is one error with what to change."""
    with claim_tcp(ListenAddress("127.0.0.1", 0)) as (bound,):
        host, port = bound.getsockname()
        with (
            pytest.raises(KernelError, match=r"\[metrics\] listen") as caught,
            claim_tcp(ListenAddress(host, port)),
        ):
            pass
        assert caught.value.errno == errno.EADDRINUSE


def test_the_managers_socket_is_served_as_it_is(tmp_path: Path) -> None:
    """It is neither bound anew, nor removed with the daemon, nor given other permissions."""
    path = tmp_path / "control.sock"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))
        unix.listen()
        path.chmod(0o600)
        with claim_tcp(ListenAddress(*tcp.getsockname()), [tcp]) as bound:
            assert bound == (tcp,)
        with claim_unix(path, [unix]) as bound:
            assert bound == (unix,)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert unix.fileno() >= 0


def test_the_managers_socket_is_the_configured_one(tmp_path: Path) -> None:
    """Otherwise clients would look for the daemon elsewhere: the error names both places."""
    path = tmp_path / "control.sock"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))
        host, port = tcp.getsockname()
        with (
            pytest.raises(
                ConfigError, match=rf"{host}:{port}, and not on 127\.0\.0\.1:1;"
            ) as tcps,
            claim_tcp(ListenAddress(host, 1), [tcp]),
        ):
            pass
        assert tcps.value.key == "metrics.listen"
        with (
            pytest.raises(ConfigError, match=f"{path}, and not on /run/x;") as unixes,
            claim_unix(Path("/run/x"), [unix]),
        ):
            pass
        assert unixes.value.key == "control.socket"


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 70 + ".invalid", "\udcff"])
def test_host_that_does_not_resolve(name: str) -> None:
    """A name without an address is a configuration error that names the key."""
    with (
        pytest.raises(ConfigError, match=r"metrics\.listen"),
        claim_tcp(ListenAddress(name, 0)),
    ):
        pass


def test_service_manager_is_told(tmp_path: Path) -> None:
    """READY, states and STOPPING reach the socket that the manager gave; no state comes twice."""
    with managed(tmp_path) as (told, manager):
        told.status("opening rings")
        told.status("opening rings")
        told.ready("2 sessions")
        told.status("2 sessions")
        told.status("1 session")
        told.extend(30)
        told.stopping("flushing")
        told.status("flushing")
        assert manager.told() == [
            "STATUS=opening rings",
            "READY=1\nSTATUS=2 sessions",
            "STATUS=1 session",
            "EXTEND_TIMEOUT_USEC=30000000",
            "STOPPING=1\nSTATUS=flushing",
        ]


@pytest.mark.parametrize(
    ("microseconds", "pid", "limit_s"),
    [("60000000", "", 60), ("60000000", "own", 60), ("60000000", "1", 0), ("", "own", 0)],
)
def test_the_watchdogs_limit_is_this_process_s(
    microseconds: str, pid: str, limit_s: int, tmp_path: Path
) -> None:
    """The manager may have set it for another process; children inherit none of its variables."""
    pid = str(os.getpid()) if pid == "own" else pid
    with managed(tmp_path, WATCHDOG_USEC=microseconds, WATCHDOG_PID=pid) as (told, _):
        assert told.watchdog_s == limit_s
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()


def test_a_manager_that_reads_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue is full at some time; messages are dropped then, and the daemon goes on."""
    monkeypatch.setattr(service, "_READY_WAIT_S", 0.01)
    with managed(tmp_path) as (told, manager):
        for _ in range(QUEUE):
            told.alive()
        told.ready("2 sessions")
        assert {*manager.told()} == {"WATCHDOG=1"}
        told.status("1 session")
        assert manager.told() == ["STATUS=1 session"]


def test_without_service_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a service the calls do nothing and open nothing."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    descriptors = Path("/proc/self/fd")
    before = len([*descriptors.iterdir()])
    with service.connect() as told:
        told.ready("x")
        told.stopping("x")
        assert len([*descriptors.iterdir()]) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_sets_the_stop_event(number: signal.Signals) -> None:
    """Each stop signal sets the event, and handlers are gone afterwards."""

    async def scenario() -> None:
        with signals.stop_event((*signals.STOP_SIGNALS, signal.SIGHUP)) as stop:
            assert not stop.is_set()
            os.kill(os.getpid(), number)
            await asyncio.wait_for(stop.wait(), timeout=10)

    before = signal.getsignal(number)
    asyncio.run(scenario())
    assert signal.getsignal(number) is before


@pytest.fixture
def _signals_restored() -> Iterator[None]:
    """Restore the signal handlers, which are process-wide."""
    numbers = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals_restored")
def test_stray_signals_do_nothing() -> None:
    """Signals that are not for us end nothing, before, within and after a loop."""
    strays = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)

    def send() -> None:
        for number in strays:
            os.kill(os.getpid(), number)

    async def take() -> None:
        """Take nothing: what is asked for does not matter here."""

    async def scenario() -> bool:
        with signals.stop_event() as stop, signals.reloads(take), signals.snapshots(take):
            send()
            await asyncio.sleep(0)
            return stop.is_set()

    early_signals.ignore(signal.SIGHUP)
    send()
    assert not asyncio.run(scenario())
    send()


@pytest.mark.usefixtures("_signals_restored")
def test_nohup_is_respected() -> None:
    """A SIGHUP that was ignored from the start is no stop signal."""

    async def scenario() -> bool:
        with signals.stop_event((signal.SIGTERM, signal.SIGHUP)) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(stop.wait(), timeout=10)
            return signal.getsignal(signal.SIGHUP) == signal.SIG_IGN

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert asyncio.run(scenario())


def test_second_interrupt_gives_up() -> None:
    """Two Ctrl-C at once are one; after a moment another one interrupts as usual."""

    async def as_usual() -> None:
        while signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def scenario() -> object:
        with signals.stop_event() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.wait_for(stop.wait(), timeout=10)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.wait_for(as_usual(), timeout=10)
            return signal.getsignal(signal.SIGINT)

    assert asyncio.run(scenario()) is signal.default_int_handler
