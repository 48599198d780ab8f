# SPDX-License-Identifier: Apache-2.0
"""BPF sources: what they become on a host, and what a host that cannot run them gets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.codec.perf_attr import EventType, SampleType, SoftwareId
from collectord.codec.tracepoint import Tracepoint
from collectord.config.rules import check_session
from collectord.config.schema import Config
from collectord.config.schema_session import BpfSourceConfig, SessionConfig, TargetConfig
from collectord.daemon.coverage import Coverage
from collectord.errors import ConfigError, MissingFeature, MissingPrivilege, PlanError, UsageError
from collectord.facts.kernel_facts import BpfFacts
from collectord.kernel.bpf import catalogue
from collectord.model import Basis, RingRole, ScopeKind
from collectord.plan.bpf_plan import BpfPlan
from collectord.plan.bpf_source import obstacle, require
from collectord.plan.build import build
from collectord.text.units import RingSize
from tests.support.bpf_pairs import MANIFEST, SOURCE, facts, program
from tests.support.configs import perf_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.plan import Plan

SYSTEM: Final = TargetConfig()
OWN_OUTPUT: Final = SOURCE.replace("collectord_submit(args, &event)", "events.perf_submit(args)")
MAPS_ONLY: Final = "\n".join(
    line
    for line in SOURCE.splitlines()
    if "collectord" not in line and "COLLECTORD" not in line and "event" not in line
)


def plan(known: KernelFacts, *sources: BpfSourceConfig, target: TargetConfig = SYSTEM) -> Plan:
    """Plan one session of these sources."""
    session = SessionConfig(name="s", source=sources, target=target)
    return build(Config(session=(session,)), known)


def source(name: str = "switches", **keys: Any) -> BpfSourceConfig:  # noqa: ANN401 - any key
    """Return a source of kind "bpf"."""
    return BpfSourceConfig(program=name, **keys)


def test_a_program_has_a_ring_on_each_cpu() -> None:
    """Its event is a BPF_OUTPUT sample with raw data; a dummy event names the tasks."""
    (session,) = plan(facts(("switches", SOURCE)), source()).sessions
    event, dummy = session.events
    assert (event.name, event.basis, session.basis) == ("switches", Basis.EXACT, Basis.EXACT)
    assert (event.attr.type, event.attr.config) == (EventType.SOFTWARE, SoftwareId.BPF_OUTPUT)
    assert event.attr.sample_type & SampleType.RAW
    assert dummy.name.startswith("dummy")
    data = [ring.cpu for ring in session.rings if ring.role is RingRole.DATA]
    assert data == [0, 1, 2, 3]
    assert session.source == "bpf"
    assert session.payload_of(BpfPlan).cpus == (0, 1, 2, 3)


def test_programs_of_a_session_share_rings() -> None:
    """Each CPU has one ring for all, as large as the largest that is asked for."""
    known = facts(("one", SOURCE), ("two", SOURCE))
    small, large = source("one", ring=RingSize(1 << 16)), source("two", ring=RingSize(1 << 20))
    cpus = TargetConfig(scope=ScopeKind.CPUS, cpus=(1,))
    (session,) = plan(known, small, large, target=cpus).sessions
    (ring,) = [ring for ring in session.rings if ring.role is RingRole.DATA]
    assert (ring.cpu, ring.data_bytes) == (1, 1 << 20)
    assert [event.name for event in ring.events] == ["one", "two"]
    assert [event.index for event in session.events] == [0, 1, 2]


def test_what_is_not_counted_is_not_exact() -> None:
    """Own outputs, and tracepoints before Linux 6.7, whose left out runs the kernel counts not."""
    text = OWN_OUTPUT + "BPF_PERF_OUTPUT(events);\n"
    (session,) = plan(facts(("switches", text)), source()).sessions
    assert [event.name for event in session.events][:2] == ["switches", "switches/events"]
    assert session.basis is Basis.LOST_ONLY
    assert any("only losses are known" in note for note in session.notes)
    (session,) = plan(facts(("switches", SOURCE), release="6.1.0-30"), source()).sessions
    assert session.basis is Basis.LOST_ONLY


def test_a_program_of_maps_has_no_ring() -> None:
    """No CPU goes uncovered for lack of a ring."""
    known = facts(("switches", MAPS_ONLY))
    (session,) = plan(known, source()).sessions
    assert (session.rings, session.basis) == ((), Basis.NONE)
    coverage = Coverage((session,), (0, 1, 2, 3))
    assert coverage.covered == {0, 1, 2, 3}
    assert coverage.uncovered_ns() == 0
    coverage.change((0, 1, 2, 3, 4))
    assert 4 not in coverage.covered


@pytest.mark.parametrize(
    ("bpf", "error", "said"),
    [
        (BpfFacts(problem="no bcc", remedy="install it"), MissingFeature, "no bcc"),
        (BpfFacts(program_problems={"switches": "x.toml: license"}), ConfigError, "license"),
    ],
    ids=["host", "file"],
)
def test_a_host_that_cannot(bpf: BpfFacts, error: type[Exception], said: str) -> None:
    """By default the session is planned, without programs, and says why; else it is an error."""
    programs = {"switches": program()} if bpf.problem else {}
    known = host(bpf=BpfFacts(**{**_fields(bpf), "programs": programs}))
    (session,) = plan(known, source()).sessions
    assert (session.payload_of(BpfPlan).programs, session.rings) == ((), ())
    (reason,) = session.degraded
    assert said in reason
    with pytest.raises(error, match=said):
        plan(known, source(when="always"))


def _fields(bpf: BpfFacts) -> dict[str, Any]:
    return {name: getattr(bpf, name) for name in BpfFacts.__slots__}


def test_a_name_that_nobody_has() -> None:
    """It is a mistake wherever it stands, whatever `when` says."""
    unknown = {"swtches": "there is no BPF program 'swtches'; did you mean switches?"}
    known = host(bpf=BpfFacts(unknown_programs=unknown))
    with pytest.raises(UsageError, match="did you mean switches"):
        plan(known, source("swtches"))


def test_arguments() -> None:
    """They become the program's constants; one that it does not take is an error."""
    known = facts(("switches", SOURCE))
    (session,) = plan(known, source(arguments={"pid": 7})).sessions
    assert session.payload_of(BpfPlan).programs[0].values == {"pid": 7}
    with pytest.raises(UsageError, match="no parameter 'pidd'"):
        plan(known, source(arguments={"pidd": 7}))


