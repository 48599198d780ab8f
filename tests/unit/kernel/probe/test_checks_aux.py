# SPDX-License-Identifier: Apache-2.0
"""The rows of `doctor` about tracing hardware, and the events that it tries."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.aux_pmu import AuxPmuFacts
from collectord.errors import KernelError, MissingPrivilege
from collectord.facts.kernel_facts import Check, PmuFacts
from collectord.kernel.probe import checks_aux
from collectord.plan.aux_defaults import default_terms
from tests.support.aux_files import ETMV4, PT, PT_FORMATS, SPE

if TYPE_CHECKING:
    from collectord.codec.perf_attr import PerfEventAttr

PT_PMU: Final = PmuFacts(
    9, PT_FORMATS | {"psb_period": "config:24-27"}, aux=True, address_filters=2
)
ETM_PMU: Final = PmuFacts(8, {"contextid": "config:14", "timestamp": "config:28"}, aux=True)
SPE_PMU: Final = PmuFacts(7, {"ts_enable": "config:0", "pa_enable": "config:1"}, aux=True)


def rows(
    pmus: dict[str, tuple[PmuFacts, AuxPmuFacts]],
    error: KernelError | None = None,
    machine: str = "aarch64",
) -> tuple[dict[str, Check], list[PerfEventAttr]]:
    """Return the rows by name, and the events that were tried."""
    tried: list[PerfEventAttr] = []

    def refusal(attr: PerfEventAttr) -> KernelError | None:
        tried.append(attr)
        return error

    found = checks_aux.aux(
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
    found, tried = rows({}, machine=machine)
    assert list(found) == names
    assert all(not row.ok and "no PMU" in row.detail and row.remedy for row in found.values())
    assert not tried


def test_a_host_that_has_them() -> None:
    """Each PMU that can be opened is listed with its abilities."""
    caps = {"mtc": 1, "psb_cyc": 1, "mtc_periods": 0x249, "psb_periods": 0x3F}
    sinks = {"tmc_etr0": 5}
    found, tried = rows(
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
    found, _ = rows({"arm_spe_0": (SPE_PMU, SPE), "arm_spe_1": (SPE_PMU, SPE)})
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
    found, _ = rows({"intel_pt": (PT_PMU, PT)}, error)
    assert not found["Intel PT"].ok
    assert found["Intel PT"].detail.startswith("present, but cannot open")
    assert remedy in found["Intel PT"].remedy


@pytest.mark.parametrize(
    ("facts", "missing"),
    [(ETMV4, "no sink"), (AuxPmuFacts("cs_etm", sinks={"etr": 1}), "no trace unit")],
)
def test_coresight_in_parts(facts: AuxPmuFacts, missing: str) -> None:
    """A source without a sink traces nothing, nor does a sink without a source."""
    found, tried = rows({"cs_etm": (ETM_PMU, facts)})
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
