# SPDX-License-Identifier: Apache-2.0
"""The rows of `doctor`, and the events that it tries."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import doctor
from collectord.codec.aux_pmu import AuxPmuFacts
from collectord.errors import KernelError, MissingPrivilege
from collectord.facts.kernel_facts import BpfFacts, Check, FtraceFacts, PmuFacts, RelayFacts
from collectord.kernel.host.lockdown import UNKNOWN, deduce, read_lockdown
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.probe import checks
from collectord.kernel.probe.checks import relay
from collectord.plan.known_aux import default_terms
from tests.support.aux_files import ETMV4, PT, PT_FORMATS, SPE
from tests.support.hosts import host

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.codec.perf_attr import PerfEventAttr

PT_PMU: Final = PmuFacts(
    9, PT_FORMATS | {"psb_period": "config:24-27"}, aux=True, address_filters=2
)
ETM_PMU: Final = PmuFacts(8, {"contextid": "config:14", "timestamp": "config:28"}, aux=True)
SPE_PMU: Final = PmuFacts(7, {"ts_enable": "config:0", "pa_enable": "config:1"}, aux=True)


def rows(lockdown: str = "none", **changes: Any) -> dict[str, Check]:  # noqa: ANN401
    """Return the rows of a host, by name."""
    facts = replace(FtraceFacts(), **changes)
    return {check.name: check for check in checks.ftrace(facts, lockdown)}


def test_a_host_that_has_everything() -> None:
    """All rows are ok and none has a remedy; without measurement there are no costs."""
    found = rows()
    assert all(check.ok and not check.remedy for check in found.values())
    assert list(found) == [
        "lockdown",
        "ftrace instances",
        "ftrace mmap",
        "ftrace splice",
        "sub-buffer sizes",
        "ftrace probes",
    ]
    costs = rows(transport_ns={"mmap": 37.2, "read": 9.6})["ftrace transports"]
    assert costs.detail == "ns of CPU per event: read 10, mmap 37"


@pytest.mark.parametrize(
    ("changes", "name", "remedy"),
    [
        ({"mmap": False}, "ftrace mmap", "Linux 6.10"),
        ({"splice": False}, "ftrace splice", "read works without it"),
        ({"subbuf_sizes": False}, "sub-buffer sizes", "Linux 6.8"),
        ({"kprobes": False}, "ftrace probes", "CONFIG_KPROBE_EVENTS"),
        ({"uprobes": False, "eprobes": False}, "ftrace probes", "CONFIG_UPROBE_EVENTS, CONFIG_E"),
    ],
)
def test_what_is_missing_has_its_remedy(changes: dict[str, Any], name: str, remedy: str) -> None:
    """One row is missing, and names the remedy."""
    found = rows(**changes)
    assert [check.name for check in found.values() if not check.ok] == [name]
    assert remedy in found[name].remedy


def test_without_an_instance_nothing_else_is_claimed() -> None:
    """The reason and the privilege are told, and no feature that was not tried."""
    found = rows(instances=False, problem="cannot write x", need="CAP_DAC_OVERRIDE")
    assert list(found) == ["lockdown", "ftrace instances"]
    assert found["ftrace instances"].detail == "cannot write x"
    assert found["ftrace instances"].remedy == "CAP_DAC_OVERRIDE"
    assert "mount tracefs" in rows(instances=False, problem="p")["ftrace instances"].remedy


@pytest.mark.parametrize("level", ["none", "integrity"])
def test_lockdown_that_lets_ftrace_work(level: str) -> None:
    """Only confidentiality closes tracefs."""
    assert rows(level)["lockdown"].ok
    closed = rows("confidentiality")["lockdown"]
    assert (closed.ok, "no capability opens it" in closed.remedy) == (False, True)


def test_what_securityfs_tells(tmp_path: Path) -> None:
    """The chosen level; without lockdown none; and where it is not mounted nothing is known."""
    folder = tmp_path / "kernel/security"
    folder.mkdir(parents=True)
    assert read_lockdown(tmp_path) == UNKNOWN
    (folder / "lsm").write_text("capability")
    assert read_lockdown(tmp_path) == "none"
    (folder / "lockdown").write_text("none [integrity] confidentiality\n")
    assert read_lockdown(tmp_path) == "integrity"
    (folder / "lockdown").write_text("")
    assert read_lockdown(tmp_path) == UNKNOWN


def test_a_level_that_cannot_be_read_is_unknown() -> None:
    """A level that cannot be read is not guessed."""
    told = rows(UNKNOWN, instances=False, problem="tracefs is empty")["lockdown"]
    assert (told.ok, told.unknown) == (False, True)
    assert told.detail.startswith("unknown: ")
    assert "none" not in told.detail
    assert "mount -t securityfs" in told.remedy
    shown = relay(RelayFacts(debugfs="/d"), UNKNOWN)
    assert next(shown).detail == "channels below /d can be read (lockdown unknown)"


@pytest.mark.parametrize(
    ("read", "tracefs_open", "debugfs_closed", "level", "ok"),
    [
        (UNKNOWN, True, False, "integrity or none", True),
        (UNKNOWN, True, True, "integrity", True),
        (UNKNOWN, False, True, UNKNOWN, False),
        (UNKNOWN, False, False, UNKNOWN, False),
        ("none", True, True, "none", True),
        ("confidentiality", True, False, "confidentiality", False),
    ],
)
def test_a_level_is_known_by_what_it_closes(
    read: str, level: str, *, tracefs_open: bool, debugfs_closed: bool, ok: bool
) -> None:
    """The features that work determine the level, and no row contradicts it."""
    deduced = deduce(read, tracefs_open=tracefs_open, debugfs_closed=debugfs_closed)
    assert deduced == level
    row = rows(deduced)["lockdown"]
    assert (row.ok, row.detail.partition(":")[0]) == (ok, level)
    assert row.unknown == (level == UNKNOWN)
    limits = LinuxKernel().limits()
    (beside,) = (r for r in checks.bpf(BpfFacts(), limits, deduced) if "lockdown" in r.name)
    assert (beside.ok, beside.unknown) == (row.ok, row.unknown)


def test_the_table_has_a_word_for_what_nothing_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table says neither present nor missing."""
    found = (
        Check("a", ok=True),
        Check("b", ok=False),
        Check("c", ok=False, unknown=True),
    )
    monkeypatch.setattr(doctor, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: host(checks=found))
    assert doctor.run([], LinuxKernel()) == 0
    lines = capsys.readouterr().out.splitlines()[3:]
    assert [line.split() for line in lines] == [["b", "missing"], ["c", "unknown"], ["a", "ok"]]


