# SPDX-License-Identifier: Apache-2.0
"""`collectord record`: options become a configuration, and that goes the daemon's way."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import pwd
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord import log, recording
from collectord.cli import EXIT_NO_COMMAND, EXIT_NOT_EXECUTABLE, EXIT_OK, record_options
from collectord.cli.output import complain, flush
from collectord.cli.summary import print_result
from collectord.config import relay_check
from collectord.config.check import check_config
from collectord.config.schema import (
    BpfConfig,
    BpfSourceConfig,
    Config,
    ControlConfig,
    DaemonConfig,
    EventConfig,
    MetricsConfig,
    PerfSourceConfig,
    RelaySourceConfig,
    RetentionConfig,
    ScopeName,
    SessionConfig,
    TargetConfig,
    TraceEventConfig,
    TracefsSourceConfig,
    TransportName,
)
from collectord.config.units import Bytes, Nanoseconds, RingSize, Share
from collectord.control import signals
from collectord.errors import CollectordError, UsageError
from collectord.host import host_facts
from collectord.kernel.names import HostNames
from collectord.maps.answer import make_answer
from collectord.plan import cpu_list, trace_names
from collectord.plan.nearest import did_you_mean
from collectord.plan.session import FLIGHT_RECORDER
from collectord.source import bcc_client

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from collectord.config.schema import SourceConfig
    from collectord.daemon import DaemonStatus
    from collectord.maps.answer import Answer
    from collectord.recording import RecordResult

SESSION: Final = "record"
DEFAULT_OUTPUT: Final = {
    PerfSourceConfig.kind: "perf.data",
    TracefsSourceConfig.kind: "trace.dat",
    BpfSourceConfig.kind: "perf.data",
}
DEFAULT_EVENT: Final = "cycles|cpu-clock"
_USERS_CACHE: Final = ".cache/collectord/headers"
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
        answers = _answers(result)
        print_result(
            result.balances,
            as_json=args.json,
            programs=result.programs,
            answers=answers,
            snapshots=result.snapshots,
        )
        flush()
    except BrokenPipeError:
        if not command:
            raise
    return status


def _answers(result: RecordResult) -> dict[str, list[Answer]]:
    """What the BPF programs of a recording have to say, by program."""
    found: dict[str, list[Answer]] = {}
    for session in result.plan.sessions:
        counted = result.counted.get(session.name)
        if session.bpf is None or counted is None:
            continue
        symbols = functools.partial(_symbols, session.bpf.python)
        for one in session.bpf.programs:
            found[one.name] = [
                make_answer(config, counted.get(one.name, {}), HostNames(), symbols)
                for config in one.program.manifest.answer
            ]
    return {program: answers for program, answers in found.items() if answers}


def _symbols(python: str, stacks: Sequence[tuple[int, Sequence[int]]]) -> list[list[str]]:
    """Names of addresses; the numbers where they cannot be had: the recording is worth more."""
    try:
        return bcc_client.symbols(stacks, python=python)
    except CollectordError as error:
        complain(f"addresses have no names: {error}")
        return [[f"{address:#x}" for address in addresses] for _, addresses in stacks]


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
            host_facts(config, mount=True),
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
    sources = _sources(args)
    if (args.freeze_on or args.freeze_filter) and not args.overwrite:
        raise UsageError("there is nothing to freeze without --overwrite", hint="add --overwrite")
    output = Path(args.output or _default_output(sources[0])).absolute()
    directory = Path(args.output_dir).absolute() if args.output_dir else output.parent
    config = Config(
        daemon=DaemonConfig(state_dir=str(directory)),
        metrics=MetricsConfig(listen=""),
        control=ControlConfig(socket=""),
        # Not among the recordings.
        bpf=BpfConfig(cache="" if os.geteuid() == 0 else str(Path.home() / _USERS_CACHE)),
        # What was recorded by hand is deleted by hand.
        retention=RetentionConfig(bytes=Bytes(0), age=Nanoseconds(0), free=Share()),
        session=(
            SessionConfig(
                name=SESSION,
                mode=FLIGHT_RECORDER if args.overwrite or args.snapshot else "stream",
                freeze_on=args.freeze_on,
                freeze_filter=args.freeze_filter,
                directory=str(directory),
                single_file="" if args.output_dir else str(output),
                target=_target(
                    args, with_command=with_command and not (args.programs or args.relays)
                ),
                source=sources,
            ),
        ),
    )
    for problem in check_config(config):
        option = problem.key.rpartition(".")[2].replace("_", "-")
        raise UsageError(f"{option}: {problem.message}", hint=problem.hint)
    return config


def _default_output(source: SourceConfig) -> str:
    """As blktrace: files of the device's name, where the user is."""
    if isinstance(source, RelaySourceConfig):
        (name,) = (*relay_check.names(source.device), *relay_check.names(source.path))[:1]
        return Path(name).name
    return DEFAULT_OUTPUT[source.kind]


