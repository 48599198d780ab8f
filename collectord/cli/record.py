# SPDX-License-Identifier: Apache-2.0
"""`collectord record`: run the daemon's path with a configuration made from options."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import signal
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import (
    EXIT_FAILURE,
    EXIT_NO_COMMAND,
    EXIT_NOT_EXECUTABLE,
    EXIT_OK,
    EXIT_RECORD_FAILED,
    log,
    record_options,
)
from collectord.cli.live_answers import LiveAnswers
from collectord.cli.live_events import LiveEvents
from collectord.cli.output import complain, flush
from collectord.cli.record_config import check_snapshot, config_of
from collectord.cli.summary import print_result
from collectord.control import signals
from collectord.control.event_loop import EventLoop
from collectord.daemon import recording
from collectord.daemon.host_facts import host_facts
from collectord.errors import CollectordError, SinkError
from collectord.plan.bpf_plan import BpfPlan
from collectord.plan.build import build
from collectord.session.loss_watch import LOSING_BEGAN, LOSING_ENDED
from collectord.session.maps.answers import make_answer
from collectord.session.maps.device_names import HostNames
from collectord.sink.pack import compress
from collectord.source import bcc_client

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from collectord.config.schema import Config
    from collectord.daemon.recording import RecordResult
    from collectord.kernel.port import Kernel
    from collectord.plan.plan import Plan
    from collectord.session.daemon_status import DaemonStatus
    from collectord.session.maps.answers import Answer
    from collectord.session.maps.map_watch import Contents
    from collectord.sink.pack import Compressed

_SIGNAL_STATUS: Final = 128
ANSWER_KINDS: Final = ("histogram", "table", "folded")


def run(arguments: Sequence[str], kernel: Kernel) -> int:
    """Record, print the balance, and return COMMAND's status if there is one."""
    args, command = record_options.parse(arguments)
    config = config_of(args, with_command=bool(command))
    if command and shutil.which(command[0]) is None:
        return refuse_command(command[0])
    # Balances and errors are the result; the log reports troubles meanwhile. The live line and the
    # result show losses.
    log.configure(level=logging.WARNING, without=(LOSING_BEGAN, LOSING_ENDED))
    with (
        stdout_for_result(only=args.json),
        _live(args, config, command) as on_tick,
        EventLoop() as loop,
    ):
        result = loop.run(_record(kernel, args, config, command, on_tick, abandon=loop.abandon))
    status = status_of(result.command_status)
    try:
        answers = answers_of(result.plan, result.counted)
        print_result(
            result.balances,
            as_json=args.json,
            programs=result.programs,
            answers=answers,
            snapshots=result.snapshots,
            compressed=_compressed(result) if args.compress else (),
        )
        flush()
    except BrokenPipeError:
        if not command:
            raise
    unsealed = sum(balance.sink.unsealed for balance in result.balances)
    if unsealed:
        hint = "the log above says why; `collectord segments repair` may seal them"
        complain(f"segments that could not be sealed: {unsealed}; {hint}")
        return EXIT_RECORD_FAILED if command else EXIT_FAILURE
    return status


def answers_of(
    plan: Plan, contents: Mapping[str, Contents], *, kinds: Container[str] = ANSWER_KINDS
) -> dict[str, list[Answer]]:
    """Return the answers of a recording's BPF programs, by program.

    Args:
        plan: of the recording.
        contents: the tables for answers, by session.
        kinds: of the answers.
    """
    found: dict[str, list[Answer]] = {}
    for session in plan.sessions:
        counted = contents.get(session.name)
        payload = session.payload
        if counted is None or not isinstance(payload, BpfPlan):
            continue
        symbols = functools.partial(_symbols, payload.python)
        for one in payload.programs:
            found[one.name] = [
                make_answer(config, counted.get(one.name, {}), HostNames(), symbols)
                for config in one.program.manifest.answer
                if config.kind in kinds
            ]
    return {program: answers for program, answers in found.items() if answers}


