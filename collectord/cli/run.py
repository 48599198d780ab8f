# SPDX-License-Identifier: Apache-2.0
"""`collectord run`: the daemon in the foreground, with its metrics and control servers."""

from __future__ import annotations

import faulthandler
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord import __version__
from collectord.cli import EXIT_FAILURE, EXIT_OK, daemon_config, log
from collectord.cli.line_queue import LineQueue
from collectord.cli.output import flush, say
from collectord.cli.parser import Parser
from collectord.cli.start_text import start_lines
from collectord.config.listen_address import ListenAddress
from collectord.control import activation, service, signals
from collectord.control.event_loop import EventLoop
from collectord.control.peers import Admins
from collectord.control.sockets import ALERTS, claim_tcp, claim_unix
from collectord.control.tls import server_tls
from collectord.daemon.daemon import Daemon

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from collectord.config.load import Loaded
    from collectord.config.schema import Config
    from collectord.kernel.port import Kernel
    from collectord.plan.plan import Plan

_CONSOLE: Final = {"auto": None, "console": True, "json": False}


def parser() -> Parser:
    """Return the parser of `run`."""
    made = Parser(
        "run",
        ("[--config FILE]",),
        (
            "collectord run",
            "collectord run --config config/collectord.toml",
        ),
    )
    daemon_config.add_option(made)
    return made


def run(arguments: Sequence[str], kernel: Kernel) -> int:
    """Run until SIGINT or SIGTERM, then flush and seal everything."""
    args = parser().parse_args(arguments)
    read = partial(daemon_config.read, args.config)
    loaded = read()
    config = loaded.config
    with LineQueue() as lines:
        log.configure(
            level=daemon_config.log_level(config),
            console=_CONSOLE[config.daemon.log_format],
            lines=lines,
        )
        if not faulthandler.is_enabled():
            faulthandler.enable()  # the manager's watchdog sends SIGABRT: the log gets the stacks
        with EventLoop() as loop:
            unsealed = loop.run(_serve(kernel, loaded, read, loop, lines))
        if unsealed:
            log.get_logger().error("segments_not_sealed", segments=unsealed)
    return EXIT_FAILURE if unsealed else EXIT_OK


async def _serve(
    kernel: Kernel, loaded: Loaded, read: Callable[[], Loaded], loop: EventLoop, lines: LineQueue
) -> int:
    """Collect until a signal; return how many segments could not be sealed."""
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(signals.stop_event())
        # Before there is any child, which must not take itself for the service.
        manager = stack.enter_context(service.connect())
        handed = stack.enter_context(activation.inherited())
        manager.status("looking at the host")
        # It probes: a signal must not end it midway.
        daemon = Daemon(
            kernel,
            loaded.config,
            config_sha256=loaded.sha256,
            read=read,
            lines_dropped=lambda: lines.dropped_total,
        )
        stack.enter_context(signals.reloads(daemon.commands.reload))
        stack.enter_context(signals.snapshots(daemon.commands.incidents.by_signal))
        stack.enter_context(signals.rotations(daemon.commands.rotate))
        claims = _claim(stack, loaded.config, handed)

        async def on_open() -> None:
            """Start the servers and say what is collected, now that all rings are open."""
            start = await daemon.in_thread(_load_servers)
            await start(stack, daemon, loaded.config, claims)
            _announce(daemon.plan, loaded.config, claims.places)

        try:
            balances = await daemon.run(stop, service=manager, on_open=on_open)
        finally:
            if daemon.is_abandoned:
                loop.abandon()
    return sum(balance.sink.unsealed for balance in balances)


def _load_servers() -> Callable[..., Awaitable[None]]:
    from collectord.cli import servers  # noqa: PLC0415  # a third of a start's imports

    return servers.start


class _Claims(NamedTuple):
    """The things that the servers get, see `servers.Claims`, and their announced places."""

    bound: dict[str, tuple[socket.socket, ...]]
    places: list[str]
    admins: Admins
    tls: ssl.SSLContext | None


def _claim(
    stack: AsyncExitStack, config: Config, handed: Mapping[str, tuple[socket.socket, ...]]
) -> _Claims:
    """Claim the configured addresses, before anything else is opened."""
    claimed: dict[str, tuple[socket.socket, ...]] = {}
    places, admins, tls = [], Admins(config.control.admin_group), None
    wanted = {activation.METRICS: config.metrics.listen, activation.CONTROL: config.control.socket}
    for name in handed:
        if not wanted[name]:
            hint = f"systemctl mask --now collectord-{name}.socket"
            log.get_logger().warning("socket_not_used", name=name, hint=hint)
    if config.metrics.listen is not None:
        bound = stack.enter_context(
            claim_tcp(config.metrics.listen, handed.get(activation.METRICS, ()))
        )
        netloc = ListenAddress(*bound[0].getsockname()[:2])
        claimed[activation.METRICS] = bound
        places += [f"metrics  http://{netloc}/metrics", f"page     http://{netloc}/"]
    if config.alertmanager.listen is not None:
        tls = server_tls(config.alertmanager)
        bound = stack.enter_context(claim_tcp(config.alertmanager.listen, served=ALERTS))
        claimed[ALERTS.table] = bound
        netloc = ListenAddress(*bound[0].getsockname()[:2])
        places.append(f"alerts   https://{netloc}/v1/alerts (with a client certificate)")
    if config.control.socket:
        path = Path(config.control.socket)
        bound = stack.enter_context(claim_unix(path, handed.get(activation.CONTROL, ())))
        claimed[activation.CONTROL] = bound
        places.append(f"status   curl --unix-socket {path} http://localhost/v1/status")
        if config.control.admin_group is None:
            admins = Admins(path.stat().st_gid)
    return _Claims(claimed, places, admins, tls)


def _announce(plan: Plan, config: Config, places: list[str]) -> None:
    """Print on stdout what is collected and where to look; in the journal log the whole plan."""
    if log.is_journal():
        log.get_logger().info(
            "started", version=__version__, plan=[*plan.describe()], places=places
        )
        return
    say(f"collectord {__version__} collects until Ctrl-C; `collectord check` prints the plan")
    for line in start_lines(plan, config, places):
        say(line)
    flush()
