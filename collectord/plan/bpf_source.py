# SPDX-License-Identifier: Apache-2.0
"""Planning of BPF sources: kernel facts to the plan of their programs."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_attr import (
    CLOCK_MONOTONIC,
    EventType,
    PerfEventAttr,
    SampleType,
    SoftwareId,
)
from collectord.config.schema_session import BpfSourceConfig
from collectord.errors import (
    ConfigError,
    MissingFeature,
    MissingPrivilege,
    UsageError,
)
from collectord.model import FLIGHT_RECORDER, Basis
from collectord.plan import bpf_rings
from collectord.plan.bpf_plan import BpfPlan
from collectord.plan.event_attrs import BASE_SAMPLE_TYPE, EventPlan, read_format
from collectord.plan.program_plan import PERF, RINGBUF, KeptPlan, OutputPlan, ProgramPlan
from collectord.plan.ring_set import Rings
from collectord.plan.scope import ring_cpus
from collectord.plan.source_events import in_scope
from collectord.programs import bpf_program, c_source
from collectord.programs.parameter import as_text, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.config.schema import BpfConfig, Config
    from collectord.facts.kernel_facts import BpfFacts, KernelFacts
    from collectord.model import Scope
    from collectord.programs.bpf_program import BpfProgram

# Folder of root's compilations. Root does not trust what another user could write, nor the
# reverse.
_ROOT_CACHE: Final = "/var/cache/collectord/headers"

_BUFFERS_SINCE: Final = (5, 8)
# Arrays that can be mapped (BPF_F_MMAPABLE).
_SLOTS_SINCE: Final = (5, 5)
# Machines that make stores visible in their order, as the marks of slots need it.
_ORDERED: Final = ("x86_64", "i686")
# Errors that `when = "present"` takes for absence: an unable host, or an invalid program.
_ABSENCE: Final = (MissingFeature, MissingPrivilege, ConfigError)


def program_names(config: Config) -> tuple[str, ...]:
    """Return every program that the configuration mentions, which a probe must look up."""
    names = {
        source.program
        for session in config.session
        for source in session.source
        if isinstance(source, BpfSourceConfig)
    }
    return tuple(sorted(names))


def cache_folder(config: BpfConfig, state_dir: str, euid: int) -> str:
    """Return the folder of this user's header trees."""
    own = _ROOT_CACHE if euid == 0 else str(PurePosixPath(state_dir, "headers"))
    return config.cache or own


def draft(
    sources: Sequence[BpfSourceConfig],
    whole: Config,
    scope: Scope,
    facts: KernelFacts,
    *,
    recorder: bool = False,
) -> Rings:
    """Plan the programs of a session: they share its rings, unless it is a flight recorder.

    Raises:
        UsageError: an unknown program, or an argument that it does not take.
        PlanError: a ring that is too large.
        MissingFeature, MissingPrivilege, ConfigError: the host cannot run a program, or its files
            are invalid, and it is not optional.
    """
    config = whole.bpf
    programs: list[ProgramPlan] = []
    events: list[EventPlan] = []
    notes: list[str] = []
    degraded: list[str] = []
    chosen: list[tuple[BpfSourceConfig, ProgramPlan]] = []
    for source in sources:
        try:
            program = _program(source.program, facts)
            if recorder:
                _require_slots(source, facts)
            else:
                _require_buffers(source, facts)
        except _ABSENCE as error:
            if source.when != "present":
                raise
            degraded.append(f"{source.program}: {error}")
            continue
        _check_mode(program, recorder=recorder)
        planned, own_events = _plan(program, source, facts, first_index=len(events))
        programs.append(planned)
        events += [in_scope(event, scope) for event in own_events]
        notes += [
            f"{events[output.event_index].name}: not every event that it submits is counted; only "
            "losses are known"
            for output in planned.outputs
            if not output.counts
        ]
        if planned.outputs or planned.kept:
            chosen.append((source, planned))
    notes += _headers_notes(facts.bpf) if programs else ()
    cpus = ring_cpus(scope, facts)
    sized = bpf_rings.slot_sets if recorder else bpf_rings.ring_sets
    sets = sized(chosen, events, cpus, scope, facts) if events else ()
    keep_ns = bpf_rings.keep_ns(source for source, _ in chosen) if recorder else 0
    notes += bpf_rings.window_notes(sets, keep_ns)
    notes += bpf_rings.size_notes((source for source, _ in chosen), sets, facts.page_size)
    plan = BpfPlan(
        programs=tuple(programs),
        cpus=cpus,
        python=config.python or facts.bpf.python,
        headers=config.headers,
        cache=cache_folder(config, whole.daemon.state_dir, facts.euid),
        compile_ns=config.compile_time,
        compile_bytes=config.compile_memory,
        stats=config.stats,
        keep_ns=keep_ns,
    )
    may_fail = all(source.when == "present" for source in sources)
    return Rings(
        BpfSourceConfig.kind,
        payload=plan,
        sets=sets,
        notes=tuple(notes),
        degraded=tuple(degraded),
        may_fail=may_fail,
    )