def _compressed(result: RecordResult) -> list[Compressed]:
    """Compress the files that were written; one that stays as it is costs nobody the recording."""
    snapshots = [name for snapshot in result.snapshots for name in snapshot.segments]
    names = [*(name for balance in result.balances for name in balance.segments), *snapshots]
    done: list[Compressed] = []
    for name in dict.fromkeys(names):
        try:
            done += compress(Path(name))
        except SinkError as error:
            complain(f"{name} is not compressed: {error}")
    for one in done:
        if one.attempt.went_wrong:
            complain(f"{one.path} is not compressed: {one.attempt.detail}")
    return done


def _symbols(python: str, stacks: Sequence[tuple[int, Sequence[int]]]) -> list[list[str]]:
    """Return names of addresses; the addresses if that fails: the recording is worth more."""
    try:
        return bcc_client.symbols(stacks, python=python)
    except CollectordError as error:
        complain(f"addresses have no names: {error}")
        return [[f"{address:#x}" for address in addresses] for _, addresses in stacks]


def refuse_command(name: str) -> int:
    """Print why a COMMAND cannot be run, and return the status that a shell would."""
    try:
        there = "/" in name and Path(name).exists()
    except PermissionError:  # it is in a closed directory; a shell does the same
        there = True
    if there:
        complain(f"command '{name}' is not an executable file")
        return EXIT_NOT_EXECUTABLE
    complain(f"there is no command '{name}'")
    return EXIT_NO_COMMAND


async def _record(
    kernel: Kernel,
    args: argparse.Namespace,
    config: Config,
    command: list[str],
    on_tick: Callable[[DaemonStatus], None] | None,
    *,
    abandon: Callable[[], None],
) -> RecordResult:
    with signals.stop_event((*signals.STOP_SIGNALS, signal.SIGHUP)) as stop:
        facts = host_facts(kernel, config, mount=True)
        if args.snapshot:
            check_snapshot(build(config, facts))
        return await recording.record(
            kernel,
            config,
            facts,
            command=command or None,
            duration_ns=args.duration,
            on_tick=on_tick,
            stop=stop,
            abandon=abandon,
            interval_ns=args.interval,
            on_counted=_at_intervals() if args.interval else None,
        )


@contextmanager
def stdout_for_result(*, only: bool) -> Iterator[None]:
    """Redirect COMMAND's stdout to stderr during the block, if `only`."""
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


def _at_intervals() -> Callable[[Plan, Mapping[str, Contents]], None]:
    """Return what prints the answers at intervals: all but stacks, whose names take too long."""
    live = LiveAnswers()

    def show(plan: Plan, contents: Mapping[str, Contents]) -> None:
        live.show(answers_of(plan, contents, kinds=("histogram", "table")))

    return show


@contextmanager
def _live(
    args: argparse.Namespace, config: Config, command: list[str]
) -> Iterator[Callable[[DaemonStatus], None] | None]:
    """Print during the block what is recorded: events, or a line with rates."""
    with ExitStack() as stack:
        if args.quiet:
            yield None
        elif args.interval or (args.programs and sys.stdout.isatty() and not args.json):
            (session,) = config.session
            if sys.stdout.isatty():
                name = Path(session.single_file).name
                stack.enter_context(LiveEvents(Path(session.directory), name).running())
            yield lambda _status: None  # what is read once per flush interval is not stretched
        else:
            yield stack.enter_context(live_line(command))


@contextmanager
def live_line(command: list[str]) -> Iterator[Callable[[DaemonStatus], None] | None]:
    """Draw on stderr, unless that is not a terminal or COMMAND writes to the same one.

    Without a line the block gets None: nobody makes a status at each flush then.
    """
    if not sys.stderr.isatty() or (command and sys.stdout.isatty()):
        yield None
        return
    from collectord.cli.live_line import LiveLine  # noqa: PLC0415  # rich on a terminal only

    with LiveLine() as line:
        yield line.update


def status_of(command_status: int | None) -> int:
    """Return the exit status for COMMAND's: 128 + N if signal N ended it, 0 if there was none."""
    if command_status is None:
        return EXIT_OK
    return command_status if command_status >= 0 else _SIGNAL_STATUS - command_status
