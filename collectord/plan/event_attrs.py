# SPDX-License-Identifier: Apache-2.0
"""Attributes to open an event with, from its spelling and the kernel's facts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from collectord.codec.aux_pmu import ARM_SPE, decoder_of
from collectord.codec.perf_attr import (
    CLOCK_MONOTONIC,
    DUMMY,
    AuxAction,
    EventType,
    PerfEventAttr,
    ReadFormat,
    SampleType,
)
from collectord.config.event_filter import Filter
from collectord.config.event_spec import Modifiers
from collectord.errors import MissingFeature, PlanError, UsageError
from collectord.model import Basis
from collectord.plan.kinds import kinds_of
from collectord.plan.known_aux import SPE_PERIOD

if TYPE_CHECKING:
    from collectord.codec.tracepoint import Tracepoint
    from collectord.config.call_graph import CallGraph
    from collectord.config.event_spec import EventSpec
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.kinds import Kind

DEFAULT_FREQUENCY_HZ: Final = 4000  # perf record's
_PERIOD_MAX: Final = (1 << 63) - 1  # perf_event_open refuses the sign bit
# Events that a guest cannot raise. Each of them asks KVM whose address it has, 26 ns on an AMD
# EPYC, unless guests are left out.
_OF_THE_HOST: Final = (EventType.SOFTWARE, EventType.TRACEPOINT)

# Present in every sample, in this order ahead of the rest, so that one offset of TIME and one
# trailer serve all events of a ring, and an id leads from any record to its event.
BASE_SAMPLE_TYPE: Final = (
    SampleType.IDENTIFIER | SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.CPU
)


@dataclass(frozen=True, slots=True)
class EventPlan:
    """One event to open on each CPU or thread of its rings.

    Attributes:
        index: position in the session's events; ids and counters are reported by it.
        name: name in the perf.data attribute section.
        attr: the complete attributes for perf_event_open.
        filter: filter of a tracepoint, or of addresses; "" for none (PERF_EVENT_IOC_SET_FILTER).
        basis: basis of its balance, before suppression is considered.
        tracepoint: None for other kinds.
        group: events with the same number are opened as one perf group.
        leader: opened first, with group_fd -1; the others get its fd.
        exclude_self: the daemon's own threads are to be filtered out (`common_pid`): see
            `may_exclude_self`.
        cpus: CPUs that the event may be opened on, empty for any.
        uncore: it counts for the whole machine, and cannot have a task scope.
        note: decisions that the spelling does not show.
        pmu: name of its dynamic PMU, "" without.
        aux: it writes into an AUX area, and so owns its ring; `filter` is one of addresses.
        counts_bytes: its counter has the bytes that it traced, lost ones included.
        freezes: it leads its ring's events, and stops them all on its CPU when it happens.
    """

    index: int
    name: str
    attr: PerfEventAttr
    basis: Basis
    filter: str = ""
    tracepoint: Tracepoint | None = None
    group: int = 0
    leader: bool = True
    exclude_self: bool = False
    cpus: tuple[int, ...] = ()
    uncore: bool = False
    note: str = ""
    pmu: str = ""
    aux: bool = False
    counts_bytes: bool = False
    freezes: bool = False

    @property
    def pauses(self) -> bool:
        """Whether it freezes an AUX area by pausing that, and stops no other event."""
        return self.freezes and bool(self.attr.aux_action & AuxAction.PAUSE)


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling of an event; neither frequency nor period means the event's default.

    Attributes:
        frequency: samples per second, Hz.
        period: events per sample.
        call_graph: None for no call chains.
        max_stack: frames of a call chain, 0 for the sysctl's limit.
        cgroups: samples have the cgroup of the task, if the kernel can tell it.
        filter: filter of a tracepoint's fields, or of an AUX event's addresses.
    """

    frequency: int | None = None
    period: int | None = None
    call_graph: CallGraph | None = None
    max_stack: int = 0
    cgroups: bool = False
    filter: Filter = field(default_factory=Filter)


def resolve(spec: EventSpec, facts: KernelFacts, sampling: Sampling) -> tuple[EventPlan, ...]:
    """Return the events of a spelling: several for a glob, or an alias of several PMUs.

    Indexes and groups are 0: the session numbers them.

    Raises:
        UsageError: a name that is unknown on this host, or options the event cannot have.
        PlanError: a frequency above the kernel's limit, or more address filters than a PMU has.
        MissingFeature: the machine lacks the event.
        MissingPrivilege: tracefs may not be read.
    """
    return tuple(_plan(kind, spec, facts, sampling) for kind in kinds_of(spec, facts))


