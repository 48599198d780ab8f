# SPDX-License-Identifier: Apache-2.0
"""CPUs, PMUs and capabilities, read below injected roots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectord.errors import KernelError
from collectord.facts.kernel_facts import PmuFacts
from collectord.kernel.host import cpus
from collectord.kernel.host.capabilities import decode, effective_capabilities
from collectord.kernel.host.pmus import read_pmus

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def cpu_folder(tmp_path: Path) -> Path:
    """Sysfs's folder of CPUs, three of four online."""
    folder = tmp_path / "devices/system/cpu"
    folder.mkdir(parents=True)
    (folder / "online").write_text("0-1,3\n")
    (folder / "possible").write_text("0-3\n")
    return folder


def test_cpu_lists_are_read(cpu_folder: Path) -> None:
    """Online and possible CPUs are the kernel's lists."""
    sys = cpu_folder.parents[2]
    assert cpus.online(sys) == (0, 1, 3)
    assert cpus.possible(sys) == (0, 1, 2, 3)


def test_unreadable_cpu_list_is_an_error(tmp_path: Path) -> None:
    """Without sysfs the error says to mount it."""
    with pytest.raises(KernelError, match="mount sysfs"):
        cpus.online(tmp_path)


def test_pmus_are_read(tmp_path: Path) -> None:
    """Type, formats, aliases and CPUs of each PMU; the value's unit is no alias."""
    devices = tmp_path / "bus/event_source/devices"
    core, uncore = devices / "cpu", devices / "uncore_imc_0"
    for folder in (core / "format", core / "events", uncore / "events"):
        folder.mkdir(parents=True)
    (core / "type").write_text("4\n")
    (core / "format/event").write_text("config:0-7\n")
    (core / "events/cpu-cycles").write_text("event=0x3c\n")
    (uncore / "type").write_text("14\n")
    (uncore / "cpumask").write_text("0,18\n")
    (uncore / "events/reads").write_text("event=0x4\n")
    (uncore / "events/reads.unit").write_text("MiB\n")
    (devices / "broken").mkdir()
    assert read_pmus(tmp_path) == {
        "cpu": PmuFacts(4, {"event": "config:0-7"}, {"cpu-cycles": "event=0x3c"}),
        "uncore_imc_0": PmuFacts(
            14, {}, {"reads": "event=0x4"}, cpus=(0, 18), core=False, units={"reads": "MiB"}
        ),
    }
    assert read_pmus(tmp_path / "nowhere") == {}


def test_capabilities_have_names(tmp_path: Path) -> None:
    """Bits are named as capability.h names them."""
    assert decode(1 << 38 | 1 << 14) == {"CAP_PERFMON", "CAP_IPC_LOCK"}
    assert decode(1 << 21 | 1 << 63) == {"CAP_SYS_ADMIN"}
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("Name:\tx\nCapEff:\t0000000400000000\n")
    assert effective_capabilities(tmp_path) == {"CAP_SYSLOG"}
    assert effective_capabilities(tmp_path / "nowhere") == frozenset()
