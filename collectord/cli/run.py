# SPDX-License-Identifier: Apache-2.0
"""`collectord run`: the daemon in the foreground, with its metrics and control servers."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord import __version__, log, metrics
from collectord.cli import VERBS
from collectord.cli.output import flush, say
from collectord.cli.parser import Parser
from collectord.config.load import config_files, load
from collectord.control import http, service, signals
from collectord.daemon import Daemon
from collectord.windows import Trigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.config.schema import Config
    from collectord.plan.session import Plan

_CONSOLE: Final = {"auto": None, "console": True, "json": False}


def parser() -> Parser:
    """Options of `run`."""
    made = Parser(
        "collectord run",
        ("[--config FILE]",),
        VERBS["run"],
        (
            "collectord run",
            "collectord run --config config/collectord.toml",
        ),
    )
    made.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="configuration file (default: /etc/collectord/collectord.toml, then "
        "collectord.d/*.toml)",
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """Run until SIGINT, SIGTERM or SIGHUP, then flush and seal everything."""
    args = parser().parse_args(arguments)
    config = load([args.config] if args.config else config_files())
    log.configure(
        level=logging.getLevelNamesMapping()[config.daemon.log_level.upper()],
        console=_CONSOLE[config.daemon.log_format],
    )
    asyncio.run(_serve(config))
    return 0


async def _serve(config: Config) -> None:
    daemon = Daemon(config)
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(signals.stop_event())
        stack.enter_context(signals.snapshots(lambda: daemon.snapshot((), Trigger.SIGNAL)))
        manager = stack.enter_context(service.connect())

        async def on_open() -> None:
            """All rings are open: serve, and say so."""
            places = await _open_servers(stack, daemon, config)
            _announce(daemon.plan, places)
            manager.ready(f"{len(daemon.plan.sessions)} sessions")

        await daemon.run(stop, on_open=on_open, on_close=lambda: manager.stopping("final flush"))


async def _open_servers(stack: AsyncExitStack, daemon: Daemon, config: Config) -> list[str]:
    """Start what is configured; the value says where each can be reached."""
    places = []
    if config.metrics.listen:
        registry = metrics.registry(
            daemon.status, kernel_release=os.uname().release, per_cpu=config.metrics.per_cpu
        )
        host, port = await stack.enter_async_context(
            http.serve_tcp(http.metrics_app(registry), config.metrics.listen)
        )
        netloc = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        places.append(f"metrics  http://{netloc}/metrics")
    if config.control.socket:
        path = Path(config.control.socket)
        app = http.control_app(daemon.status, daemon)
        await stack.enter_async_context(http.serve_unix(app, path))
        places.append(f"status   curl --unix-socket {path} http://localhost/v1/status")
    return places


def _announce(plan: Plan, places: list[str]) -> None:
    """Say on stdout what is collected and where to look."""
    say(f"collectord {__version__} collects until Ctrl-C:")
    for line in plan.describe():
        say(f"  {line}")
    for line in places:
        say(line)
    flush()
