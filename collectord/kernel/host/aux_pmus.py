# SPDX-License-Identifier: Apache-2.0
"""PMUs with an AUX area as sysfs describes them: Intel PT, CoreSight, Arm SPE.

Files: Documentation/ABI/testing/sysfs-bus-event_source-devices-caps and
sysfs-bus-coresight-devices-etm4x; those of Intel PT are made in arch/x86/events/intel/pt.c.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from collectord.codec.aux_pmu import (
    CS_ETM,
    INTEL_PT,
    AuxPmuFacts,
    EtmFacts,
    EtmKind,
    decoder_of,
)
from collectord.kernel.host import sysfs

if TYPE_CHECKING:
    from pathlib import Path

_DEVICES: Final = "bus/event_source/devices"
_CPU: Final = re.compile(r"cpu(\d+)", re.ASCII)
# Places by the decoder that they indicate: directories and prefixes of the registers that
# decoding needs.
_ETMV4_FILES: Final = (
    *(f"trcidr/trcidr{number}" for number in (0, 1, 2, 8)),
    "mgmt/trcauthstatus",
)
_ETE_FILE: Final = "mgmt/trcdevarch"
_ETMV3_FILES: Final = ("mgmt/etmccer", "mgmt/etmidr")
# TRCDEVARCH: bits 15-12 the major version, bits 11-0 the part. 0xa13 with major 5 and up is ETE
# (Arm IHI 0064, "TRCDEVARCH").
_DEVARCH_PART: Final = 0xFFF
_TRACE_PART: Final = 0xA13
_ETE_MAJOR: Final = 5


def read_aux_pmus(sys: Path) -> dict[str, AuxPmuFacts]:
    """Read all PMUs below a root of sysfs whose AUX trace perf can decode, by name."""
    names = (folder.name for folder in sysfs.entries(sys / _DEVICES))
    found = {name: read_aux_pmu(sys, name) for name in names}
    return {name: facts for name, facts in found.items() if facts is not None}


def read_aux_pmu(sys: Path, name: str) -> AuxPmuFacts | None:
    """Read one PMU; None if perf has no decoder for its trace. Unreadable files are left out."""
    decoder = decoder_of(name)
    folder = sys / _DEVICES / name
    if decoder is None or not folder.is_dir():
        return None
    # pt.c writes all of them in hexadecimal, arm_spe_pmu.c in decimal.
    caps = _numbers(folder / "caps", base=16 if decoder == INTEL_PT else 10)
    if decoder == INTEL_PT:
        caps |= _timing(folder)
    if decoder != CS_ETM:
        return AuxPmuFacts(decoder=decoder, caps=caps)
    return AuxPmuFacts(
        decoder=decoder, caps=caps, etms=_etms(folder), sinks=_numbers(folder / "sinks", base=16)
    )


def _timing(folder: Path) -> dict[str, int]:
    """Return the ratio of TSC to crystal clock, `N:D`, and the CPU's highest plain ratio."""
    found = {}
    ratio = sysfs.number(folder / "max_nonturbo_ratio")
    if ratio is not None:
        found["max_nonturbo_ratio"] = ratio
    numerator, colon, denominator = sysfs.text(folder / "tsc_art_ratio").partition(":")
    if colon and numerator.isdecimal() and denominator.isdecimal():
        found["tsc_art_numerator"] = int(numerator)
        found["tsc_art_denominator"] = int(denominator)
    return found


def _etms(folder: Path) -> tuple[EtmFacts, ...]:
    """Return the trace unit of each CPU that has one, in the order of the CPUs."""
    numbers = sorted(int(m[1]) for f in sysfs.entries(folder) if (m := _CPU.fullmatch(f.name)))
    found = (_etm(folder / f"cpu{cpu}", cpu) for cpu in numbers)
    return tuple(etm for etm in found if etm is not None)


def _etm(folder: Path, cpu: int) -> EtmFacts | None:
    kind: EtmKind = "etmv4"
    registers = _registers(folder, _ETMV4_FILES)
    architecture = sysfs.number(folder / _ETE_FILE, base=16)
    if "trcidr0" not in registers:
        kind, registers = "etmv3", _registers(folder, _ETMV3_FILES)
    elif architecture is not None and _is_ete(architecture):
        kind, registers = "ete", registers | {"trcdevarch": architecture}
    if not registers:
        return None
    source = sysfs.number(folder / "ts_source")
    return EtmFacts(cpu, kind, registers, ts_source=-1 if source is None else source)


def _is_ete(architecture: int) -> bool:
    major = architecture >> 12 & 0xF
    return architecture & _DEVARCH_PART == _TRACE_PART and major >= _ETE_MAJOR


def _registers(folder: Path, files: tuple[str, ...]) -> dict[str, int]:
    values = ((file.rpartition("/")[2], sysfs.number(folder / file, base=16)) for file in files)
    return {name: value for name, value in values if value is not None}


def _numbers(folder: Path, *, base: int) -> dict[str, int]:
    values = ((file.name, sysfs.number(file, base=base)) for file in sysfs.entries(folder))
    return {name: value for name, value in values if value is not None}