def test_a_tracepoint_that_the_kernel_lacks() -> None:
    """It is named before anything is compiled."""
    known = facts(("switches", SOURCE), tracepoints={Tracepoint("sched", "sched_wakeup"): 1})
    with pytest.raises(MissingFeature, match="sched:sched_switch"):
        plan(known, source(when="always"))


def test_metrics_of_one_name_and_two_kinds() -> None:
    """A scrape could not tell them apart."""
    other = MANIFEST.replace('type = "histogram"', 'type = "gauge"', 1)
    other = other.replace('scale = "log2"\nslot = "slot"\n', "", 1)
    programs = {"one": program(name="one"), "two": program(SOURCE, other, name="two")}
    known = host(bpf=BpfFacts(programs=programs))
    with pytest.raises(PlanError, match="switch_latency"):
        plan(known, source("one"), source("two"))


def test_kinds_that_do_not_go_together() -> None:
    """Perf and BPF rings of one session would share files."""
    session = SessionConfig(name="s", source=(source(), perf_source("cs")))
    (problem,) = [found for found in check_session(session) if found.key.endswith("kind")]
    assert "own session" in problem.hint


def capable(**changes: Any) -> KernelFacts:  # noqa: ANN401 - fields of any type
    """Return a host that can run programs, but for the changes."""
    return host(bpf=BpfFacts(python="/usr/bin/python3", headers_kind="build", **changes))


def test_a_host_that_can_run_it() -> None:
    """No requirement is missing."""
    require(program(), capable())
    assert obstacle(program(), capable()) == ""


@pytest.mark.parametrize(
    ("facts", "error", "words"),
    [
        (
            capable(problem="no bcc", remedy="install it"),
            MissingFeature,
            "switches: no bcc; install",
        ),
        (
            capable(problem="closed", need="CAP_BPF"),
            MissingPrivilege,
            "switches: closed; needs CAP_B",
        ),
        (capable(kprobes=False), MissingFeature, "this kernel has no kprobes"),
        (
            host(bpf=BpfFacts(), tracepoints={}),
            MissingFeature,
            "no tracepoint sched:sched_switch",
        ),
        (
            host(bpf=BpfFacts(), tracepoints={}, tracefs_problem="closed", tracefs_need="a group"),
            MissingPrivilege,
            "closed; needs a group",
        ),
        (
            host(bpf=BpfFacts(), tracepoints={}, tracefs_problem="not mounted"),
            MissingFeature,
            "not mounted",
        ),
    ],
)
def test_what_a_host_lacks(facts: KernelFacts, error: type[Exception], words: str) -> None:
    """The error says what is missing, and its class whether a privilege would help."""
    one = program(SOURCE + "int kprobe__f(void *ctx) { return 0; }")
    with pytest.raises(error) as caught:
        require(one, facts)
    assert words in str(caught.value)
    assert str(caught.value) == f"switches: {obstacle(one, facts)}"


def test_an_old_kernel_is_told_with_and_without_the_programs_name(tmp_path: Path) -> None:
    """A list has the name beside the reason, an error within it."""
    blackbox = catalogue.load("blackbox", tmp_path)
    old = replace(capable(btf=True), release="5.10.0")
    assert obstacle(blackbox, old) == "it needs Linux 5.18, and this is 5.10.0"
    with pytest.raises(MissingFeature, match=r"blackbox: it needs Linux 5\.18") as caught:
        require(blackbox, old)
    assert caught.value.feature == "Linux 5.18"


def test_a_program_that_names_another_for_hosts_without_kprobes(tmp_path: Path) -> None:
    """The error of fsslower names fileslower, unless BTF is missing, which both need."""
    fsslower = catalogue.load("fsslower", tmp_path)
    told = obstacle(fsslower, capable(kprobes=False, btf=True))
    assert told.startswith("this kernel has no kprobes; fileslower times the system calls: ")
    assert told.endswith("--bpf fileslower --bpf-arg filesystem=ext4")
    assert obstacle(fsslower, capable(kprobes=True, btf=False)) == "this kernel has no btf"
    assert obstacle(fsslower, capable(kprobes=True, btf=True)) == ""


def test_a_program_on_functions_is_not_exact(tmp_path: Path) -> None:
    """The kernel tells only some of the runs of a kprobe's program that it leaves out."""
    found = {"fsslower": catalogue.load("fsslower", tmp_path)}
    known = host(bpf=BpfFacts(python="/usr/bin/python3", btf=True, programs=found))
    (session,) = plan(known, source("fsslower", arguments={"filesystem": "xfs"})).sessions
    assert session.basis is Basis.LOST_ONLY
    with pytest.raises(UsageError, match="'zfs' is none of ext4, xfs, btrfs, f2fs, nfs, nfs4"):
        plan(known, source("fsslower", arguments={"filesystem": "zfs"}))
