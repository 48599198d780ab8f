# SPDX-License-Identifier: Apache-2.0
"""`collectord list`: events, programs, devices and channels, with their availability."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from textwrap import shorten
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_OK
from collectord.cli.output import complain, print_json, say
from collectord.cli.parser import Parser
from collectord.cli.text_table import Column, print_table
from collectord.codec.event_names import NAMED_EVENTS
from collectord.codec.perf_attr import EventType, PerfEventAttr
from collectord.config.event_spec import PmuEvent
from collectord.config.schema import BpfConfig
from collectord.daemon.host_facts import bpf_wanted
from collectord.errors import (
    CollectordError,
    KernelError,
    MissingFeature,
    MissingPrivilege,
    UsageError,
)
from collectord.facts.kernel_facts import TRACEPOINTS_CHECK
from collectord.kernel.values.facts_wanted import FactsWanted
from collectord.kernel.values.limits import Purpose
from collectord.plan import bpf_source, known_aux, pmu

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.facts.kernel_facts import KernelFacts, RelayFacts
    from collectord.kernel.port import Kernel

_KINDS: Final = {
    EventType.HARDWARE: "hardware",
    EventType.SOFTWARE: "software",
    EventType.HW_CACHE: "cache",
}
_COLUMNS: Final = (
    Column("EVENT"),
    Column("KIND"),
    Column("HERE"),
    Column("DESCRIPTION, OR WHY NOT"),
)
_GROUP_COLUMNS: Final = (
    Column("KIND"),
    Column("EVENTS", "right"),
    Column("HERE", "right"),
    Column("FOR EXAMPLE, OR WHY NOT"),
)
_EXAMPLES: Final = 3  # of a kind
_EXAMPLES_WIDTH: Final = 53  # what the other columns leave of 80


@dataclass(frozen=True, slots=True)
class ListedEvent:
    """An event for `-e`, a program for `--bpf`, or a device or channel for `--relay`.

    `reason` says why it cannot be opened here, "" if it can; `description` says what it counts, ""
    where that is not known.
    """

    name: str
    kind: str
    available: bool
    reason: str = ""
    description: str = ""


def parser() -> Parser:
    """Return the parser of `list`."""
    made = Parser(
        "list",
        ("[--json]", "[GLOB]"),
        (
            "collectord list",
            "collectord list '*'",
            "collectord list software",
            "collectord list 'sched:*'",
            "collectord list --json '*cache*'",
            "collectord list blktrace",
        ),
    )
    made.add_argument(
        "glob",
        metavar="GLOB",
        nargs="?",
        help="events to list, by a pattern of names or by one kind: hardware, software, cache, "
        "pmu, aux, tracepoint, bpf, blktrace (block devices), relay (channels) (default: the "
        "number of each kind; with --json all)",
    )
    made.add_json("print the events as JSON (default: a table)")
    return made


def run(arguments: Sequence[str], kernel: Kernel) -> int:
    """Print the events that match, in perf's order of kinds."""
    args = parser().parse_args(arguments)
    glob = args.glob or "*"
    programs = bpf_wanted(BpfConfig(), None)
    facts = kernel.facts(FactsWanted(mount=True, bpf=programs, relay=True))
    found = [
        listed
        for listing in (_named, _pmu_events, _aux_events, _tracepoints, _programs, _relay)
        for listed in listing(kernel, facts, glob)
    ]
    if facts.tracefs_problem and _may_name_tracepoints(glob):
        _tell_tracepoints(facts, alone=not found)
    if not found and glob == "relay" and facts.relay is not None:
        _check_debugfs(facts.relay)
    if args.json:
        print_json({"events": found})
        return EXIT_OK
    if not found:
        if glob == "relay":
            raise CollectordError("there are no relay channels now")
        raise CollectordError(f"no event matches {glob!r}", hint="try *PART*")
    if args.glob is None:
        _print_kinds(found)
        return EXIT_OK
    print_table(
        _COLUMNS,
        [
            [e.name, e.kind, "yes" if e.available else "no", e.reason or e.description]
            for e in found
        ],
    )
    return EXIT_OK


def _print_kinds(found: Sequence[ListedEvent]) -> None:
    """Print the number of events of each kind, with examples, and how to see them."""
    kinds: dict[str, list[ListedEvent]] = {}
    for event in found:
        kinds.setdefault(event.kind, []).append(event)
    rows = []
    for kind, events in kinds.items():
        here = [event.name for event in events if event.available]
        reasons = Counter(event.reason for event in events)
        shown = ", ".join(here[:_EXAMPLES]) or reasons.most_common(1)[0][0]
        rows.append(
            [
                kind,
                f"{len(events):,}",
                f"{len(here):,}",
                shorten(shown, _EXAMPLES_WIDTH, placeholder=" ..."),
            ]
        )
    print_table(_GROUP_COLUMNS, rows)
    say("`collectord list KIND` lists the events of a kind, `collectord list '*'` all.")


def _may_name_tracepoints(glob: str) -> bool:
    return glob == "tracepoint" or ":" in glob or "*" in glob


def _tell_tracepoints(facts: KernelFacts, *, alone: bool) -> None:
    """Report why tracepoints are not listed.

    Raises:
        MissingPrivilege, MissingFeature: nothing else is listed either.
    """
    problem = f"tracepoints are not listed: {facts.tracefs_problem}"
    (check,) = (check for check in facts.checks if check.name == TRACEPOINTS_CHECK)
    if not alone:
        complain(f"{problem}; remedy: {check.remedy}")
    elif facts.tracefs_need:
        raise MissingPrivilege(problem, need=facts.tracefs_need)
    else:
        raise MissingFeature(problem, feature="tracefs", hint=check.remedy)


