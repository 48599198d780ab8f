# SPDX-License-Identifier: Apache-2.0
"""`run`: the addresses that are claimed before anything else is opened."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import structlog

from collectord.cli import run
from collectord.config.listen_address import ListenAddress
from collectord.config.schema import Config, ControlConfig, MetricsConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping


def claimed(
    config: Config, handed: Mapping[str, tuple[socket.socket, ...]]
) -> tuple[list[Any], list[MutableMapping[str, Any]]]:
    """Return the servers of a configuration, and what is logged about their sockets."""

    async def scenario() -> list[Any]:
        daemon: Any = SimpleNamespace(
            status=None, commands=None, silent_threads=None, unready=None
        )
        async with AsyncExitStack() as stack:
            return [*run._claim(stack, daemon, config, handed)]

    with structlog.testing.capture_logs() as logged:
        return asyncio.run(scenario()), logged


def test_a_server_has_the_managers_socket() -> None:
    """It says where it listens as if it had bound the socket itself."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        address = ListenAddress(*one.getsockname())
        config = Config(metrics=MetricsConfig(listen=address), control=ControlConfig(socket=""))
        (server,), logged = claimed(config, {"metrics": (one,)})
    assert server.bound == (one,)
    assert str(address) in server.place
    assert logged == []


def test_a_socket_that_the_configuration_turns_off_is_named() -> None:
    """Its clients would wait for ever: the line says how to turn the unit off too."""
    config = Config(metrics=MetricsConfig(listen=None), control=ControlConfig(socket=""))
    with socket.create_server(("127.0.0.1", 0)) as one:
        servers, logged = claimed(config, {"metrics": (one,)})
    assert servers == []
    assert [(line["event"], line["name"]) for line in logged] == [("socket_not_used", "metrics")]
    assert "collectord-metrics.socket" in logged[0]["hint"]
