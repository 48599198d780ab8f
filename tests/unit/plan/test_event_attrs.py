# SPDX-License-Identifier: Apache-2.0
"""Event attributes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.codec.perf_attr import (
    BranchSampleType,
    BreakpointType,
    EventType,
    PerfEventAttr,
    ReadFormat,
    SampleType,
)
from collectord.config import call_graph
from collectord.config.event_filter import Filter
from collectord.config.event_spec import parse
from collectord.errors import (
    MissingFeature,
    MissingPrivilege,
    PlanError,
    UnknownEvent,
    UsageError,
)
from collectord.model import Basis
from collectord.plan.event_attrs import (
    BASE_SAMPLE_TYPE,
    EventPlan,
    Sampling,
    resolve,
    sideband_event,
)
from tests.support.hosts import TRACEPOINTS, host, unprivileged

if TYPE_CHECKING:
    from collectord.facts.kernel_facts import KernelFacts


def plans(text: str, facts: KernelFacts | None = None, **sampling: Any) -> list[EventPlan]:  # noqa: ANN401
    """Return all events of a text."""
    specs = [event for group in parse(text) for event in group.events]
    return [e for spec in specs for e in resolve(spec, facts or host(), Sampling(**sampling))]


def attr(text: str, facts: KernelFacts | None = None, **sampling: Any) -> PerfEventAttr:  # noqa: ANN401
    """Attributes of the only event of a text."""
    (plan,) = plans(text, facts, **sampling)
    return plan.attr


def test_every_event_has_the_common_fields() -> None:
    """Ids, one clock, a trailer on all records and readable counters are never left out."""
    for text in ("cycles", "cpu-clock", "page-faults", "sched:sched_switch", "mem:0x10", "r1"):
        found = attr(text)
        assert found.sample_type & BASE_SAMPLE_TYPE == BASE_SAMPLE_TYPE
        assert found.sample_id_all
        assert found.disabled
        assert (found.use_clockid, found.clockid) == (True, 1)
        assert found.read_format & (ReadFormat.ID | ReadFormat.LOST) == 0x14


def test_no_event_carries_sideband_records() -> None:
    """Those come from the dummy event alone, or a counted event's LOST would count them."""
    for text in ("cycles", "page-faults", "sched:sched_switch"):
        found = attr(text)
        assert not any((found.mmap, found.mmap2, found.comm, found.task, found.ksymbol))


def test_lost_is_read_only_where_the_kernel_knows_it() -> None:
    """PERF_FORMAT_LOST is kernel 6.0: older ones refuse the bit."""
    assert not attr("cycles", host(format_lost=False)).read_format & ReadFormat.LOST


@pytest.mark.parametrize(
    ("text", "freq", "period"),
    [
        ("cycles", True, 4000),
        ("cpu-clock", True, 4000),
        ("cpu/event=1/", True, 4000),
        ("page-faults", False, 1),
        ("sched:sched_switch", False, 1),
        ("mem:0x10", False, 1),
    ],
)
def test_defaults_are_perfs(text: str, freq: bool, period: int) -> None:
    """Events that count one by one have period 1, all others 4000 Hz."""
    found = attr(text)
    assert (found.freq, found.sample_period) == (freq, period)


def test_frequency_and_period_are_taken() -> None:
    """Settings hold for every kind, as perf's -F and -c do; a PMU's own terms win."""
    assert (attr("sched:sched_switch", frequency=99).freq, attr("cs", period=7).freq) == (
        True,
        False,
    )
    assert attr("cycles", period=100_000).sample_period == 100_000
    assert attr("cpu/event=1,period=5/", frequency=99).sample_period == 5
    assert not attr("cpu/event=1,period=5/", frequency=99).freq
    assert attr("cpu/event=1,freq=5/", period=99).sample_period == 5


def test_a_frequency_above_the_kernels_limit_is_an_error() -> None:
    """The message names the limit and the sysctl; a default is lowered with a note."""
    with pytest.raises(PlanError, match=r"20000 Hz .* 10000 Hz.*perf_event_max_sample_rate"):
        attr("cycles", host(perf_event_max_sample_rate=10_000), frequency=20_000)
    (lowered,) = plans("cycles", host(perf_event_max_sample_rate=1000))
    assert lowered.attr.sample_period == 1000
    assert "1000 Hz" in lowered.note