def _sources(args: argparse.Namespace) -> tuple[SourceConfig, ...]:
    if args.relays:
        return _relay(args)
    if args.programs:
        return _bpf(args)
    return (_tracefs(args) if _by_ftrace(args) else _perf(args),)


def _bpf(args: argparse.Namespace) -> tuple[BpfSourceConfig, ...]:
    others = {
        "-e": bool(args.events),
        "--via ftrace": args.via == record_options.FTRACE,
        "--transport": bool(args.transport),
        "-p": bool(args.pid),
        "-c": args.count is not None,
        "-i": args.no_inherit,
        "--overwrite": args.overwrite,
        **_of_perf(args),
    }
    wrong = next((name for name, given in others.items() if given), "")
    if wrong:
        raise UsageError(
            f"{wrong} does not go with --bpf",
            hint="a program sees whole CPUs; what it filters are its parameters (--bpf-arg)",
        )
    return tuple(
        BpfSourceConfig(
            program=program.name,
            arguments=program.arguments,
            ring=args.mmap_pages.data,
            when="always",
        )
        for program in args.programs
    )


def _relay(args: argparse.Namespace) -> tuple[RelaySourceConfig, ...]:
    others = {
        "-e": bool(args.events),
        "--bpf": bool(args.programs),
        "--via ftrace": args.via == record_options.FTRACE,
        "-p": bool(args.pid),
        "-C": bool(args.cpu),
        "-c": args.count is not None,
        "-i": args.no_inherit,
        "-m": args.mmap_pages != record_options.RingSizes(),
        "--overwrite": args.overwrite,
        **_of_perf(args),
    }
    wrong = next((name for name, given in others.items() if given), "")
    if wrong:
        hint = "it has all CPUs; a configuration can narrow blktrace and size its buffers"
        raise UsageError(f"{wrong} does not go with --relay", hint=hint)
    if len(args.relays) > 1 and not args.output_dir:
        raise UsageError("several --relay make several sets of files", hint="add --output-dir")
    transport: TransportName = args.transport or "read"
    return tuple(
        RelaySourceConfig(device=path, transport=transport)
        if _is_device(path)
        else RelaySourceConfig(path=path, transport=transport)
        for path in (str(Path(name).absolute()) for name in args.relays)
    )


def _is_device(path: str) -> bool:
    return path.startswith("/dev/") or Path(path).is_block_device()


def _by_ftrace(args: argparse.Namespace) -> bool:
    """Whether ftrace's rings are to be used.

    Raises:
        UsageError: --transport, and no ring of ftrace.
    """
    by_ftrace: bool = args.via == record_options.FTRACE
    if args.via == record_options.AUTO:
        by_ftrace = bool(args.events) and not _perf_only(args)
    if args.transport and not by_ftrace:
        raise UsageError("--transport is of ftrace's rings", hint="add --via ftrace")
    return by_ftrace


def _of_perf(args: argparse.Namespace) -> dict[str, bool]:
    """Options that only perf's rings have, and whether they are given."""
    return {
        "-F": args.freq is not None,
        "-g, --call-graph": bool(args.call_graph),
        "-t": bool(args.tid),
        "-u": args.uid is not None,
        "-G": args.cgroup is not None,
        "--per-thread": args.per_thread,
        "-S": args.snapshot,
        "-m DATA,AUX": args.mmap_pages.aux != RingSize(),
    }


def _perf_only(args: argparse.Namespace) -> str:
    """The first option that ftrace's rings have not, "" for none."""
    options = {"-c": args.count not in (None, 1), **_of_perf(args)}
    for option in args.events:
        try:
            trace_names.parse(option.text)
        except UsageError:
            options[f"-e {option.text}"] = True
    return next((name for name, given in options.items() if given), "")


def _perf(args: argparse.Namespace) -> PerfSourceConfig:
    events = tuple(EventConfig(event=option.text, filter=option.filter) for option in args.events)
    return PerfSourceConfig(
        events=events or (DEFAULT_EVENT,),
        frequency=args.freq,
        period=args.count,
        call_graph=str(args.call_graph or ""),
        ring=args.mmap_pages.data,
        aux=args.mmap_pages.aux,
    )


def _tracefs(args: argparse.Namespace) -> TracefsSourceConfig:
    if not args.events:
        raise UsageError("--via ftrace has no default event", hint="add -e SYSTEM:NAME")
    wrong = _perf_only(args)
    if wrong and not wrong.startswith("-e "):  # what is wrong with an event is said in full later
        raise UsageError(
            f"{wrong} does not go with --via ftrace",
            hint="its rings have every event of processes or CPUs, and nothing is sampled",
        )
    return TracefsSourceConfig(
        events=tuple(TraceEventConfig(event=o.text, filter=o.filter) for o in args.events),
        transport=args.transport or "auto",
        ring=args.mmap_pages.data,
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