def sideband_event(
    facts: KernelFacts, *, unwinds: bool = False, cgroups: bool = False
) -> EventPlan:
    """Return the dummy event whose ring carries the names of a sample's process, file and symbol.

    With `unwinds` readers unwind stacks: they find a file's tables by its first mapping, which is
    seldom the one with the code, and so need the mappings of data as well. With `cgroups` samples
    have cgroups, and each new one has a record.

    A counted event never carries these records: PERF_FORMAT_LOST counts them too, and its ledger
    would be off by each one that did not fit.
    """
    attr = replace(
        DUMMY,
        sample_period=1,
        sample_type=BASE_SAMPLE_TYPE,
        read_format=read_format(facts),
        mmap=True,
        mmap2=True,
        mmap_data=unwinds,
        comm=True,
        comm_exec=True,
        task=True,
        cgroup=cgroups,
        # The kernel makes one record for all listeners on a CPU, and its changes for one of them
        # are still there for the next (kernel/events/core.c, Linux 6.18). So no attribute is set
        # that would break the records of others: not ksymbol or bpf_event, for which
        # perf_event_ksymbol_output() adds the sample id's size once for each; nor build_id, whose
        # bit perf_event_mmap_output() leaves set, so that perf takes a device and an inode for a
        # build-id, and aborts.
        sample_id_all=True,
        use_clockid=True,
        clockid=CLOCK_MONOTONIC,
    )
    return EventPlan(index=0, name="dummy:HG", attr=attr, basis=Basis.LOST_ONLY)


def may_exclude_self(event: EventPlan, facts: KernelFacts) -> bool:
    """Whether an event can be left out because of the task in which it happens.

    An event that concerns another task as well cannot: of the switches between our threads and
    others those to us would remain, and a reader would give the time in between to whoever ran
    before.
    """
    return event.tracepoint is not None and event.tracepoint not in facts.task_tracepoints


def read_format(facts: KernelFacts) -> ReadFormat:
    """Return the figures of read(2): value, both times (which show multiplexing), id, lost."""
    times = ReadFormat.TOTAL_TIME_ENABLED | ReadFormat.TOTAL_TIME_RUNNING
    return times | ReadFormat.ID | (ReadFormat.LOST if facts.format_lost else ReadFormat(0))


def _plan(kind: Kind, spec: EventSpec, facts: KernelFacts, sampling: Sampling) -> EventPlan:
    frequency, period, note = _rate(kind, facts, sampling)
    _check_options(kind, spec, facts, sampling)
    addresses = sampling.filter.addresses if kind.aux else ()
    sample_type = BASE_SAMPLE_TYPE
    # With PERIOD and without freq, perf_swevent_event() makes a sample of every event whatever the
    # period is; and without PERIOD it repeats the sample of a weighted event. So software events
    # and tracepoints have it unless a period is to be kept.
    if frequency or period == 1 or not kind.counting:
        sample_type |= SampleType.PERIOD
    if kind.tracepoint is not None:
        sample_type |= SampleType.RAW
    if sampling.cgroups and facts.sample_cgroup and not kind.aux:
        sample_type |= SampleType.CGROUP
    modifiers = spec.modifiers
    name = kind.name
    levels = _levels(kind, modifiers)
    # Without the privilege the kernel's share is left out rather than all of it, as by perf.
    if (
        not facts.may_observe_kernel
        and not modifiers.any_level
        and kind.tracepoint is None
        and not kind.uncore
    ):
        levels |= {"exclude_kernel": True, "exclude_hv": True}
        has_letters = modifiers != Modifiers() or name.endswith("/")
        name += "u" if has_letters else ":u"
        note = "; ".join(filter(None, (note, "user mode only: kernel mode needs CAP_PERFMON")))
    attr = PerfEventAttr(
        type=kind.type,
        config=kind.config,
        config1=kind.config1,
        config2=kind.config2,
        bp_type=kind.bp_type,
        freq=frequency > 0,
        sample_period=frequency or period,
        sample_type=sample_type,
        read_format=read_format(facts),
        disabled=True,
        precise_ip=modifiers.precise,
        pinned=modifiers.pinned,
        exclusive=modifiers.exclusive,
        exclude_idle=modifiers.no_idle,
        sample_id_all=True,
        use_clockid=True,
        clockid=CLOCK_MONOTONIC,
        sample_max_stack=sampling.max_stack if sampling.call_graph else 0,
        aux_action=spec.aux_action,
        **levels,
    )
    if sampling.call_graph is not None and not kind.aux:
        attr = sampling.call_graph.apply(
            attr, name, arch=facts.arch, hardware_pmu=facts.hardware_pmu
        )
    exact = kind.counting and not kind.weighted and not frequency and period == 1
    return EventPlan(
        index=0,
        name=name,
        attr=attr,
        basis=Basis.EXACT if exact else Basis.LOST_ONLY,
        filter=",".join(map(str, addresses)) or sampling.filter.text,
        tracepoint=kind.tracepoint,
        cpus=kind.cpus,
        uncore=kind.uncore,
        note=note,
        pmu=kind.pmu,
        aux=kind.aux,
        counts_bytes=kind.counts_bytes,
    )