def test_period_bit_is_absent_where_it_would_defeat_the_period() -> None:
    """perf_swevent_event() ignores the period of an event with PERF_SAMPLE_PERIOD."""
    assert not attr("page-faults", period=10).sample_type & SampleType.PERIOD
    assert not attr("sched:sched_switch", period=10).sample_type & SampleType.PERIOD
    assert not attr("mem:0x10", period=10).sample_type & SampleType.PERIOD
    assert attr("page-faults").sample_type & SampleType.PERIOD
    assert attr("page-faults", frequency=9).sample_type & SampleType.PERIOD
    assert attr("cycles", period=10).sample_type & SampleType.PERIOD
    assert attr("cpu-clock", period=10_000).sample_type & SampleType.PERIOD


def test_weighted_tracepoints_have_the_period_bit() -> None:
    """Without it the kernel repeats a sample for each nanosecond of its weight."""
    assert attr("sched:sched_stat_runtime").sample_type & SampleType.PERIOD


@pytest.mark.parametrize(
    ("text", "sampling", "basis"),
    [
        ("sched:sched_switch", {}, Basis.EXACT),
        ("page-faults", {}, Basis.EXACT),
        ("context-switches", {}, Basis.EXACT),
        ("cpu-migrations", {}, Basis.EXACT),
        ("minor-faults", {}, Basis.EXACT),
        ("major-faults", {}, Basis.EXACT),
        ("alignment-faults", {}, Basis.EXACT),
        ("emulation-faults", {}, Basis.EXACT),
        ("mem:0x10", {}, Basis.EXACT),
        ("page-faults", {"period": 1}, Basis.EXACT),
        ("sched:sched_stat_runtime", {}, Basis.LOST_ONLY),
        ("page-faults", {"period": 2}, Basis.LOST_ONLY),
        ("sched:sched_switch", {"frequency": 99}, Basis.LOST_ONLY),
        ("mem:0x10", {"frequency": 99}, Basis.LOST_ONLY),
        ("cpu-clock", {"period": 1}, Basis.LOST_ONLY),
        ("task-clock", {}, Basis.LOST_ONLY),
        ("dummy", {"period": 1}, Basis.LOST_ONLY),
        ("bpf-output", {"period": 1}, Basis.LOST_ONLY),
        ("cycles", {"period": 1}, Basis.LOST_ONLY),
        ("LLC-loads", {}, Basis.LOST_ONLY),
        ("r1", {}, Basis.LOST_ONLY),
        ("cpu/event=1,period=1/", {}, Basis.LOST_ONLY),
    ],
)
def test_basis_of_each_kind(text: str, sampling: dict[str, int], basis: Basis) -> None:
    """Exact is what counts one per record at period 1; a weight or a rate is not."""
    (plan,) = plans(text, host(), **sampling)
    assert plan.basis is basis


def test_tracepoints_have_id_raw_data_and_filter() -> None:
    """The id is the config, and the record's fields come with the sample."""
    (plan,) = plans("sched:sched_switch", filter=Filter.parse("prev_pid != 0"))
    assert (plan.attr.type, plan.attr.config) == (EventType.TRACEPOINT, 300)
    assert plan.attr.sample_type & SampleType.RAW
    assert plan.tracepoint == ("sched", "sched_switch")
    assert plan.filter == "prev_pid != 0"


def test_globs_give_every_match_in_order() -> None:
    """Each match is an event under its own name, modifiers kept."""
    assert [p.name for p in plans("sched:sched_process_*:k")] == [
        "sched:sched_process_exec:k",
        "sched:sched_process_exit:k",
        "sched:sched_process_fork:k",
    ]
    assert [p.name for p in plans("sched:sched_process_*/aux-action=resume/k")] == [
        "sched:sched_process_exec:k",
        "sched:sched_process_exit:k",
        "sched:sched_process_fork:k",
    ]
    assert len(plans("*:*")) == len(TRACEPOINTS)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("page-fautls", 'did you mean "page-faults"'),
        ("cyclse:u", 'did you mean "cycles"'),
        ("sched:sched_swich", 'did you mean "sched:sched_switch"'),
        ("mem-load", 'did you mean "mem-loads"'),
        ("nothing:like_it", "collectord list"),
        ("sched:zzz*", "collectord list"),
    ],
)
def test_unknown_events_name_the_nearest(text: str, hint: str) -> None:
    """A misspelt event is answered with the name that was probably meant."""
    with pytest.raises(UnknownEvent) as caught:
        plans(text)
    assert hint in str(caught.value)


