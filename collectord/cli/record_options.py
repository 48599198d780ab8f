# SPDX-License-Identifier: Apache-2.0
"""Options of `collectord record`: perf's letters with perf's meanings."""

from __future__ import annotations

import argparse
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import option_values, record_actions
from collectord.cli.parser import Parser
from collectord.config import call_graph, event_spec
from collectord.config.event_filter import Filter
from collectord.config.scheduling import DrainPriority
from collectord.config.schema_session import BpfTransportName, TransportName
from collectord.config.users import user_id
from collectord.errors import UsageError
from collectord.kernel.values.facts_wanted import LOCAL

if TYPE_CHECKING:
    from collections.abc import Sequence

PERF: Final = "perf"
FTRACE: Final = "ftrace"
AUTO: Final = "auto"

_USAGE = (
    "[-e EVENT [--filter F]]...",
    "[-F HZ | -c PERIOD]",
    "[-g | --call-graph MODE]",
    "[--all-cgroups]",
    "[-a | -p PID|GLOB | -t TID | -u USER | -G CGROUP]",
    "[--exe GLOB | --unit NAME]",
    "[-C LIST]",
    "[--per-thread]",
    "[-i]",
    "[--via perf|ftrace|auto]",
    "[--transport auto|mmap|read|splice|perf|ringbuf]",
    "[--bpf NAME [--bpf-arg K=V]...]...",
    "[--program-dir DIR]",
    "[--relay DEV|PATH]...",
    "[-m DATA[,AUX]]",
    "[-r PRIO]",
    "[-S]",
    "[--overwrite [--freeze-on EVENT [--freeze-filter F]]]",
    "[--duration TIME]",
    "[-o FILE | --output-dir DIR]",
    "[--interval TIME]",
    "[-q]",
    "[--json]",
    "[-- COMMAND ARGS...]",
)
_EXAMPLES = (
    "collectord record -a -g --duration 10s",
    "collectord record -F 99 -g -p 1234 --duration 1m -o app.data",
    "collectord record -e page-faults -p 'worker-*' --duration 1m",
    "collectord record -e sched:sched_switch --filter 'prev_prio < 100' -- make",
    "collectord record -e raw_syscalls:sys_enter -C 0 --output-dir out -- ./load",
    "collectord record --via ftrace -e 'sched:*' -a --duration 10s -o trace.dat",
    "collectord record -e intel_pt// -m ,16M --duration 1s -o trace.data",
    "collectord record --bpf biolatency --duration 10s",
    "collectord record --relay /dev/vdb --duration 10s -o vdb",
    "collectord record --overwrite -m 8M -e sched:sched_switch -- ./until-it-fails",
)


def parser() -> Parser:
    """Return the parser of `record`; COMMAND is split off before."""
    made = Parser("record", _USAGE, _EXAMPLES)
    what = made.add_argument_group("what to record")
    _add_events(what)
    _add_programs(what, "its maps are printed at the end")
    what.add_argument(
        "--program-dir",
        metavar="DIR",
        type=Path,
        help=f"with --bpf, directory of this host's own programs (default: {LOCAL})",
    )
    _add_relay(what)
    _add_scope(made)
    how = made.add_argument_group("how")
    _add_rings(how)
    _add_draining(how)
    _add_recorder(how)
    _add_freeze(how)
    where = made.add_argument_group("where to and how long")
    _add_duration(where, "when COMMAND ends; without COMMAND, on Ctrl-C")
    _add_output(where)
    made.add_argument("stray", nargs="*", help=argparse.SUPPRESS)
    return made


