# SPDX-License-Identifier: Apache-2.0
"""`collectord opener`: the process that opens rings and holds them while the daemon restarts."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from collectord.cli import EXIT_OK, daemon_config, log
from collectord.cli.line_queue import LineQueue
from collectord.cli.parser import Parser
from collectord.control import service, signals
from collectord.control.sockets import RINGS, claim_unix
from collectord.daemon.cpu_watch import CpuWatch
from collectord.daemon.host_facts import host_facts
from collectord.errors import ConfigError, UsageError
from collectord.opener.left_traces import end_left_traces
from collectord.opener.opener_server import Opener, Planned
from collectord.plan.build import build
from collectord.plan.held_resources import held_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.config.load import Loaded
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import Kernel


def parser() -> Parser:
    """Return the parser of `opener`."""
    made = Parser(
        "opener",
        ("[--config FILE] [--user USER] [--end]",),
        (
            "collectord opener",
            "collectord opener --user collectord",
        ),
    )
    daemon_config.add_option(made)
    made.add_argument(
        "--user",
        metavar="USER",
        default="",
        help="user of the daemon, who may ask for rings (default: only root, and the opener's "
        "own user)",
    )
    made.add_argument(
        "--end",
        action="store_true",
        help="remove the ftrace instances that a daemon has left recording for the next one, and "
        "exit, as the unit does when the opener ends (default: hold rings)",
    )
    return made


def run(arguments: Sequence[str], kernel: Kernel) -> int:
    """Hold rings until SIGINT or SIGTERM."""
    args = parser().parse_args(arguments)
    if args.end:
        log.configure(level=logging.INFO)
        end_left_traces(kernel)
        return EXIT_OK
    host = Planner(kernel, args.config)
    config = host.loaded.config
    if not config.daemon.opener:
        raise ConfigError(
            "no socket is set",
            key="daemon.opener",
            hint='opener = "/run/collectord-opener/opener.sock"',
        )
    users = _users(args.user)
    with LineQueue() as lines:
        log.configure(level=daemon_config.log_level(config), lines=lines)
        asyncio.run(_serve(kernel, host, Path(config.daemon.opener), users))
    return EXIT_OK


def _users(name: str) -> frozenset[int]:
    try:
        more = {pwd.getpwnam(name).pw_uid} if name else set()
    except KeyError:
        raise UsageError(f"there is no user {name!r}") from None
    return frozenset({0, os.geteuid(), *more})


class Planner:
    """Plans what the configuration says of the sources that may be held, as the daemon does.

    Args:
        kernel: its host is looked at.
        path: the configuration; None for the default files.
    """

    def __init__(self, kernel: Kernel, path: Path | None) -> None:
        self._kernel = kernel
        self._path = path
        self.loaded = self._load()
        self._online = kernel.online_cpus()
        self._facts: KernelFacts | None = None

    def _load(self) -> Loaded:
        return daemon_config.read(self._path)

    def is_changed(self) -> bool:
        """Whether the files or the CPUs are others than at the last plan. Raises ConfigError."""
        return (self._load().sha256, self._kernel.online_cpus()) != (
            self.loaded.sha256,
            self._online,
        )

    def plan(self) -> Planned:
        """Plan for the present files and host; see `Opener`. Raises CollectordError."""
        self.loaded = self._load()
        self._online = self._kernel.online_cpus()
        config = held_part(self.loaded.config)
        facts = host_facts(self._kernel, config, mount=True)
        if self._facts is not None:
            facts = facts.with_areas_of(self._facts)
        self._facts = facts
        own = facts.as_opener()
        triggers = self.loaded.config.trigger
        return Planned(
            build(config, replace(facts, opener=own)),
            msgspec.json.encode(own),
            frozenset(str(one.pressure) for one in triggers if one.pressure is not None),
        )


async def _serve(kernel: Kernel, host: Planner, place: Path, users: frozenset[int]) -> None:
    with ExitStack() as stack:
        stop = stack.enter_context(signals.stop_event())
        stack.enter_context(signals.hangups())
        manager = stack.enter_context(service.connect())
        (bound,) = stack.enter_context(claim_unix(place, served=RINGS))
        cpus = stack.enter_context(CpuWatch(kernel))
        opener = stack.enter_context(
            Opener(
                kernel,
                plan=host.plan,
                is_changed=host.is_changed,
                left_cpus=lambda: cpus.poll().left,
                users=users,
            )
        )
        manager.ready("holds rings for the daemon")
        await opener.serve(bound, stop)
        manager.stopping("closing the rings")