def test_tracefs_that_is_absent_or_closed_is_told() -> None:
    """Not mounted is a missing feature, not readable a missing privilege."""
    with pytest.raises(MissingFeature, match="mount -t tracefs"):
        plans("sched:sched_switch", host(tracepoints={}, tracefs_path=None))
    with pytest.raises(MissingPrivilege, match="read access to /sys/kernel/tracing/events"):
        plans("sched:sched_switch", host(tracepoints={}, tracefs_problem="not readable"))
    closed = host(
        tracepoints={}, tracefs_path=None, tracefs_problem="closed", tracefs_need="a group"
    )
    with pytest.raises(MissingPrivilege, match="closed; needs a group"):
        plans("sched:sched_switch", closed)


def test_hardware_that_is_absent_is_a_missing_feature() -> None:
    """Exit status 5, with the event that every machine has."""
    for text in ("cycles", "LLC-loads", "r1"):
        with pytest.raises(MissingFeature, match="cpu-clock"):
            plans(text, host(hardware_pmu=False))
    with pytest.raises(MissingFeature, match=r"no PMU 'cpuu'.*did you mean \"cpu\""):
        plans("cpuu/event=1/")


def test_levels_exclude_what_is_not_named() -> None:
    """`:u` leaves kernel and hypervisor out; nothing named leaves nothing out."""
    user = attr("cycles:u")
    assert (user.exclude_user, user.exclude_kernel, user.exclude_hv) == (False, True, True)
    both = attr("cycles:uk")
    assert (both.exclude_user, both.exclude_kernel, both.exclude_hv) == (False, False, True)
    assert not attr("cycles").exclude_kernel
    assert attr("cycles").exclude_guest
    assert attr("cycles:G").exclude_host
    assert not attr("cycles:G").exclude_guest
    assert attr("page-faults").exclude_guest
    assert attr("sched:sched_switch").exclude_guest
    assert attr("cycles:I").exclude_idle
    assert (attr("cycles:D").pinned, attr("cycles:e").exclusive) == (True, True)


def test_an_unprivileged_user_gets_the_user_part() -> None:
    """The kernel's part is left out and said so, unless a level was configured."""
    (plan,) = plans("cycles", unprivileged())
    assert plan.attr.exclude_kernel
    assert plan.name == "cycles:u"
    assert "CAP_PERFMON" in plan.note
    assert not attr("cycles:k", unprivileged()).exclude_kernel
    assert not attr("sched:sched_switch", unprivileged()).exclude_kernel
    assert [p.name for p in plans("mem:0x10,cpu/event=1/,cycles:p", unprivileged())] == [
        "mem:0x10:u",
        "cpu/event=1/u",
        "cycles:pu",
    ]


def test_precision_is_for_hardware_as_far_as_it_goes() -> None:
    """Software events cannot be precise, and a PMU has a highest level."""
    assert attr("cycles:pp").precise_ip == 2
    with pytest.raises(UsageError):
        attr("page-faults:p")
    with pytest.raises(MissingFeature):
        attr("cycles:pp", host(precise_ip_max=1))


def test_breakpoints_are_laid_out() -> None:
    """Address, length and access are where the kernel looks for them."""
    found = attr("mem:0x1000/2:w")
    assert (found.type, found.config1, found.config2) == (EventType.BREAKPOINT, 0x1000, 2)
    assert found.bp_type == BreakpointType.W
    assert attr("mem:0x1000").bp_type == BreakpointType.R | BreakpointType.W
    with pytest.raises(MissingFeature):
        attr("mem:0x1000:r")
    assert attr("mem:0x1000:r", host(arch="aarch64")).bp_type == BreakpointType.R


def test_dynamic_pmus_and_aliases_resolve() -> None:
    """Type and config come from sysfs; a bare alias finds its PMU."""
    assert attr("cpu/event=0x3c,umask=1/").config == 0x13C
    assert (attr("mem-loads").type, attr("mem-loads").config1) == (4, 3)
    (uncore,) = plans("uncore_imc/event=1/")
    assert (uncore.uncore, uncore.cpus) == (True, (0, 2))
    assert not uncore.attr.exclude_guest
    with pytest.raises(UsageError):
        plans("uncore_imc/event=1/u")
    with pytest.raises(UsageError):
        plans("uprobe//")