def _plan(
    program: BpfProgram, source: BpfSourceConfig, facts: KernelFacts, *, first_index: int
) -> tuple[ProgramPlan, list[EventPlan]]:
    """Plan a program and its events, numbered from `first_index`."""
    given = {name: as_text(value) for name, value in source.arguments.items()}
    exact = bpf_program.misses_are_counted(
        program, facts.release
    ) and bpf_program.declares_counted(program.source)
    outputs = []
    events = []
    for index, table in enumerate(bpf_program.outputs(program.source), start=first_index):
        shared = table == bpf_program.RING
        counts = shared and exact
        name = program.name if shared else f"{program.name}/{table}"
        outputs.append(OutputPlan(table, index, counts, _transport_of(source, table)))
        events.append(_event(name, index, facts, counts=counts))
    counts = bpf_program.misses_are_counted(program, facts.release)
    records = enumerate(program.manifest.record, start=first_index + len(outputs))
    kept = tuple(KeptPlan(record, index) for index, record in records)
    events += [_event(one.record.event, one.event_index, facts, counts=counts) for one in kept]
    planned = ProgramPlan(
        program,
        values_of(program.name, program.manifest.parameter, given),
        tuple(outputs),
        gated=c_source.includes(program.source, bpf_program.HEADER) >= 0,
        kept=kept,
    )
    return planned, events


def _transport_of(source: BpfSourceConfig, table: str) -> str:
    """Return the transport of a program's output; tables of its own are perf's."""
    return source.transport if table == bpf_program.RING else PERF


def _require_buffers(source: BpfSourceConfig, facts: KernelFacts) -> None:
    """Check that the kernel has what a source asks for.

    Raises:
        MissingFeature: the kernel has no BPF ring buffers.
    """
    if source.transport == RINGBUF and bpf_program.numbers(facts.release) < _BUFFERS_SINCE:
        since = ".".join(map(str, _BUFFERS_SINCE))
        raise MissingFeature(
            f"{source.program}: this kernel has no BPF ring buffers: they need Linux {since}, and "
            f"this is {facts.release}",
            feature="BPF ring buffers",
            hint=f'transport = "{PERF}" works everywhere',
        )


def _check_mode(program: BpfProgram, *, recorder: bool) -> None:
    """Check that a program does in a session what the session is for.

    Raises:
        UsageError: it does not.
    """
    keeps = bool(program.manifest.record)
    if keeps and not recorder:
        raise UsageError(
            f"{program.name} keeps its records for snapshots",
            hint=f'mode = "{FLIGHT_RECORDER}", or record --overwrite',
        )
    if recorder and not keeps:
        raise UsageError(
            f"{program.name} is not a flight recorder: it hands its events on, or fills maps",
            hint="a program that is one has [[record]] in its manifest, as blackbox",
        )


