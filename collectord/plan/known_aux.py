# SPDX-License-Identifier: Apache-2.0
"""Hardware that traces into AUX areas: what users look for, and an event to try it with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.codec.aux_pmu import ARM_SPE, CS_ETM, INTEL_PT
from collectord.codec.perf_attr import PerfEventAttr
from collectord.config.event_spec import PmuEvent
from collectord.plan.aux_defaults import default_terms
from collectord.plan.pmu import lay_out

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord.codec.aux_pmu import AuxPmuFacts, Decoder
    from collectord.facts.kernel_facts import PmuFacts

# By decoder: the row's name, the PMU that users look for, and its requirements.
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
_SPE_PERIOD: Final = 4096


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
        sample_period=facts.caps.get("min_interval", _SPE_PERIOD) if facts and spe else 1,
        disabled=True,
        exclude_kernel=facts is not None,
        exclude_hv=facts is not None,
    )
