# SPDX-License-Identifier: Apache-2.0
"""The configuration made from the options of `record`."""

from __future__ import annotations

import mmap
import os
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.cli import option_values, record_options
from collectord.codec.file_formats import PERF_DATA, TRACE_DAT
from collectord.config import event_spec, trace_names
from collectord.config.encode import encode
from collectord.config.event_filter import Filter
from collectord.config.event_spec import PmuEvent, events_of
from collectord.config.rules import check_config
from collectord.config.schema import (
    BpfConfig,
    Config,
    ControlConfig,
    DaemonConfig,
    MetricsConfig,
    RetentionConfig,
)
from collectord.config.schema_session import (
    BpfSourceConfig,
    BpfTransportName,
    EventConfig,
    PerfSourceConfig,
    RelaySourceConfig,
    SessionConfig,
    TargetConfig,
    TimedSessionConfig,
    TraceEventConfig,
    TracefsSourceConfig,
    TransportName,
)
from collectord.errors import UsageError
from collectord.kernel.values.facts_wanted import LOCAL
from collectord.model import FLIGHT_RECORDER, RECORD_SESSION, ScopeKind
from collectord.plan import ring_sizes
from collectord.text.units import NS_PER_SECOND, Bytes, Least, Nanoseconds, RingSize, Share

if TYPE_CHECKING:
    import argparse

    from collectord.config.schema_session import SourceConfig
    from collectord.plan.plan import Plan

DEFAULT_OUTPUT: Final = {
    PerfSourceConfig.kind: PERF_DATA,
    TracefsSourceConfig.kind: TRACE_DAT,
    BpfSourceConfig.kind: PERF_DATA,
}
# Paths of open descriptors of any kind.
_STREAMS: Final = ("/dev/std", "/dev/fd/", "/proc/self/fd/")
DEFAULT_EVENT: Final = EventConfig(event=event_spec.parse_choices("cycles|cpu-clock"))
# A chunk that keeps AUX records whole is twice an area; at least four chunks are needed
# (plan/aux_areas.py). Unused staging takes no memory.
_STAGED_AREAS: Final = 8
_STAGING_MAX_BYTES: Final = 4 << 30
_USERS_CACHE: Final = ".cache/collectord/headers"


