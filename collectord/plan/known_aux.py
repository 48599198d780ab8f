# SPDX-License-Identifier: Apache-2.0
"""Hardware that traces into AUX areas: its names, perf's default terms, an event to try it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.codec.aux_pmu import ARM_SPE, CS_ETM, INTEL_PT
from collectord.codec.perf_attr import PerfEventAttr
from collectord.config.event_spec import PmuEvent
from collectord.plan.pmu import lay_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from collectord.codec.aux_pmu import AuxPmuFacts, Decoder
    from collectord.facts.kernel_facts import PmuFacts

# Rows by decoder: the row's name, the PMU that users look for, and its requirements.
KNOWN: Final[Mapping[Decoder, tuple[str, str, str]]] = {
    INTEL_PT: (
        "Intel PT",
        INTEL_PT,
        "an Intel CPU from Broadwell on; in a virtual machine, a hypervisor that offers it",
    ),
    CS_ETM: (
        "CoreSight",
        CS_ETM,
        "an Arm host with CoreSight described in its firmware, CONFIG_CORESIGHT_SOURCE_ETM4X",
    ),
    ARM_SPE: (
        "Arm SPE",
        "arm_spe_0",
        "an Armv8.2 host with SPE described in its firmware, CONFIG_ARM_SPE_PMU; kpti=off on some",
    ),
}
SPE_PERIOD: Final = 4096  # perf record's
# MTC each 2**3 ticks of the crystal clock, PSB each 2 KiB << 3: perf's choice, and enough for
# times within some 100 ns and for a decoder that begins anywhere.
_WANTED_PERIOD: Final = 3
_PT_BASE: Final = ("tsc", "pt", "branch")
_ETM_BASE: Final = ("contextid", "timestamp")
_SPE_BASE: Final = ("ts_enable",)


def trial_attr(pmu: PmuFacts, facts: AuxPmuFacts | None) -> PerfEventAttr:
    """Return an event in user mode, as sessions open it; opening it traces nothing."""
    terms = default_terms(facts, pmu) if facts is not None else ()
    words = lay_out(PmuEvent("", terms), pmu, "")
    spe = facts is not None and facts.decoder == ARM_SPE
    return PerfEventAttr(
        type=pmu.type,
        config=words.config,
        config1=words.config1,
        config2=words.config2,
        sample_period=facts.caps.get("min_interval", SPE_PERIOD) if facts and spe else 1,
        disabled=True,
        exclude_kernel=facts is not None,
        exclude_hv=facts is not None,
    )


def default_terms(aux: AuxPmuFacts, pmu: PmuFacts) -> tuple[tuple[str, str], ...]:
    """Return the terms that decoding needs, to put below the user's; only those that the PMU has.

    Intel PT: branches, with the TSC, and the crystal clock and PSBs at such intervals as the CPU
    offers. CoreSight: the task's id and time stamps. SPE: time stamps.
    """
    if aux.decoder == INTEL_PT:
        wanted = {**dict.fromkeys(_PT_BASE, 1), **dict(_pt_periods(aux))}
    elif aux.decoder == CS_ETM:
        # `contextid` is that of the exception level that the kernel runs at, one bit or the other.
        wanted = dict.fromkeys(_ETM_BASE, 1)
    else:
        wanted = dict.fromkeys(_SPE_BASE, 1)
    return tuple((name, str(value)) for name, value in wanted.items() if name in pmu.formats)


def _pt_periods(aux: AuxPmuFacts) -> Iterator[tuple[str, int]]:
    """Yield MTC and PSB periods; a CPU that cannot choose PSB's has no MTC either."""
    mtc = _nearest(aux.caps.get("mtc_periods", 0)) if aux.caps.get("mtc") else -1
    if mtc >= 0:
        yield "mtc", 1
        yield "mtc_period", mtc
        psb = _nearest(aux.caps.get("psb_periods", 0)) if aux.caps.get("psb_cyc") else -1
        if psb >= 0:
            yield "psb_period", psb


def _nearest(mask: int) -> int:
    """Return the highest value of a mask up to the wanted one, else the lowest; -1 if empty."""
    values = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    below = [value for value in values if value <= _WANTED_PERIOD]
    return below[-1] if below else values[0] if values else -1
