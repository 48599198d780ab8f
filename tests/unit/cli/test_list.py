# SPDX-License-Identifier: Apache-2.0
"""`list`: names by kind, and what can be opened here."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from collectord import cli
from collectord.cli import list as listing
from collectord.codec.aux_pmu import AuxPmuFacts
from collectord.codec.event_names import NAMED_EVENTS
from collectord.codec.tracepoint import Tracepoint
from collectord.errors import KernelError, MissingFeature, MissingPrivilege
from collectord.facts.kernel_facts import Check, KernelFacts, PmuFacts, RelayFacts
from collectord.kernel.linux import LinuxKernel

if TYPE_CHECKING:
    from collectord.codec.perf_attr import PerfEventAttr

FACTS = KernelFacts(
    release="6.12.0",
    arch="x86_64",
    page_size=4096,
    cpus_online=(3, 4),
    cpus_possible=(3, 4),
    pmus={
        "core": PmuFacts(4, {"event": "config:0-7"}, {"loads": "event=0xcd"}),
        "uncore": PmuFacts(9, {"event": "config:0-7"}, {"reads": "event=4"}, (4,), core=False),
        "odd": PmuFacts(10, {"event": "config:0-7"}, {"wide": "event=0x1ff"}),
    },
    tracepoints={
        Tracepoint("sched", "sched_switch"): 1,
        Tracepoint("sched", "sched_wakeup"): 2,
        Tracepoint("irq", "irq_handler_entry"): 3,
    },
)


class RecordingKernel(LinuxKernel):
    """Opens nothing: notes what it was asked for, and refuses one type of event."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[tuple[PerfEventAttr, int, int]] = []

    def perf_event_open(self, attr: PerfEventAttr, *, pid: int, cpu: int, **_other: object) -> int:
        """Note the call; hardware events are absent."""
        self.opened.append((attr, pid, cpu))
        if attr.type == 0:
            raise MissingFeature("cannot open", feature="hardware", hint="no counter here")
        return -1

    def close(self, fd: int) -> None:
        """Do nothing."""
        assert fd == -1


def listed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *arguments: str,
    facts: KernelFacts = FACTS,
) -> tuple[dict[str, dict[str, Any]], RecordingKernel]:
    """Events by name on a host with these facts, and its kernel."""
    kernel = RecordingKernel()
    monkeypatch.setattr(listing, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: facts)
    assert listing.run(["--json", *arguments], kernel) == 0
    events = json.loads(capsys.readouterr().out)["events"]
    return {event["name"]: event for event in events}, kernel


def test_all_kinds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every named event, PMU alias and tracepoint is listed, each once."""
    events, _ = listed(monkeypatch, capsys)
    assert len(events) == len(NAMED_EVENTS) + 3 + 3 + 3
    kinds = {event["kind"] for event in events.values()}
    assert kinds == {"hardware", "software", "cache", "pmu", "aux", "tracepoint"}


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("sched:*", {"sched:sched_switch", "sched:sched_wakeup"}),
        ("*WAKEUP", {"sched:sched_wakeup"}),
        ("pmu", {"core/loads/", "uncore/reads/", "odd/wide/"}),
        ("page-faults", {"page-faults"}),
        ("nothing", set()),
    ],
)
def test_glob_is_of_names_or_one_kind(
    glob: str,
    names: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """GLOB takes names, whatever their case, or a kind."""
    assert listed(monkeypatch, capsys, glob)[0].keys() == names


def test_refusal_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An event that the kernel refuses says why; the others can be opened."""
    events, _ = listed(monkeypatch, capsys)
    assert events["cycles"]["available"] is False
    assert events["cycles"]["reason"] == "no counter here"
    assert events["page-faults"]["available"] is True