def _require_slots(source: BpfSourceConfig, facts: KernelFacts) -> None:
    """Check that the host has what a flight recorder needs.

    Raises:
        MissingFeature: the kernel's arrays cannot be mapped, or the machine reorders stores.
    """
    if bpf_program.numbers(facts.release) < _SLOTS_SINCE:
        since = ".".join(map(str, _SLOTS_SINCE))
        raise MissingFeature(
            f"{source.program}: this kernel has no arrays that can be mapped: they need Linux "
            f"{since}, and this is {facts.release}",
            feature="mappable BPF arrays",
        )
    if facts.arch not in _ORDERED:
        raise MissingFeature(
            f"{source.program}: BPF programs are flight recorders on x86 only, and this machine "
            f"is {facts.arch}",
            feature="ordered stores",
        )


def _program(name: str, facts: KernelFacts) -> BpfProgram:
    """Return the program, if this host can run it."""
    program = facts.bpf.programs.get(name)
    if program is None and name in facts.bpf.program_problems:
        raise ConfigError(facts.bpf.program_problems[name])
    if program is None:
        unknown = facts.bpf.unknown_programs.get(name)
        raise UsageError(unknown or f"there is no BPF program {name!r}")
    require(program, facts)
    return program


def _headers_notes(bpf: BpfFacts) -> tuple[str, ...]:
    if bpf.headers_match or not bpf.headers_kind:
        return ()
    note = f"kernel headers are of {bpf.headers_release}, not of the running kernel: programs "
    return (note + "that read its structures misread them; the shipped programs do not",)


def _event(name: str, index: int, facts: KernelFacts, *, counts: bool) -> EventPlan:
    """Return the event whose samples a program's submissions are."""
    attr = PerfEventAttr(
        type=EventType.SOFTWARE,
        config=SoftwareId.BPF_OUTPUT,
        sample_period=1,
        # IP is the address in the program itself, but perf script shows no event without it.
        sample_type=BASE_SAMPLE_TYPE | SampleType.RAW,
        read_format=read_format(facts),
        disabled=True,
        exclude_guest=True,  # as of other software events: the kernel asks KVM nothing then
        sample_id_all=True,
        use_clockid=True,
        clockid=CLOCK_MONOTONIC,
    )
    basis = Basis.EXACT if counts else Basis.LOST_ONLY
    return EventPlan(index=index, name=name, attr=attr, basis=basis, group=index)


def require(program: BpfProgram, facts: KernelFacts) -> None:
    """Check that this host can run a program.

    Raises:
        MissingFeature, MissingPrivilege: the requirement that it lacks.
    """
    failed = facts.bpf.failed_programs.get(program.name)
    if failed is not None:
        raise MissingFeature(failed, feature="bpf")
    for lack in _lacks(program, facts, f"{program.name}: "):
        raise lack


def obstacle(program: BpfProgram, facts: KernelFacts) -> str:
    """Return why this host cannot run a program, "" if it can as far as facts tell."""
    return str(next(_lacks(program, facts), ""))


def _lacks(
    program: BpfProgram, facts: KernelFacts, about: str = ""
) -> Iterator[MissingFeature | MissingPrivilege]:
    """Yield errors for what a program requires and this host lacks, with words before each."""
    bpf = facts.bpf
    if bpf.problem and bpf.need:
        yield MissingPrivilege(f"{about}{bpf.problem}", need=bpf.need, hint=bpf.remedy)
    elif bpf.problem:
        yield MissingFeature(f"{about}{bpf.problem}", feature="bpf", hint=bpf.remedy)
    for feature in bpf_program.needs(program):
        if not getattr(bpf, feature, True):
            hint = program.manifest.instead.get(feature, "")
            yield MissingFeature(
                f"{about}this kernel has no {feature}", feature=feature, hint=hint
            )
    since = program.manifest.linux
    if bpf_program.numbers(facts.release) < bpf_program.numbers(since):
        reason = f"it needs Linux {since}, and this is {facts.release}"
        yield MissingFeature(f"{about}{reason}", feature=f"Linux {since}")
    for tracepoint in bpf_program.tracepoints(program):
        if tracepoint in facts.tracepoints:
            continue
        if facts.tracefs_need:
            yield MissingPrivilege(f"{about}{facts.tracefs_problem}", need=facts.tracefs_need)
        else:
            reason = facts.tracefs_problem or f"this kernel has no tracepoint {tracepoint}"
            yield MissingFeature(f"{about}{reason}", feature=str(tracepoint))
