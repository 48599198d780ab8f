# SPDX-License-Identifier: Apache-2.0
"""Default terms of an AUX event that decoding needs: those of perf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.codec.aux_pmu import CS_ETM, INTEL_PT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.codec.aux_pmu import AuxPmuFacts
    from collectord.facts.kernel_facts import PmuFacts

# MTC each 2**3 ticks of the crystal clock, PSB each 2 KiB << 3: perf's choice, and enough for
# times within some 100 ns and for a decoder that begins anywhere.
_WANTED_PERIOD: Final = 3
_PT_BASE: Final = ("tsc", "pt", "branch")
_ETM_BASE: Final = ("contextid", "timestamp")
_SPE_BASE: Final = ("ts_enable",)


def default_terms(aux: AuxPmuFacts, pmu: PmuFacts) -> tuple[tuple[str, str], ...]:
    """Return terms to put below those of the user; only terms that the PMU has.

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
