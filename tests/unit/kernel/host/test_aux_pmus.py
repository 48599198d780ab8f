# SPDX-License-Identifier: Apache-2.0
"""PMUs with an AUX area, read from directories as sysfs lays them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.codec.aux_pmu import AuxPmuFacts, EtmFacts
from collectord.kernel.host.aux_pmus import read_aux_pmu, read_aux_pmus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def lay(sys: Path, pmu: str, files: Mapping[str, str]) -> None:
    """Write the files of a PMU."""
    folder = sys / "bus/event_source/devices" / pmu
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_intel_pt(tmp_path: Path) -> None:
    """Capabilities are hexadecimal; the clock's ratio is two numbers."""
    lay(
        tmp_path,
        "intel_pt",
        {
            "type": "9\n",
            "caps/psb_cyc": "1\n",
            "caps/cycle_thresholds": "1fff\n",
            "caps/output_subsys": "garbage\n",
            "max_nonturbo_ratio": "24\n",
            "tsc_art_ratio": "176:2\n",
        },
    )
    assert read_aux_pmu(tmp_path, "intel_pt") == AuxPmuFacts(
        "intel_pt",
        caps={
            "cycle_thresholds": 0x1FFF,
            "psb_cyc": 1,
            "max_nonturbo_ratio": 24,
            "tsc_art_numerator": 176,
            "tsc_art_denominator": 2,
        },
    )


def test_coresight(tmp_path: Path) -> None:
    """Kinds of trace units are told by their registers; CPUs come in order, sinks by name."""
    etmv4 = {f"trcidr/trcidr{n}": f"0x{n}f\n" for n in (0, 1, 2, 8)}
    etmv4 |= {"mgmt/trcauthstatus": "0xcc\n", "mgmt/trcdevarch": "0x47704a13\n"}
    files = {f"cpu10/{name}": text for name, text in etmv4.items()}
    files |= {f"cpu2/{name}": text for name, text in etmv4.items()}
    files |= {"cpu2/mgmt/trcdevarch": "0x47705a13\n", "cpu2/ts_source": "1\n"}
    files |= {"cpu3/mgmt/etmccer": "0x34c01ac2\n", "cpu3/mgmt/etmidr": "0x411cf312\n"}
    files |= {"sinks/tmc_etr0": "0x1c0ffee\n", "type": "8\n", "cpu4/unknown": "1\n"}
    lay(tmp_path, "cs_etm", files)
    registers = {f"trcidr{n}": n << 4 | 0xF for n in (0, 1, 2, 8)} | {"trcauthstatus": 0xCC}
    assert read_aux_pmu(tmp_path, "cs_etm") == AuxPmuFacts(
        "cs_etm",
        etms=(
            EtmFacts(2, "ete", registers | {"trcdevarch": 0x47705A13}, 1),
            EtmFacts(3, "etmv3", {"etmccer": 0x34C01AC2, "etmidr": 0x411CF312}),
            EtmFacts(10, "etmv4", registers),
        ),
        sinks={"tmc_etr0": 0x1C0FFEE},
    )


def test_spe(tmp_path: Path) -> None:
    """Capabilities are decimal."""
    lay(tmp_path, "arm_spe_0", {"type": "10\n", "caps/min_interval": "1024\n"})
    assert read_aux_pmus(tmp_path) == {
        "arm_spe_0": AuxPmuFacts("arm_spe", caps={"min_interval": 1024})
    }


def test_other_pmus(tmp_path: Path) -> None:
    """A PMU that perf has no decoder for is none of these, nor is one that is not there."""
    lay(tmp_path, "cpu", {"type": "4\n"})
    lay(tmp_path, "intel_bts", {"type": "6\n"})
    assert not read_aux_pmus(tmp_path)
    assert read_aux_pmu(tmp_path, "intel_pt") is None
    assert not read_aux_pmus(tmp_path / "nowhere")
