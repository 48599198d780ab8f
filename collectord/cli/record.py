# SPDX-License-Identifier: Apache-2.0
"""`collectord record`: options become a configuration, and that goes the daemon's way."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord import daemon, log, recording
from collectord.cli import EXIT_NO_COMMAND, EXIT_NOT_EXECUTABLE, EXIT_OK, record_options
from collectord.cli.output import complain, flush
from collectord.cli.summary import print_result
from collectord.config.check import check_config
from collectord.config.schema import (
    Config,
    ControlConfig,
    DaemonConfig,
    EventConfig,
    MetricsConfig,
    RetentionConfig,
    ScopeName,
    SessionConfig,
    SourceConfig,
    TargetConfig,
)
from collectord.config.units import Bytes, Nanoseconds, Share
from collectord.control import signals
from collectord.errors import UsageError
from collectord.plan import cpu_list
from collectord.plan.nearest import did_you_mean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from collectord.daemon import DaemonStatus
    from collectord.recording import RecordResult

SESSION: Final = "record"
DEFAULT_OUTPUT: Final = "perf.data"
DEFAULT_EVENT: Final = "cycles|cpu-clock"
_SIGNAL_STATUS: Final = 128


def run(arguments: Sequence[str]) -> int:
    """Record, print the balance, and give COMMAND's status if there is one."""
    args, command = record_options.parse(arguments)
    config = config_of(args, with_command=bool(command))
    if command and shutil.which(command[0]) is None:
        return refuse_command(command[0])
    # Balances and errors are the result; the log has what went wrong meanwhile.
    log.configure(level=logging.WARNING)
    with stdout_for_result(only=args.json), live_line(command) as on_tick:
        result = asyncio.run(_record(config, command, args.duration, on_tick))
    status = status_of(result.command_status)
    try:
        print_result(result.balances, as_json=args.json)
        flush()
    except BrokenPipeError:
        if not command:
            raise
    return status


def refuse_command(name: str) -> int:
    """Say why a COMMAND cannot be run, and give the status that a shell would."""
    try:
        there = "/" in name and Path(name).exists()
    except PermissionError:  # what is behind a closed directory: as a shell
        there = True
    if there:
        complain(f"command '{name}' is not an executable file")
        return EXIT_NOT_EXECUTABLE
    complain(f"there is no command '{name}'")
    return EXIT_NO_COMMAND


async def _record(
    config: Config,
    command: list[str],
    duration_ns: int,
    on_tick: Callable[[DaemonStatus], None],
) -> RecordResult:
    with signals.stop_event() as stop:
        return await recording.record(
            config,
            daemon.host_facts(config),
            command=command or None,
            duration_ns=duration_ns,
            on_tick=on_tick,
            stop=stop,
        )


@contextmanager
def stdout_for_result(*, only: bool) -> Iterator[None]:
    """If `only`, what COMMAND writes to stdout meanwhile goes to stderr."""
    if not only:
        yield
        return
    flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def live_line(command: list[str]) -> Iterator[Callable[[DaemonStatus], None]]:
    """Draw on stderr, unless that is no terminal or COMMAND writes to the same one."""
    if not sys.stderr.isatty() or (command and sys.stdout.isatty()):
        yield lambda _status: None
        return
    from collectord.cli.terminal import LiveLine  # noqa: PLC0415  # rich on a terminal only

    with LiveLine() as line:
        yield line.update


def status_of(command_status: int | None) -> int:
    """The exit status for a COMMAND's: 128 + N if signal N ended it, 0 if there was none."""
    if command_status is None:
        return EXIT_OK
    return command_status if command_status >= 0 else _SIGNAL_STATUS - command_status


def config_of(args: argparse.Namespace, *, with_command: bool) -> Config:
    """The configuration that does what the options say.

    Raises:
        UsageError: the options do not go together.
    """
    output = Path(args.output or DEFAULT_OUTPUT).absolute()
    directory = Path(args.output_dir).absolute() if args.output_dir else output.parent
    config = Config(
        daemon=DaemonConfig(state_dir=str(directory)),
        metrics=MetricsConfig(listen=""),
        control=ControlConfig(socket=""),
        # What was recorded by hand is deleted by hand.
        retention=RetentionConfig(bytes=Bytes(0), age=Nanoseconds(0), free=Share()),
        session=(
            SessionConfig(
                name=SESSION,
                directory=str(directory),
                single_file="" if args.output_dir else str(output),
                target=_target(args, with_command=with_command),
                source=(_source(args),),
            ),
        ),
    )
    for problem in check_config(config):
        option = problem.key.rpartition(".")[2].replace("_", "-")
        raise UsageError(f"{option}: {problem.message}", hint=problem.hint)
    return config


def _source(args: argparse.Namespace) -> SourceConfig:
    events = tuple(EventConfig(event=option.text, filter=option.filter) for option in args.events)
    return SourceConfig(
        kind="perf",
        events=events or (DEFAULT_EVENT,),
        frequency=args.freq,
        period=args.count,
        call_graph=str(args.call_graph or ""),
        ring=args.mmap_pages,
    )


def _target(args: argparse.Namespace, *, with_command: bool) -> TargetConfig:
    scope: ScopeName = "system"
    if args.pid or args.tid:
        scope = "process" if args.pid else "thread"
    elif args.uid is not None:
        scope = "user"
    elif args.cgroup is not None:
        scope = "cgroup"
    elif args.cpu:
        scope = "cpus"
    elif with_command and not args.all_cpus:
        scope = "command"
    return TargetConfig(
        scope=scope,
        cpus=cpu_list.render(args.cpu),
        pids=args.pid or args.tid or (),
        user=None if args.uid is None else _uid(args.uid),
        cgroup=args.cgroup or "",
        per_thread=args.per_thread,
        inherit=not args.no_inherit,
    )


def _uid(user: str) -> int:
    if user.isascii() and user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError as error:
        known = (entry.pw_name for entry in pwd.getpwall())
        raise UsageError(f"no user {user!r}", text=user, hint=did_you_mean(user, known)) from error
