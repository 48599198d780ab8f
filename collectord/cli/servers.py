# SPDX-License-Identifier: Apache-2.0
"""The servers of `collectord run`: the metrics port and the control socket.

Their libraries take a third of the time that a start takes to load, so this module is loaded once
all rings are open.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from collectord.control import activation
from collectord.control.api import control_app
from collectord.control.health_pages import HealthPages
from collectord.control.listener import serve
from collectord.control.metrics_app import metrics_app
from collectord.control.overview.overview_page import OverviewPage
from collectord.metrics import prometheus
from collectord.metrics.exposition import Exposition

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack

    from aiohttp import web

    from collectord.config.schema import Config
    from collectord.control.peers import Admins
    from collectord.daemon.daemon import Daemon


async def start(
    stack: AsyncExitStack,
    daemon: Daemon,
    config: Config,
    bound: Mapping[str, Sequence[socket.socket]],
    admins: Admins,
) -> None:
    """Serve on sockets until the stack ends it.

    Args:
        stack: ends the servers.
        daemon: has the figures, and does what is requested.
        config: of the daemon.
        bound: listening sockets by the server's name.
        admins: may change what the daemon does.
    """
    for name, sockets in bound.items():
        if name == activation.METRICS:
            app = _metrics(daemon, config)
        else:
            app = control_app(daemon.status, daemon.commands, admins)
        files = daemon.plan.reserved_files
        await stack.enter_async_context(serve(app, sockets, name=name, reserved_files=files))


def _metrics(daemon: Daemon, config: Config) -> web.Application:
    overview = OverviewPage(daemon.status)
    registry = prometheus.registry(
        overview.status, kernel_release=os.uname().release, per_cpu=config.metrics.per_cpu
    )
    health = HealthPages(daemon.silent_threads, daemon.unready)
    return metrics_app(Exposition(registry).answer, health, overview)
