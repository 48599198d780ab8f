# SPDX-License-Identifier: Apache-2.0
"""The listener for alerts, over real TLS: who may tell of any, what is taken, and its bounds."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import ssl
import subprocess
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest

from collectord.config.listen_address import ListenAddress
from collectord.config.schema import AlertmanagerConfig
from collectord.control import listener
from collectord.control.alerts import alerts_app
from collectord.control.listener import serve
from collectord.control.sockets import ALERTS, claim_tcp
from collectord.control.tls import server_tls
from collectord.errors import ConfigError, UsageError
from tests.support.alerts import FINGERPRINT, SINCE, alert, notification
from tests.support.certificates import Authority, Pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from collectord.sink.alert import Alert

ANSWER_S: Final = 10
PEERS: Final = 40


@dataclass(frozen=True, slots=True)
class Known:
    """An authority that the listener knows, what it has signed, and one that nobody knows."""

    authority: Authority
    server: Pair
    client: Pair
    stranger: Pair

    def config(self, **keys: str) -> AlertmanagerConfig:
        """Return the configuration of a listener, with some keys instead of its own."""
        paths = {
            "certificate": str(self.server.certificate),
            "key": str(self.server.key),
            "client_ca": str(self.authority.own.certificate),
        }
        return AlertmanagerConfig(listen=ListenAddress("127.0.0.1", 0), **{**paths, **keys})

    def client_tls(self, pair: Pair | None) -> ssl.SSLContext:
        """Return what a client meets the listener with."""
        made = ssl.create_default_context(cafile=str(self.authority.own.certificate))
        if pair is not None:
            made.load_cert_chain(pair.certificate, pair.key)
        return made


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """Certificates for all tests."""
    folder = tmp_path_factory.mktemp("certificates")
    authority, other = Authority.made(folder / "known"), Authority.made(folder / "other")
    return Known(
        authority,
        authority.sign("server", usage="serverAuth"),
        authority.sign("client", usage="clientAuth"),
        other.sign("stranger"),
    )


class Taken:
    """Takes alerts, and says that each is accepted."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self.ends = False

    def take(self, alerts: Sequence[Alert]) -> dict[str, str]:
        """Take them, as `Incidents.alerted` does."""
        if self.ends:
            raise UsageError("the daemon ends")
        self.alerts += alerts
        return dict.fromkeys((one.fingerprint for one in alerts), "accepted")


@asynccontextmanager
async def served(known: Known, taken: Taken) -> AsyncIterator[tuple[str, int]]:
    """Provide the listener; returns its address."""
    with claim_tcp(ListenAddress("127.0.0.1", 0), served=ALERTS) as bound:
        tls = server_tls(known.config())
        async with serve(alerts_app(taken.take), bound, name="alertmanager", tls=tls):
            yield bound[0].getsockname()[:2]


async def post(
    address: tuple[str, int], tls: ssl.SSLContext, data: bytes
) -> tuple[int, dict[str, Any]]:
    """Send a notification; return the status of the answer, and the answer."""
    url = f"https://{address[0]}:{address[1]}/v1/alerts"
    async with (
        aiohttp.ClientSession() as client,
        client.post(url, data=io.BytesIO(data), ssl=tls) as answer,
    ):
        return answer.status, json.loads(await answer.read())


def test_a_notification_is_taken(known: Known) -> None:
    """Its alerts, whatever else it has, and the answer tells of each."""
    taken = Taken()
    told = notification(alert(), alert("0" * 16, status="resolved")) | {"new": {"of": "later"}}

    async def scenario() -> None:
        async with served(known, taken) as address:
            tls = known.client_tls(known.client)
            status, answer = await post(address, tls, json.dumps(told).encode())
            assert (status, len(answer["alerts"])) == (200, 2)
            assert answer["alerts"][0] == {"fingerprint": FINGERPRINT, "result": "accepted"}

    asyncio.run(scenario())
    first, second = taken.alerts
    assert (first.name, first.fingerprint, first.starts_at) == ("DiskSlow", FINGERPRINT, SINCE)
    assert first.annotations == {"summary": "the disk is slow"}
    assert (first.status, second.status) == ("firing", "resolved")


@pytest.mark.parametrize("who", ["nobody", "stranger", "ended", "server"])
def test_who_has_no_certificate_of_the_authority_is_refused(who: str, known: Known) -> None:
    """The request is not read: with none, a stranger's, one that has ended, a server's."""
    pairs = {"nobody": None, "stranger": known.stranger, "server": known.server}
    pair = pairs[who] if who in pairs else known.authority.sign("ended", days=-1)
    taken = Taken()

    async def scenario() -> None:
        async with served(known, taken) as address:
            data = json.dumps(notification(alert())).encode()
            with pytest.raises(aiohttp.ClientError):
                await post(address, known.client_tls(pair), data)
            status, _ = await post(address, known.client_tls(known.client), b"{}")
            assert status == 400  # others are served

    asyncio.run(scenario())
    assert taken.alerts == []


