# SPDX-License-Identifier: Apache-2.0
"""The servers of `collectord run`: the metrics port, the control socket, the listener for alerts.

Their libraries take a third of the time that a start takes to load, so this module is loaded once
all rings are open.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from collectord.control import activation
from collectord.control.alerts import alerts_app
from collectord.control.api import control_app
from collectord.control.health_pages import HealthPages
from collectord.control.listener import serve
from collectord.control.metrics_app import metrics_app
from collectord.control.overview.overview_page import OverviewPage
from collectord.control.sockets import ALERTS
from collectord.metrics import prometheus
from collectord.metrics.exposition import Exposition

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack

    from aiohttp import web

    from collectord.config.schema import Config
    from collectord.control.peers import Admins
    from collectord.daemon.daemon import Daemon


class Claims(Protocol):
    """The sockets, users and TLS of the servers, as found before anything else was opened."""

    @property
    def bound(self) -> Mapping[str, Sequence[socket.socket]]:
        """Listening sockets by the server's name."""

    @property
    def admins(self) -> Admins:
        """The users who may change what the daemon does."""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context of the listener for alerts."""


async def start(stack: AsyncExitStack, daemon: Daemon, config: Config, claims: Claims) -> None:
    """Serve on sockets until the stack ends it.

    Args:
        stack: ends the servers.
        daemon: has the figures, and does what is requested.
        config: of the daemon.
        claims: the sockets, and who may use them.
    """
    files = daemon.plan.reserved_files
    for name, sockets in claims.bound.items():
        tls = None
        if name == activation.METRICS:
            app = _metrics(daemon, config)
        elif name == ALERTS.table:
            app, tls = alerts_app(daemon.commands.incidents.alerted), claims.tls
        else:
            app = control_app(daemon.status, daemon.commands, claims.admins)
        server = serve(app, sockets, name=name, reserved_files=files, tls=tls)
        await stack.enter_async_context(server)


def _metrics(daemon: Daemon, config: Config) -> web.Application:
    overview = OverviewPage(daemon.status, daemon.commands.incidents, config.metrics.incidents)
    registry = prometheus.registry(
        overview.status, kernel_release=os.uname().release, per_cpu=config.metrics.per_cpu
    )
    health = HealthPages(daemon.silent_threads, daemon.unready)
    return metrics_app(Exposition(registry).answer, health, overview)
