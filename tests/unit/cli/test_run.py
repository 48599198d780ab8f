# SPDX-License-Identifier: Apache-2.0
"""`run`: the addresses that are claimed before anything else is opened."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import structlog

from collectord.cli import run
from collectord.config.listen_address import ListenAddress
from collectord.config.schema import Config, ControlConfig, MetricsConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping


def claimed(
    config: Config, handed: Mapping[str, tuple[socket.socket, ...]]
) -> tuple[run._Claims, list[MutableMapping[str, Any]]]:
    """Return what is claimed for a configuration, and what is logged about its sockets."""

    async def scenario() -> run._Claims:
        async with AsyncExitStack() as stack:
            return run._claim(stack, config, handed)

    with structlog.testing.capture_logs() as logged:
        return asyncio.run(scenario()), logged


def test_a_server_has_the_managers_socket() -> None:
    """It says where it listens as if it had bound the socket itself."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        address = ListenAddress(*one.getsockname())
        config = Config(metrics=MetricsConfig(listen=address), control=ControlConfig(socket=""))
        claims, logged = claimed(config, {"metrics": (one,)})
    assert claims.bound == {"metrics": (one,)}
    assert len(claims.places) == 2
    assert all(str(address) in place for place in claims.places)
    assert logged == []


def test_a_socket_that_the_configuration_turns_off_is_named() -> None:
    """Its clients would wait for ever: the line says how to turn the unit off too."""
    config = Config(metrics=MetricsConfig(listen=None), control=ControlConfig(socket=""))
    with socket.create_server(("127.0.0.1", 0)) as one:
        claims, logged = claimed(config, {"metrics": (one,)})
    assert (claims.bound, claims.places) == ({}, [])
    assert [(line["event"], line["name"]) for line in logged] == [("socket_not_used", "metrics")]
    assert "collectord-metrics.socket" in logged[0]["hint"]
