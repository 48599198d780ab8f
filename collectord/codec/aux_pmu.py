# SPDX-License-Identifier: Apache-2.0
"""The facts about PMUs with an AUX area whose trace perf can decode, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

INTEL_PT: Final = "intel_pt"
CS_ETM: Final = "cs_etm"
ARM_SPE: Final = "arm_spe"

Decoder = Literal["intel_pt", "cs_etm", "arm_spe"]
EtmKind = Literal["etmv3", "etmv4", "ete"]

# Arm numbers its PMUs for statistical profiling: arm_spe_0 and so on.
_SPE_PREFIX: Final = "arm_spe_"


@dataclass(frozen=True, slots=True)
class EtmFacts:
    """Trace unit of one CPU, from `cpuN` of the cs_etm PMU in sysfs.

    Attributes:
        registers: by the last part of their file's name ("trcidr0", "trcauthstatus", "etmidr").
        ts_source: the clock that stamps the trace, -1 if the kernel does not report it.
    """

    cpu: int
    kind: EtmKind
    registers: dict[str, int] = field(default_factory=dict)
    ts_source: int = -1


@dataclass(frozen=True, slots=True)
class AuxPmuFacts:
    """A PMU whose AUX trace perf can decode.

    Attributes:
        decoder: perf's decoder for it.
        caps: numbers of its `caps` directory; Intel PT adds `max_nonturbo_ratio` and, as
            `tsc_art_numerator` and `tsc_art_denominator`, the ratio of the TSC to the crystal
            clock.
        etms: CoreSight's trace units.
        sinks: CoreSight's sinks by name, with their numbers for `config2`.
    """

    decoder: Decoder
    caps: dict[str, int] = field(default_factory=dict)
    etms: tuple[EtmFacts, ...] = ()
    sinks: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimeConversion:
    """The conversion of the CPU's counter to perf's clock: `time_*` of a ring's control page.

    ns = zero + (counter * mult >> shift), if `zero_known` (`cap_user_time_zero`). A counter that
    wraps (`short`, `cap_user_time_short`) counts from `cycles` in the bits of `mask`.
    """

    shift: int = 0
    mult: int = 0
    zero: int = 0
    cycles: int = 0
    mask: int = 0
    zero_known: bool = False
    short: bool = False


def decoder_of(pmu: str) -> Decoder | None:
    """Return perf's decoder for a PMU's trace, by the PMU's name; None if there is none."""
    if pmu == INTEL_PT:
        return INTEL_PT
    if pmu == CS_ETM:
        return CS_ETM
    number = pmu.removeprefix(_SPE_PREFIX)
    return ARM_SPE if number != pmu and number.isdecimal() else None