def test_filters_are_for_tracepoints() -> None:
    """Any other event refuses one."""
    with pytest.raises(UsageError):
        plans("cycles", filter=Filter.parse("x == 1"))


def test_frame_pointer_call_graphs() -> None:
    """Frame pointers add the call chain and nothing else."""
    found = attr("cycles", call_graph=call_graph.parse("fp"), max_stack=12)
    assert found.sample_type & SampleType.CALLCHAIN
    assert (found.sample_max_stack, found.exclude_callchain_user) == (12, False)
    assert attr("cycles", max_stack=12).sample_max_stack == 0


@pytest.mark.parametrize(("arch", "mask"), [("x86_64", 0xFF0FFF), ("aarch64", (1 << 33) - 1)])
def test_dwarf_call_graphs(arch: str, mask: int) -> None:
    """Unwinding copies registers and stack, and leaves the user chain to the unwinder."""
    found = attr("cpu-clock", host(arch=arch), call_graph=call_graph.parse("dwarf"))
    wanted = SampleType.CALLCHAIN | SampleType.REGS_USER | SampleType.STACK_USER
    assert found.sample_type & wanted == wanted
    assert (found.sample_regs_user, found.sample_stack_user) == (mask, 8192)
    assert found.exclude_callchain_user
    assert not found.exclude_callchain_kernel


def test_lbr_call_graphs() -> None:
    """Branch records are taken in call-stack mode, on hardware events only."""
    graph = call_graph.parse("lbr")
    found = attr("cycles", call_graph=graph)
    assert found.sample_type & SampleType.BRANCH_STACK
    assert found.branch_sample_type & BranchSampleType.CALL_STACK
    kernel_only = attr("cycles:k", call_graph=graph)
    assert not kernel_only.sample_type & SampleType.BRANCH_STACK
    assert kernel_only.sample_type & SampleType.CALLCHAIN
    with pytest.raises(PlanError):
        attr("cpu-clock", call_graph=graph)
    with pytest.raises(MissingFeature):
        attr("cycles", host(arch="aarch64"), call_graph=graph)


def test_dwarf_needs_known_registers() -> None:
    """On an architecture without a register mask it is a missing feature."""
    with pytest.raises(MissingFeature):
        attr("cpu-clock", host(arch="riscv64"), call_graph=call_graph.parse("dwarf"))


@pytest.mark.parametrize(
    ("text", "stack"), [("dwarf,16384", 16384), ("dwarf,100", 104), ("dwarf,65528", 65528)]
)
def test_stack_sizes_are_multiples_of_eight(text: str, stack: int) -> None:
    """Sizes are rounded up as perf does."""
    assert call_graph.parse(text).stack_bytes == stack
    assert str(call_graph.parse(text)) == f"dwarf,{stack}"


@pytest.mark.parametrize(
    "text", ["", "fpp", "fp,8", "dwarf,", "dwarf,0", "dwarf,65529", "dwarf,8K"]
)
def test_wrong_call_graphs_are_usage_errors(text: str) -> None:
    """Unknown modes and sizes that the kernel refuses are told before anything is opened."""
    with pytest.raises(UsageError):
        call_graph.parse(text)


def test_the_sideband_event_carries_everything_but_samples() -> None:
    """Maps, names and tasks come from a dummy that never fires."""
    plan = sideband_event(host())
    found = plan.attr
    assert (found.type, found.config) == (EventType.SOFTWARE, 9)
    assert all((found.mmap, found.mmap2, found.comm, found.comm_exec, found.task))
    assert found.sample_id_all
    # Each of these changes the records of everybody else who listens on the host.
    assert not any((found.ksymbol, found.bpf_event, found.build_id))
    assert found.exclude_kernel
    assert not found.mmap_data
    assert plan.basis is Basis.LOST_ONLY
    assert sideband_event(host(), unwinds=True).attr == replace(found, mmap_data=True)
    assert sideband_event(host(), cgroups=True).attr == replace(found, cgroup=True)