def config_of(args: argparse.Namespace, *, with_command: bool) -> Config:
    """Return the configuration for the options.

    Raises:
        UsageError: the options cannot be combined.
    """
    sources = _sources(args)
    if args.snapshot and not _may_have_aux(args):
        raise no_area()
    recorder = args.overwrite or args.snapshot
    if (args.freeze_on or args.freeze_filter) and not recorder:
        hint = "add --overwrite, or -S with an AUX event"
        raise UsageError("--freeze-on needs a flight recorder", hint=hint)
    if args.program_dir and not args.programs:
        raise UsageError("--program-dir is for BPF programs", hint="add --bpf NAME")
    _check_no_stream(args.output)
    _check_interval(args)
    output = Path(args.output or _default_output(sources[0])).absolute()
    directory = Path(args.output_dir).absolute() if args.output_dir else output.parent
    config = Config(
        daemon=DaemonConfig(
            state_dir=str(directory),
            staging=_staging(args),
            heartbeat=Nanoseconds(0),
            drain_priority=args.realtime,
        ),
        metrics=MetricsConfig(listen=None),
        control=ControlConfig(socket=""),
        # The headers are not kept among the recordings.
        bpf=BpfConfig(
            programs=str((args.program_dir or LOCAL).absolute()),
            cache="" if os.geteuid() == 0 else str(Path.home() / _USERS_CACHE),
        ),
        # Recordings made by hand are deleted by hand.
        retention=RetentionConfig(
            bytes=Least(), age=Nanoseconds(0), free=Share(), compress_after=Nanoseconds(0)
        ),
        session=(
            SessionConfig(
                name=RECORD_SESSION,
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


def timed_session(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the table with which a daemon starts a session of these options; "": without a name.

    Raises:
        UsageError: the options cannot be combined.
    """
    target = _target(args, with_command=False)
    duration = Nanoseconds(args.duration)
    return encode(
        TimedSessionConfig(name=name, target=target, source=_sources(args), duration=duration)
    )


def _check_interval(args: argparse.Namespace) -> None:
    """Refuse an interval where there are no maps to be printed, or too short a one.

    Raises:
        UsageError: it cannot be combined with the others.
    """
    if not args.interval:
        return
    if not args.programs:
        raise UsageError("--interval is for maps of BPF programs", hint="add --bpf NAME")
    if args.json or args.quiet:
        other = "--json" if args.json else "-q"
        raise UsageError(
            f"--interval cannot be combined with {other}", hint="both say what is printed"
        )
    if args.interval < NS_PER_SECOND:
        raise UsageError("--interval is shorter than a second", hint="maps are read once a second")


def _check_no_stream(output: str | None) -> None:
    """Refuse an output to a stream: its head is completed at the end, so nobody could read it."""
    if output == "-" or (output or "").startswith(_STREAMS):
        raise UsageError(
            f"-o {output}: a recording must be written to a file, not to a stream",
            hint="name a file, and pipe it after the recording (./- is a file called -)",
        )


def no_area() -> UsageError:
    """Return the error for -S without an AUX area."""
    return UsageError(
        "-S is for AUX areas, and no -e has one",
        hint="`collectord list aux` shows events with an AUX area; --overwrite is for other rings",
    )


def check_snapshot(plan: Plan) -> None:
    """Check, once the host's facts are known, that -S has an AUX area.

    Raises:
        UsageError: no ring has an AUX area.
    """
    if not any(ring.aux for session in plan.sessions for ring in session.rings):
        raise no_area()


def _staging(args: argparse.Namespace) -> Bytes:
    """Return the staging for AUX areas of the requested size; no option sets it."""
    asked = args.mmap_pages.aux.in_bytes(mmap.PAGESIZE, 0)
    area = ring_sizes.ring_bytes(asked, mmap.PAGESIZE) if asked else 0
    return max(DaemonConfig().staging, Bytes(min(_STAGED_AREAS * area, _STAGING_MAX_BYTES)))


def _may_have_aux(args: argparse.Namespace) -> bool:
    """Whether any event is a PMU's."""
    events = (event for option in args.events for event in events_of(option.choices))
    return any(isinstance(event.body, PmuEvent) for event in events)


def _default_output(source: SourceConfig) -> str:
    """Return the default output; for relay it has the device's name, as with blktrace."""
    if isinstance(source, RelaySourceConfig):
        return Path((*source.device, *source.path)[0]).name
    return DEFAULT_OUTPUT[source.kind]


def _sources(args: argparse.Namespace) -> tuple[SourceConfig, ...]:
    of_bpf = typing.get_args(BpfTransportName)
    if args.transport and (args.transport in of_bpf) != bool(args.programs):
        if args.programs:
            raise UsageError(
                f"--transport {args.transport} cannot be combined with --bpf",
                hint=" or ".join(of_bpf),
            )
        raise UsageError(
            f"--transport {args.transport} is for BPF programs", hint="add --bpf NAME"
        )
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
        **_of_perf(args),
    }
    wrong = next((name for name, given in others.items() if given), "")
    if wrong:
        raise UsageError(
            f"{wrong} cannot be combined with --bpf",
            hint="a program observes whole CPUs; its parameters (--bpf-arg) select events",
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
        "-m": args.mmap_pages != option_values.RingSizes(),
        "--overwrite": args.overwrite,
        **_of_perf(args),
    }
    wrong = next((name for name, given in others.items() if given), "")
    if wrong:
        hint = "it covers all CPUs; a configuration can narrow blktrace and set the size of its "
        "buffers"
        raise UsageError(f"{wrong} cannot be combined with --relay", hint=hint)
    if len(args.relays) > 1 and not args.output_dir:
        raise UsageError(
            "several --relay options write several sets of files", hint="add --output-dir"
        )
    transport: TransportName = args.transport or "read"
    return tuple(
        RelaySourceConfig(device=(path,), transport=transport)
        if _is_device(path)
        else RelaySourceConfig(path=(path,), transport=transport)
        for path in (str(Path(name).absolute()) for name in args.relays)
    )


def _is_device(path: str) -> bool:
    return path.startswith("/dev/") or Path(path).is_block_device()


def _by_ftrace(args: argparse.Namespace) -> bool:
    """Whether ftrace's rings are to be used.

    Raises:
        UsageError: --transport is given without rings of ftrace.
    """
    by_ftrace: bool = args.via == record_options.FTRACE
    if args.via == record_options.AUTO:
        by_ftrace = bool(args.events) and not _perf_only(args) and _may_be_ftrace(args)
    if args.transport and not by_ftrace:
        raise UsageError(
            "--transport is for ftrace's rings and BPF programs", hint="add --via ftrace"
        )
    return by_ftrace


def _of_perf(args: argparse.Namespace) -> dict[str, bool]:
    """Return the options that only perf's rings have, and whether they are given."""
    return {
        "-F": args.freq is not None,
        "-g, --call-graph": bool(args.call_graph),
        "--all-cgroups": args.all_cgroups,
        "-t": bool(args.tid),
        "-u": args.uid is not None,
        "-G": args.cgroup is not None,
        "-p GLOB": isinstance(args.pid, str),
        "--exe": bool(args.exe),
        "--unit": bool(args.unit),
        "--per-thread": args.per_thread,
        "-S": args.snapshot,
        "-m DATA,AUX": args.mmap_pages.aux != RingSize(),
    }


def _perf_only(args: argparse.Namespace) -> str:
    """Return the first given option that ftrace's rings lack, "" for none."""
    options = {"-c": args.count not in (None, 1), **_of_perf(args)}
    return next((name for name, given in options.items() if given), "")


def _may_be_ftrace(args: argparse.Namespace) -> bool:
    """Whether ftrace has events of all these kinds."""
    try:
        _trace_events(args)
    except UsageError:
        return False
    return True


def _trace_events(args: argparse.Namespace) -> tuple[TraceEventConfig, ...]:
    """Return the events of an ftrace instance. Raises UsageError for events that ftrace lacks."""
    return tuple(
        TraceEventConfig(event=trace_names.checked(option.choices), filter=option.filter)
        for option in args.events
    )


def _perf(args: argparse.Namespace) -> PerfSourceConfig:
    events = tuple(
        EventConfig(event=option.choices, filter=Filter.parse(option.filter))
        for option in args.events
    )
    return PerfSourceConfig(
        events=events or (DEFAULT_EVENT,),
        frequency=args.freq,
        period=args.count,
        call_graph=args.call_graph,
        cgroups=args.all_cgroups,
        ring=args.mmap_pages.data,
        aux=args.mmap_pages.aux,
    )


def _tracefs(args: argparse.Namespace) -> TracefsSourceConfig:
    if not args.events:
        raise UsageError("--via ftrace has no default event", hint="add -e SYSTEM:NAME")
    wrong = _perf_only(args)
    if wrong:
        raise UsageError(
            f"{wrong} cannot be combined with --via ftrace",
            hint="its rings record every event of processes or CPUs, and no samples",
        )
    return TracefsSourceConfig(
        events=_trace_events(args),
        transport=args.transport or "auto",
        ring=args.mmap_pages.data,
    )


def _target(args: argparse.Namespace, *, with_command: bool) -> TargetConfig:
    scope = ScopeKind.SYSTEM
    comm = args.pid if isinstance(args.pid, str) else ""
    pids = () if comm else args.pid or args.tid or ()
    if comm:
        scope = ScopeKind.COMM
    elif pids:
        scope = ScopeKind.PROCESS if args.pid else ScopeKind.THREAD
    elif args.exe:
        scope = ScopeKind.EXECUTABLE
    elif args.unit:
        scope = ScopeKind.UNIT
    elif args.uid is not None:
        scope = ScopeKind.USER
    elif args.cgroup is not None:
        scope = ScopeKind.CGROUP
    elif args.cpu:
        scope = ScopeKind.CPUS
    elif with_command and not args.all_cpus:
        scope = ScopeKind.COMMAND
    return TargetConfig(
        scope=scope,
        cpus=args.cpu,
        pids=pids,
        user=args.uid,
        cgroup=args.cgroup or "",
        comm=comm,
        executable=args.exe or "",
        unit=args.unit or "",
        per_thread=args.per_thread,
        inherit=not args.no_inherit,
    )