def test_events_are_tried_with_what_the_user_may(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the right to see the kernel the user part is tried, on this process, disabled."""
    _, kernel = listed(monkeypatch, capsys, "page-faults")
    ((attr, pid, cpu),) = kernel.opened
    assert (attr.exclude_kernel, attr.exclude_hv, attr.disabled) == (True, True, True)
    assert (pid, cpu) == (0, -1)


def test_uncore_events_are_tried_on_their_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A PMU that serves no task is tried on a CPU of its mask."""
    _, kernel = listed(monkeypatch, capsys, "uncore/*")
    ((attr, pid, cpu),) = kernel.opened
    assert (attr.type, attr.config) == (9, 4)
    assert (pid, cpu) == (-1, 4)


def test_alias_that_cannot_be_laid_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An alias that its PMU's formats do not fit is listed with the reason."""
    events, _ = listed(monkeypatch, capsys, "odd/*")
    assert events["odd/wide/"]["available"] is False
    assert "does not fit" in events["odd/wide/"]["reason"]


def test_tracepoints_need_a_privilege(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tracepoints are judged by privilege and never opened one by one."""
    events, kernel = listed(monkeypatch, capsys, "sched:*")
    assert kernel.opened == []
    assert {event["reason"] for event in events.values()} == {"needs CAP_PERFMON"}


CLOSED = replace(
    FACTS,
    tracepoints={},
    tracefs_problem="cannot read /t",
    checks=(Check("tracepoints", ok=False, detail="cannot read /t", remedy="the group"),),
)


@pytest.mark.parametrize("words", [["sched:*"], ["--json", "tracepoint"]])
@pytest.mark.parametrize(
    ("need", "error"), [("the group", MissingPrivilege), ("", MissingFeature)]
)
def test_tracepoints_that_cannot_be_read(
    words: list[str],
    need: str,
    error: type[KernelError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If only tracepoints are requested, it is an error that names the cause."""
    facts = replace(CLOSED, tracefs_need=need)
    monkeypatch.setattr(listing, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: facts)
    with pytest.raises(error, match=r"not listed: cannot read /t.*the group"):
        listing.run(words, RecordingKernel())


@pytest.mark.parametrize(("glob", "told"), [("*", True), ("software", False), ("cs", False)])
def test_tracepoints_are_missed_where_they_could_be_meant(
    glob: str,
    told: bool,  # parametrized
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A list that would have had tracepoints says on stderr why it has none."""
    monkeypatch.setattr(listing, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: CLOSED)
    assert listing.run([glob], RecordingKernel()) == 0
    captured = capsys.readouterr()
    assert "context-switches" in captured.out or "cs" in captured.out
    assert ("not listed: cannot read /t; remedy: the group" in captured.err) is told


@pytest.mark.usefixtures("tracefs_of_root")
def test_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    """On the running kernel the software clock can be opened by anybody who runs the tests."""
    assert cli.main(LinuxKernel, ["list", "cpu-clock"]) == 0
    assert "cpu-clock  software  yes" in capsys.readouterr().out


def test_nothing_matches(capsys: pytest.CaptureFixture[str]) -> None:
    """A glob that matches nothing is one line on stderr and status 1."""
    assert cli.main(LinuxKernel, ["list", "no-such-event"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no event matches 'no-such-event'" in captured.err


def test_without_a_pattern_kinds_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each kind, within 80 columns: the number, how many open here, examples or why."""
    monkeypatch.setattr(listing, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: replace(FACTS, perf_event_paranoid=-1))
    assert listing.run([], RecordingKernel()) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split(None, 3)[1:] for line in lines[1:-1]}
    assert rows["hardware"] == ["14", "0", "no counter here"]
    assert rows["tracepoint"][:2] == ["3", "3"]
    assert rows["tracepoint"][2].startswith("irq:irq_handler_entry, ")
    assert rows["pmu"][:2] == ["3", "2"]
    assert max(map(len, lines)) <= 80
    assert "collectord list KIND" in lines[-1]


def test_named_events_are_described(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each says what it counts, aliases the same; the table has it where the event opens."""
    events, _ = listed(monkeypatch, capsys)
    assert all(events[named.name]["description"] for named in NAMED_EVENTS)
    assert events["cs"]["description"] == events["context-switches"]["description"]
    assert listing.run(["cs"], RecordingKernel()) == 0
    assert events["cs"]["description"] in capsys.readouterr().out
    assert listing.run(["cycles"], RecordingKernel()) == 0
    assert events["cycles"]["description"] not in capsys.readouterr().out


def test_aux(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Tracing PMUs of the host are tried; known ones that it lacks come with what they take."""
    pmus = {"tracer": PmuFacts(30, aux=True), "arm_spe_3": PmuFacts(31, aux=True)}
    facts = replace(FACTS, pmus=pmus, aux_pmus={"arm_spe_3": AuxPmuFacts("arm_spe")})
    found, kernel = listed(monkeypatch, capsys, "aux", facts=facts)
    here = {name: row["available"] for name, row in found.items()}
    assert here == {"tracer//": True, "arm_spe_3//": True, "cs_etm//": False, "intel_pt//": False}
    assert "Intel CPU" in found["intel_pt//"]["reason"]
    assert sorted(attr.type for attr, _, _ in kernel.opened) == [30, 31]
    assert set(listed(monkeypatch, capsys, "*pt*", facts=facts)[0]) == {"intel_pt//"}


@pytest.mark.parametrize("words", [["relay"], ["--json", "relay"]])
@pytest.mark.parametrize(
    ("need", "error"), [("CAP_DAC_READ_SEARCH", MissingPrivilege), ("", MissingFeature)]
)
def test_relay_channels_that_cannot_be_seen(
    words: list[str],
    need: str,
    error: type[KernelError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If nothing else is requested, it is an error with the cause and the remedy."""
    relay = RelayFacts(problem="debugfs is closed", need=need, remedy="open it")
    monkeypatch.setattr(listing, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: replace(FACTS, relay=relay))
    with pytest.raises(error, match="not listed: debugfs is closed; open it"):
        listing.run(words, RecordingKernel())


def test_relay_channels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that there are, or that there is none."""
    relay = RelayFacts(debugfs="/d", channels={"/d/net/sent": (3, 4)})
    found, _ = listed(monkeypatch, capsys, "relay", facts=replace(FACTS, relay=relay))
    assert {name: row["available"] for name, row in found.items()} == {"/d/net/sent": True}
    facts = replace(FACTS, relay=RelayFacts(debugfs="/d"))
    assert listed(monkeypatch, capsys, "relay", facts=facts)[0] == {}
    assert cli.main(RecordingKernel, ["list", "relay"]) == 1
    assert "there are no relay channels now" in capsys.readouterr().err