def _rate(kind: Kind, facts: KernelFacts, sampling: Sampling) -> tuple[int, int, str]:
    """Return frequency in Hz or period, the other one 0, and a note."""
    if kind.aux:
        # It makes no samples. To arm_spe the period is the number of operations between two.
        spe = decoder_of(kind.pmu) == ARM_SPE
        return 0, kind.period or (sampling.period or SPE_PERIOD if spe else 1), ""
    frequency = kind.frequency or (0 if kind.period else sampling.frequency or 0)
    period = kind.period or (0 if frequency else sampling.period or 0)
    limit = facts.perf_event_max_sample_rate
    if frequency > limit:
        raise PlanError(
            f"{kind.name}: {frequency} Hz is above the kernel's limit of {limit} Hz",
            what=kind.name,
            hint="sample less often, or raise kernel.perf_event_max_sample_rate",
        )
    if period > _PERIOD_MAX:
        raise PlanError(f"{kind.name}: period {period} is larger than 63 bits", what=kind.name)
    if frequency or period:
        return frequency, period, ""
    if kind.counting:
        return 0, 1, ""
    if limit < DEFAULT_FREQUENCY_HZ:
        return limit, 0, f"{limit} Hz: kernel.perf_event_max_sample_rate allows no more"
    return DEFAULT_FREQUENCY_HZ, 0, ""


def _check_options(kind: Kind, spec: EventSpec, facts: KernelFacts, sampling: Sampling) -> None:
    text = spec.text
    if sampling.filter and kind.aux and not kind.address_filters:
        raise MissingFeature(
            f"{text!r}: PMU {kind.pmu} takes no address filters",
            feature="address filters",
            hint="record without --filter, or narrow the scope",
        )
    ranges = len(sampling.filter.addresses) if kind.aux else 0
    if ranges > kind.address_filters:
        raise PlanError(
            f"{text!r}: there are {ranges} address filters, but PMU {kind.pmu} takes "
            f"{kind.address_filters}",
            what=text,
            hint="fewer of them, or one that covers several",
        )
    if sampling.filter and kind.tracepoint is None and not kind.aux:
        hint = "only tracepoints and tracing PMUs do"
        raise UsageError(f"{text!r} takes no filter", hint=hint)
    if spec.aux_action & AuxAction.START_PAUSED and not kind.aux:
        raise UsageError(
            f"{text!r} has no AUX area that could start paused",
            hint="aux-action=pause or resume is for events beside one that has",
        )
    if spec.modifiers.precise:
        if kind.type in (EventType.SOFTWARE, EventType.TRACEPOINT, EventType.BREAKPOINT):
            raise UsageError(f"{text!r} cannot be precise", hint="leave p out")
        if spec.modifiers.precise > facts.precise_ip_max:
            raise MissingFeature(
                f"{text!r}: this PMU's events are precise up to {facts.precise_ip_max}",
                feature="precise_ip",
            )
    if kind.uncore and spec.modifiers.any_level:
        raise UsageError(f"{text!r}: an uncore PMU has no privilege levels")


def _levels(kind: Kind, modifiers: Modifiers) -> dict[str, bool]:
    levels = {}
    if modifiers.any_level:
        levels["exclude_user"] = not modifiers.user
        levels["exclude_kernel"] = not modifiers.kernel
        levels["exclude_hv"] = not modifiers.hv
    if modifiers.guest or modifiers.host:
        levels["exclude_host"] = not modifiers.host
        levels["exclude_guest"] = not modifiers.guest
    elif kind.core or kind.type in _OF_THE_HOST:
        # perf's default; a guest's addresses mean nothing to the host's maps.
        levels["exclude_guest"] = True
    return levels
