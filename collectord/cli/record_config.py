# SPDX-License-Identifier: Apache-2.0
"""The configuration that says what the options of `record` say."""

from __future__ import annotations

import mmap
import os
import pwd
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import record_options
from collectord.config import event_spec, relay_rules, trace_names
from collectord.config.event_spec import PmuEvent
from collectord.config.rules import check_config
from collectord.config.schema import (
    BpfConfig,
    BpfSourceConfig,
    BpfTransportName,
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
from collectord.errors import UsageError
from collectord.model import FLIGHT_RECORDER
from collectord.plan import budget
from collectord.text import cpu_list
from collectord.text.nearest import did_you_mean
from collectord.text.units import Bytes, Nanoseconds, RingSize, Share

if TYPE_CHECKING:
    import argparse

    from collectord.config.schema import SourceConfig
    from collectord.plan.session_plan import Plan

SESSION: Final = "record"
DEFAULT_OUTPUT: Final = {
    PerfSourceConfig.kind: "perf.data",
    TracefsSourceConfig.kind: "trace.dat",
    BpfSourceConfig.kind: "perf.data",
}
# Names of open descriptors, whatever they are of.
_STREAMS: Final = ("/dev/std", "/dev/fd/", "/proc/self/fd/")
DEFAULT_EVENT: Final = "cycles|cpu-clock"
# A chunk that keeps AUX records whole is twice an area; four are the least (plan/aux_areas.py).
# Staging that is never used takes no memory.
_STAGED_AREAS: Final = 8
_STAGING_MAX_BYTES: Final = 4 << 30
_USERS_CACHE: Final = ".cache/collectord/headers"


def config_of(args: argparse.Namespace, *, with_command: bool) -> Config:
    """The configuration that does what the options say.

    Raises:
        UsageError: the options do not go together.
    """
    sources = _sources(args)
    if args.snapshot and not _may_have_aux(args):
        raise no_area()
    recorder = args.overwrite or args.snapshot
    if (args.freeze_on or args.freeze_filter) and not recorder:
        hint = "add --overwrite, or -S with an AUX event"
        raise UsageError("there is nothing to freeze without --overwrite", hint=hint)
    _check_no_stream(args.output)
    output = Path(args.output or _default_output(sources[0])).absolute()
    directory = Path(args.output_dir).absolute() if args.output_dir else output.parent
    config = Config(
        daemon=DaemonConfig(
            state_dir=str(directory), staging=_staging(args), drain_priority=args.realtime
        ),
        metrics=MetricsConfig(listen=""),
        control=ControlConfig(socket=""),
        # Not among the recordings.
        bpf=BpfConfig(cache="" if os.geteuid() == 0 else str(Path.home() / _USERS_CACHE)),
        # What was recorded by hand is deleted by hand.
        retention=RetentionConfig(bytes=Bytes(0), age=Nanoseconds(0), free=Share()),
        session=(
            SessionConfig(
                name=SESSION,
                mode=FLIGHT_RECORDER if recorder else "stream",
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


def _check_no_stream(output: str | None) -> None:
    """A recording's head tells what only its end knows, so nobody can read it as it comes."""
    if output == "-" or (output or "").startswith(_STREAMS):
        raise UsageError(
            f"-o {output}: a recording goes to a file, not to a stream",
            text=output or "",
            hint="name a file, and pipe that once the recording is over (./- is one called -)",
        )


def no_area() -> UsageError:
    """The error where -S has nothing to be of."""
    return UsageError(
        "-S is of AUX areas, and no -e has one",
        hint="-e PMU// as `collectord list aux` shows them; --overwrite is of other rings",
    )


def check_snapshot(plan: Plan) -> None:
    """Whether what the options may have meant is there once this host was asked.

    Raises:
        UsageError: no ring has an AUX area.
    """
    if not any(ring.aux for session in plan.sessions for ring in session.rings):
        raise no_area()


def _staging(args: argparse.Namespace) -> Bytes:
    """Room for the trace of AUX areas of the size that is asked for, which no option gives."""
    asked = args.mmap_pages.aux.in_bytes(mmap.PAGESIZE, 0)
    area = budget.ring_bytes(asked, mmap.PAGESIZE) if asked else 0
    return max(DaemonConfig().staging, Bytes(min(_STAGED_AREAS * area, _STAGING_MAX_BYTES)))


def _may_have_aux(args: argparse.Namespace) -> bool:
    """Whether an event is a PMU's. What is wrong with one is said in full later."""
    try:
        return any(
            isinstance(event.body, PmuEvent)
            for option in args.events
            for choice in event_spec.parse_choices(option.text)
            for group in choice
            for event in group.events
        )
    except UsageError:
        return True


def _default_output(source: SourceConfig) -> str:
    """As blktrace: files of the device's name, where the user is."""
    if isinstance(source, RelaySourceConfig):
        (name,) = (*relay_rules.names(source.device), *relay_rules.names(source.path))[:1]
        return Path(name).name
    return DEFAULT_OUTPUT[source.kind]


def _sources(args: argparse.Namespace) -> tuple[SourceConfig, ...]:
    of_bpf = typing.get_args(BpfTransportName)
    if args.transport and (args.transport in of_bpf) != bool(args.programs):
        if args.programs:
            raise UsageError(
                f"--transport {args.transport} does not go with --bpf", hint=" or ".join(of_bpf)
            )
        raise UsageError(f"--transport {args.transport} is of BPF programs", hint="add --bpf NAME")
    if args.relays:
        return _relay(args)
    if args.programs:
        return _bpf(args)
    return (_tracefs(args) if _by_ftrace(args) else _perf(args),)


def _bpf(args: argparse.Namespace) -> tuple[BpfSourceConfig, ...]:
    others = {
        "-e": bool(args.events),
        "--via ftrace": args.via == record_options.FTRACE,
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
            transport=args.transport or "perf",
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