def test_who_speaks_no_tls_is_refused(known: Known) -> None:
    """A request in plain text has no answer in plain text."""

    async def scenario() -> bytes:
        async with served(known, Taken()) as address:
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\n\r\n")
                return await asyncio.wait_for(reader.read(), ANSWER_S)
            except ConnectionError:
                return b""
            finally:
                writer.transport.abort()

    assert b"HTTP" not in asyncio.run(scenario())


def test_who_begins_no_handshake_keeps_nobody_out(known: Known) -> None:
    """Silent connections have few places, and lose them to those that speak."""

    async def scenario() -> None:
        async with served(known, Taken()) as address:
            for _ in range(PEERS):
                stack.enter_context(socket.create_connection(address))
                await asyncio.sleep(0)  # it is accepted
            tls = known.client_tls(known.client)
            assert (await post(address, tls, b"{}"))[0] == 400

    with ExitStack() as stack:
        asyncio.run(scenario())


def test_a_handshake_has_a_time(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without one is closed."""
    monkeypatch.setattr(listener, "REQUEST_S", 0.05)

    async def scenario() -> None:
        async with served(known, Taken()) as address:
            reader, writer = await asyncio.open_connection(*address)
            try:
                assert await asyncio.wait_for(reader.read(), ANSWER_S) == b""
            finally:
                writer.transport.abort()

    asyncio.run(scenario())


BAD: Final = {
    "no JSON": (b"{", 400),
    "a list": (b"[]", 400),
    "nothing": (b"", 400),
    "another version": (json.dumps(notification(version="5")).encode(), 400),
    "no fingerprint": (json.dumps(notification({"labels": {}})).encode(), 400),
    "a path": (json.dumps(notification(alert("../../x"))).encode(), 400),
    "capitals": (json.dumps(notification(alert("8F3C0DE1A2B4C5D6"))).encode(), 400),
    "a time": (json.dumps(notification(alert(since="\x1b[2J"))).encode(), 400),
    "numbers": (json.dumps(notification(alert() | {"labels": {"a": 1}})).encode(), 400),
    "too many": (json.dumps(notification(*[alert()] * 1001)).encode(), 400),
    "deep": (b'{"version": "4", "alerts": ' + b"[" * 200_000, 400),
    "no UTF-8": (json.dumps(notification(alert(a="y"))).encode().replace(b"y", b"\xff"), 400),
    "large": (b" " * ((1 << 20) + 1), 413),
}


@pytest.mark.parametrize(("data", "status"), BAD.values(), ids=BAD.keys())
def test_what_is_no_notification(data: bytes, status: int, known: Known) -> None:
    """It is refused in words, whatever it is, and no alert is taken."""
    taken = Taken()

    async def scenario() -> None:
        async with served(known, taken) as address:
            found, answer = await post(address, known.client_tls(known.client), data)
            assert (found, bool(answer["error"])) == (status, True)

    asyncio.run(scenario())
    assert taken.alerts == []


def test_a_daemon_that_ends_asks_for_a_repetition(known: Known) -> None:
    """Alertmanager repeats what has a status of the server's failure, and nothing else."""
    taken = Taken()
    taken.ends = True

    async def scenario() -> None:
        async with served(known, taken) as address:
            data = json.dumps(notification(alert())).encode()
            status, answer = await post(address, known.client_tls(known.client), data)
            assert (status, answer) == (503, {"error": "the daemon ends"})

    asyncio.run(scenario())


def test_files_that_cannot_be_used(known: Known, tmp_path: Path) -> None:
    """Each error names the key of the configuration, and what is wrong with the file."""
    open_key, empty = tmp_path / "open.key", tmp_path / "empty.pem"
    open_key.write_bytes(known.server.key.read_bytes())
    open_key.chmod(0o644)
    empty.write_text("")
    locked = tmp_path / "locked.key"
    _lock(known.server.key, locked)
    for key, path, says in (
        ("certificate", tmp_path / "absent", "No such file"),
        ("certificate", known.client.certificate, "not a pair of PEM files"),
        ("key", tmp_path / "absent", "No such file"),
        ("key", tmp_path, "not a file"),
        ("key", open_key, "other users may read it"),
        ("key", locked, "has a passphrase"),
        ("client_ca", tmp_path / "absent", "No such file"),
        ("client_ca", empty, "no certificate"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            server_tls(known.config(**{key: str(path)}))
        assert caught.value.key == f"alertmanager.{key}"


def _lock(key: Path, path: Path) -> None:
    words = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:x"]
    subprocess.run([*words, "-out", str(path)], check=True, capture_output=True)
    path.chmod(0o600)