def _check_debugfs(relay: RelayFacts) -> None:
    """Raise the reason why relay channels cannot be listed, if there is one.

    Raises:
        MissingPrivilege, MissingFeature: they cannot be listed.
    """
    problem = f"relay channels are not listed: {relay.problem}"
    if relay.need:
        raise MissingPrivilege(problem, need=relay.need, hint=relay.remedy)
    if relay.problem:
        raise MissingFeature(problem, feature="relay", hint=relay.remedy)


def _matches(glob: str, name: str, kind: str) -> bool:
    return glob == kind or fnmatchcase(name.lower(), glob.lower())


def _named(kernel: Kernel, facts: KernelFacts, glob: str) -> Iterator[ListedEvent]:
    for event in NAMED_EVENTS:
        kind = _KINDS[event.type]
        if _matches(glob, event.name, kind):
            attr = PerfEventAttr(type=event.type, config=event.config, disabled=True)
            listed = ListedEvent(event.name, kind, available=True, description=event.description)
            yield _tried(kernel, facts, listed, attr)


def _pmu_events(kernel: Kernel, facts: KernelFacts, glob: str) -> Iterator[ListedEvent]:
    for pmu_name, pmu_facts in sorted(facts.pmus.items()):
        for alias in sorted(pmu_facts.events):
            name = f"{pmu_name}/{alias}/"
            if not _matches(glob, name, "pmu"):
                continue
            try:
                laid = pmu.lay_out(PmuEvent(pmu_name, ((alias, None),)), pmu_facts, name)
            except (UsageError, KernelError) as error:
                yield ListedEvent(name, "pmu", available=False, reason=str(error))
                continue
            attr = PerfEventAttr(
                type=pmu_facts.type,
                config=laid.config,
                config1=laid.config1,
                config2=laid.config2,
                disabled=True,
            )
            cpu = -1 if pmu_facts.core else (*pmu_facts.cpus, *facts.cpus_online)[0]
            yield _tried(kernel, facts, ListedEvent(name, "pmu", available=True), attr, cpu=cpu)


def _aux_events(kernel: Kernel, facts: KernelFacts, glob: str) -> Iterator[ListedEvent]:
    """Yield PMUs that trace into AUX areas: those of this host, and known ones that it lacks."""
    here = {name: pmu for name, pmu in facts.pmus.items() if pmu.aux}
    decoders = {facts.aux_pmus[name].decoder for name in here if name in facts.aux_pmus}
    absent = {
        pmu: need
        for decoder, (_, pmu, need) in known_aux.KNOWN.items()
        if decoder not in decoders and pmu not in here
    }
    for pmu_name in sorted({*here, *absent}):
        name = f"{pmu_name}//"
        if not _matches(glob, name, "aux"):
            continue
        if pmu_name in absent:
            reason = f"not on this host: needs {absent[pmu_name]}"
            yield ListedEvent(name, "aux", available=False, reason=reason)
            continue
        attr = known_aux.trial_attr(here[pmu_name], facts.aux_pmus.get(pmu_name))
        yield _tried(kernel, facts, ListedEvent(name, "aux", available=True), attr)


def _tracepoints(_kernel: Kernel, facts: KernelFacts, glob: str) -> Iterator[ListedEvent]:
    """Yield tracepoints without a trial: opening a tracepoint would patch the kernel's code."""
    reason = "" if facts.may_read_tracepoints else "needs CAP_PERFMON"
    for name in sorted(map(str, facts.tracepoints)):
        if _matches(glob, name, "tracepoint"):
            yield ListedEvent(name, "tracepoint", available=not reason, reason=reason)


def _programs(_kernel: Kernel, facts: KernelFacts, glob: str) -> Iterator[ListedEvent]:
    """Yield programs without compiling them; `bpf check` compiles a single one."""
    reasons = {p.name: bpf_source.obstacle(p, facts) for p in facts.bpf.programs.values()}
    for name, reason in sorted((reasons | facts.bpf.program_problems).items()):
        if _matches(glob, name, "bpf"):
            program = facts.bpf.programs.get(name)
            summary = program.manifest.summary if program is not None else ""
            yield ListedEvent(
                name, "bpf", available=not reason, reason=reason, description=summary
            )


def _relay(_kernel: Kernel, facts: KernelFacts, glob: str) -> Iterator[ListedEvent]:
    """Yield devices without a trial: tracing a device keeps others from tracing it."""
    relay = facts.relay
    if relay is None:
        return
    reason = relay.problem
    blktrace = reason or ("" if relay.blktrace else "this kernel has no blktrace")
    for device in relay.devices:
        if _matches(glob, device, "blktrace"):
            why = blktrace or ("hidden from this process" if device in relay.hidden else "")
            yield ListedEvent(device, "blktrace", available=not why, reason=why)
    for channel in sorted(relay.channels):
        if _matches(glob, channel, "relay"):
            yield ListedEvent(channel, "relay", available=not reason, reason=reason)


def _tried(
    kernel: Kernel,
    facts: KernelFacts,
    listed: ListedEvent,
    attr: PerfEventAttr,
    *,
    cpu: int = -1,
) -> ListedEvent:
    """Open the event for this process, or for all of one CPU, and close it again."""
    # A user who may not observe the kernel may still open the event's user part.
    if cpu < 0 and not facts.may_observe_kernel:
        attr = replace(attr, exclude_kernel=True, exclude_hv=True)
    try:
        fd = kernel.perf_event_open(
            attr, pid=0 if cpu < 0 else -1, cpu=cpu, purpose=Purpose(event=listed.name)
        )
    except KernelError as error:
        return replace(listed, available=False, reason=error.hint or error.message)
    kernel.close(fd)
    return listed