def add_session(made: Parser) -> None:
    """Add the options that a daemon's session has too, without relay and AUX areas."""
    what = made.add_argument_group("start: what to record")
    _add_events(what)
    _add_programs(what, "its maps are metrics while it runs")
    _add_scope(made)
    how = made.add_argument_group("start: how, and how long")
    _add_rings(how)
    _add_duration(how, "none, it must be given")
    made.set_defaults(relays=[], snapshot=False, overwrite=False)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split `arguments` at the first `--` into options and COMMAND.

    Raises:
        UsageError: the options do not parse or cannot be combined.
    """
    options, command = list(arguments), list[str]()
    if "--" in options:
        cut = options.index("--")
        options, command = options[:cut], options[cut + 1 :]
        if not command:
            raise UsageError("there is no COMMAND after --")
    args = parser().parse_intermixed_args(options)
    if args.stray:
        raise UsageError(f"{args.stray[0]!r} is not an option", hint="put -- before COMMAND")
    return args, command


def _add_events(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-e",
        "--event",
        metavar="EVENT",
        dest="events",
        action=record_actions.add_event,
        type=option_values.checked(event_spec.parse_choices),
        default=[],
        help="event as perf spells it, repeatable: cycles:u, page-faults, sched:sched_*, "
        "r1a8, mem:ADDR, cpu/event=0x3c/, '{a,b}:k', intel_pt// (default: cycles, or "
        "cpu-clock without hardware counters; none with --via ftrace)",
    )
    group.add_argument(
        "--filter",
        metavar="F",
        action=record_actions.add_filter,
        default=argparse.SUPPRESS,
        help="filter for the tracepoints of the preceding -e, such as 'prev_pid == 1'; for an AUX "
        "event an address filter, such as 'filter 0x1000/0x200@/bin/x' (default: none)",
    )
    rate = group.add_mutually_exclusive_group()
    rate.add_argument(
        "-F",
        "--freq",
        metavar="HZ",
        type=option_values.positive,
        help="samples per second of each event (default: 4000; every occurrence of tracepoints "
        "and of software events that count)",
    )
    rate.add_argument(
        "-c",
        "--count",
        metavar="PERIOD",
        type=option_values.positive,
        help="take one sample every PERIOD events (default: see -F)",
    )
    chains = group.add_mutually_exclusive_group()
    chains.add_argument(
        "-g",
        dest="call_graph",
        action="store_const",
        const=call_graph.CallGraph(call_graph.FP),
        help="record call graphs by frame pointers (default: none)",
    )
    chains.add_argument(
        "--call-graph",
        metavar="MODE",
        type=option_values.checked(call_graph.parse),
        help="record call graphs: fp, dwarf[,SIZE] or lbr (default: none; SIZE is 8192 bytes)",
    )
    group.add_argument(
        "--all-cgroups",
        action="store_true",
        help="record the cgroup of each sample, for `flame --by cgroup` (default: do not)",
    )


def _add_programs(group: argparse._ArgumentGroup, maps: str) -> None:
    group.add_argument(
        "--bpf",
        metavar="NAME",
        dest="programs",
        action=record_actions.add_program,
        default=[],
        help="run this BPF program on all CPUs or those of -C, and record the events that it "
        f"submits; {maps}; repeatable; see `collectord bpf list` (default: none)",
    )
    group.add_argument(
        "--bpf-arg",
        metavar="K=V",
        action=record_actions.set_program_argument,
        default=argparse.SUPPRESS,
        help="set a parameter of the preceding --bpf; see `collectord bpf check NAME` (default: "
        "the program's own default)",
    )


def _add_relay(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--relay",
        metavar="DEV|PATH",
        dest="relays",
        action="append",
        type=option_values.not_empty("path"),
        default=[],
        help="trace this block device as blktrace does, or read this relay channel in debugfs, "
        "whose path is given without the CPU's number; repeatable with --output-dir; see "
        "`collectord list relay` (default: none)",
    )


def _add_scope(made: Parser) -> None:
    group = made.add_argument_group("which tasks and CPUs to observe")
    whom = group.add_mutually_exclusive_group()
    whom.add_argument(
        "-a",
        "--all-cpus",
        action="store_true",
        help="observe all tasks on all CPUs (default without COMMAND; with COMMAND, only its "
        "tasks)",
    )
    whom.add_argument(
        "-p",
        "--pid",
        metavar="PID|GLOB",
        type=option_values.ids_or_glob,
        help="observe these processes: PID[,PID]...; or all whose name matches a pattern, such as "
        "'worker-*', also those that begin later (default: -a)",
    )
    whom.add_argument(
        "-t",
        "--tid",
        metavar="TID",
        type=option_values.ids,
        help="observe these threads: TID[,TID]... (default: -a)",
    )
    whom.add_argument(
        "-u",
        "--uid",
        metavar="USER",
        type=option_values.checked(user_id),
        help="observe the processes of a user, given by name or uid (default: -a)",
    )
    whom.add_argument(
        "-G",
        "--cgroup",
        metavar="CGROUP",
        help="observe a cgroup, given by its path below the hierarchy's root or by its full path "
        "(default: -a)",
    )
    whom.add_argument(
        "--exe",
        metavar="GLOB",
        type=option_values.not_empty("pattern"),
        help="observe all processes whose executable's path matches, such as '/usr/sbin/*', also "
        "those that begin later (default: -a)",
    )
    whom.add_argument(
        "--unit",
        metavar="NAME",
        type=option_values.not_empty("pattern"),
        help="observe all processes of a systemd unit, such as nginx.service, also those that "
        "begin later (default: -a)",
    )
    group.add_argument(
        "-C",
        "--cpu",
        metavar="LIST",
        type=option_values.cpus,
        default=(),
        help="observe only these CPUs, such as 0-3,5 (default: all that are online)",
    )
    group.add_argument(
        "--per-thread",
        action="store_true",
        help="open one ring for each thread (default: one for each CPU)",
    )
    group.add_argument(
        "-i",
        "--no-inherit",
        action="store_true",
        help="do not observe children that start later (default: observe them)",
    )


def _add_rings(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--via",
        choices=(PERF, FTRACE, AUTO),
        metavar="perf|ftrace|auto",
        default=PERF,
        help="which rings to use: perf's, stored as perf.data; ftrace's, for tracepoints only, "
        "stored as trace.dat; auto: ftrace's unless an option needs perf's (default: perf)",
    )
    group.add_argument(
        "--transport",
        choices=(*typing.get_args(TransportName), *typing.get_args(BpfTransportName)),
        metavar="auto|mmap|read|splice|perf|ringbuf",
        help="how to read ftrace's rings: auto, mmap, read or splice (default: auto, the cheapest "
        "on this host); with --bpf, the buffers for events: perf or ringbuf (default: perf)",
    )
    group.add_argument(
        "-m",
        "--mmap-pages",
        metavar="DATA[,AUX]",
        type=option_values.ring_sizes,
        default=option_values.RingSizes(),
        help="size of each ring, and of its AUX area, in pages or with a unit such as 8M; sizes "
        "of perf's rings are rounded up to a power of two of pages (default: chosen by the plan)",
    )


def _add_draining(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-r",
        "--realtime",
        metavar="PRIO",
        type=option_values.realtime,
        default=DrainPriority(),
        help="drain the rings with SCHED_FIFO at this priority, 1 to 99, if that is permitted "
        "(default: 1 if that is permitted, unless collectord was started with a nice value)",
    )
    group.add_argument(
        "-S",
        "--snapshot",
        action="store_true",
        help="let AUX areas overwrite their oldest trace, and store their contents at the end; "
        "with --output-dir also at each SIGUSR2 (default: store all of the trace)",
    )


def _add_recorder(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="let the rings overwrite their oldest records, and store their contents at the end; "
        "with --output-dir also at each SIGUSR2 (default: store every record as it comes)",
    )


def _add_freeze(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--freeze-on",
        metavar="EVENT",
        type=option_values.checked(event_spec.parse_one),
        help="with --overwrite or -S: have the kernel stop the ring at the moment that EVENT "
        "happens, store the contents of all rings, and go on (default: none)",
    )
    group.add_argument(
        "--freeze-filter",
        metavar="F",
        type=Filter.parse,
        default=Filter(),
        help="filter for the tracepoint of --freeze-on (default: none)",
    )


def _add_duration(group: argparse._ArgumentGroup, default: str) -> None:
    group.add_argument(
        "--duration",
        metavar="TIME",
        type=option_values.duration,
        default=0,
        help="stop after TIME, in seconds or with a unit such as 500ms or 10m "
        f"(default: {default})",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=option_values.not_empty("path"),
        help="write one file, and keep the file that it replaces as FILE.old (default: perf.data, "
        "with ftrace trace.dat); with --relay, write one file for each CPU, FILE.blktrace.N or "
        "FILE.relay.N (default: the name of the device or channel)",
    )
    where.add_argument(
        "--output-dir",
        metavar="DIR",
        type=option_values.not_empty("path"),
        help="write rotated segments into DIR (default: write one file)",
    )
    group.add_argument(
        "-z",
        "--compress",
        action="store_true",
        help="compress the files when the recording has ended; perf and trace-cmd read them as "
        "before, and files of --relay become zstd files (default: no)",
    )
    group.add_argument(
        "--interval",
        metavar="TIME",
        type=option_values.duration,
        default=0,
        help="with --bpf, print maps at this interval too, a second or more: histograms as a line "
        "of a heat map, with what was added since the line before, and tables as they are then "
        "(default: at the end only)",
    )
    group.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print the result only: on a terminal neither the events of --bpf as they come nor "
        "a line with rates (default: both)",
    )
    group.add_argument(
        "--json",
        action="store_true",
        help="print the result as JSON and nothing else; COMMAND's output goes to stderr "
        "(default: a table)",
    )