def test_the_table_fits_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line has more than 80 columns, and a remedy can be copied as one line."""
    long = "a detail of many words, " * 9
    command = "mount -t securityfs securityfs /sys/kernel/security"
    found = (
        Check("the check with the longest name", ok=True, detail=long),
        Check("b", ok=False, detail="/a/path" * 30, remedy=f"as root: {command}"),
        Check("c", ok=False, detail="escape \x1b[31m", remedy=long),
    )
    monkeypatch.setattr(doctor, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: host(checks=found))
    assert doctor.run([], LinuxKernel()) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert any(command in line for line in shown.splitlines())
    assert "\x1b" not in shown
    words = [word for word in shown.split() if word not in {"missing", "ok", "b", "c", "->"}]
    assert " ".join(words).count(" ".join(long.split())) == 2


def aux_rows(
    pmus: dict[str, tuple[PmuFacts, AuxPmuFacts]],
    error: KernelError | None = None,
    machine: str = "aarch64",
) -> tuple[dict[str, Check], list[PerfEventAttr]]:
    """Return the rows by name, and the events that were tried."""
    tried: list[PerfEventAttr] = []

    def refusal(attr: PerfEventAttr) -> KernelError | None:
        tried.append(attr)
        return error

    found = checks.aux(
        {name: pmu for name, (pmu, _) in pmus.items()},
        {name: facts for name, (_, facts) in pmus.items()},
        machine,
        refusal,
    )
    return {row.name: row for row in found}, tried


@pytest.mark.parametrize(
    ("machine", "names"),
    [
        ("x86_64", ["Intel PT"]),
        ("aarch64", ["CoreSight", "Arm SPE"]),
        ("armv7l", ["CoreSight"]),
        ("riscv64", []),
    ],
)
def test_a_host_without_any(machine: str, names: list[str]) -> None:
    """Possible hardware has a row with its requirements; nothing is tried."""
    found, tried = aux_rows({}, machine=machine)
    assert list(found) == names
    assert all(not row.ok and "no PMU" in row.detail and row.remedy for row in found.values())
    assert not tried


def test_a_host_that_has_them() -> None:
    """Each PMU that can be opened is listed with its abilities."""
    caps = {"mtc": 1, "psb_cyc": 1, "mtc_periods": 0x249, "psb_periods": 0x3F}
    sinks = {"tmc_etr0": 5}
    found, tried = aux_rows(
        {
            "intel_pt": (PT_PMU, replace(PT, caps=caps)),
            "cs_etm": (ETM_PMU, replace(ETMV4, sinks=sinks)),
            "arm_spe_0": (SPE_PMU, replace(SPE, caps={"min_interval": 1024})),
        }
    )
    assert all(row.ok and not row.remedy for row in found.values())
    assert "TSC, cycles, MTC, 2 address filters" in found["Intel PT"].detail
    assert "2 trace units, sinks tmc_etr0" in found["CoreSight"].detail
    assert "each 1024 operations" in found["Arm SPE"].detail
    pt, etm, spe = tried
    assert pt.config == 1 | 1 << 10 | 1 << 13 | 1 << 9 | 3 << 14 | 3 << 24
    assert (etm.config, spe.config, spe.sample_period) == (1 << 14 | 1 << 28, 1, 1024)
    assert all(attr.disabled and attr.exclude_kernel for attr in tried)


def test_two_of_a_kind() -> None:
    """Big and little cores may have a PMU each: each has a row."""
    found, _ = aux_rows({"arm_spe_0": (SPE_PMU, SPE), "arm_spe_1": (SPE_PMU, SPE)})
    assert [name for name in found if "SPE" in name] == ["Arm SPE arm_spe_0", "Arm SPE arm_spe_1"]


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (KernelError("cannot open", errno=errno.EBUSY), "releases it"),
        (MissingPrivilege("cannot open", need="CAP_PERFMON"), "CAP_PERFMON"),
    ],
)
def test_one_that_cannot_be_used(error: KernelError, remedy: str) -> None:
    """Present and refused is told apart from absent, with the reason."""
    found, _ = aux_rows({"intel_pt": (PT_PMU, PT)}, error)
    assert not found["Intel PT"].ok
    assert found["Intel PT"].detail.startswith("present, but cannot open")
    assert remedy in found["Intel PT"].remedy


@pytest.mark.parametrize(
    ("facts", "missing"),
    [(ETMV4, "no sink"), (AuxPmuFacts("cs_etm", sinks={"etr": 1}), "no trace unit")],
)
def test_coresight_in_parts(facts: AuxPmuFacts, missing: str) -> None:
    """A source without a sink traces nothing, nor does a sink without a source."""
    found, tried = aux_rows({"cs_etm": (ETM_PMU, facts)})
    assert not found["CoreSight"].ok
    assert missing in found["CoreSight"].detail
    assert not tried


@pytest.mark.parametrize(
    ("caps", "more"),
    [
        ({}, {}),
        ({"mtc": 1}, {}),
        ({"mtc": 1, "mtc_periods": 0b110000}, {"mtc": "1", "mtc_period": "4"}),
        ({"mtc": 0, "mtc_periods": 0xFF, "psb_cyc": 1, "psb_periods": 0xFF}, {}),
        (
            {"mtc": 1, "mtc_periods": 0b101, "psb_cyc": 1, "psb_periods": 0b11},
            {"mtc": "1", "mtc_period": "2", "psb_period": "1"},
        ),
    ],
)
def test_default_terms_of_intel_pt(caps: dict[str, int], more: dict[str, str]) -> None:
    """The default is the supported period nearest to perf's choice."""
    base = {"tsc": "1", "pt": "1", "branch": "1"}
    assert dict(default_terms(AuxPmuFacts("intel_pt", caps=caps), PT_PMU)) == base | more


def test_terms_that_the_pmu_lacks() -> None:
    """Older PMUs have no `pt` and `branch`: they trace branches anyway."""
    assert default_terms(PT, PmuFacts(9, {"tsc": "config:10"})) == (("tsc", "1"),)
