# SPDX-License-Identifier: Apache-2.0
"""Rows of `doctor` and `list` about hardware that traces into AUX areas."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from collectord.codec.aux_pmu import ARM_SPE, CS_ETM, INTEL_PT, decoder_of
from collectord.facts.kernel_facts import Check, PmuFacts
from collectord.kernel.probe.checks import check
from collectord.plan.known_aux import KNOWN, trial_attr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from collectord.codec.aux_pmu import AuxPmuFacts, Decoder
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.errors import KernelError

    Refusal = Callable[[PerfEventAttr], KernelError | None]

# uname's names of the machines that may have them.
_MACHINES: Final[Mapping[Decoder, tuple[str, ...]]] = {
    INTEL_PT: ("x86_64", "i686"),
    CS_ETM: ("aarch64", "armv7l"),
    ARM_SPE: ("aarch64",),
}
_BUSY_REMEDY: Final = "wait until its other user (perf, KVM, a debugger) releases it"


def aux(
    pmus: Mapping[str, PmuFacts],
    aux_pmus: Mapping[str, AuxPmuFacts],
    machine: str,
    refusal: Refusal,
) -> Iterator[Check]:
    """Yield a row for each kind of such hardware on this machine, and for each such PMU here.

    Args:
        pmus: PMUs of this host.
        aux_pmus: those of them whose trace perf can decode.
        machine: machine as in `uname -m`.
        refusal: why an event of this process cannot be opened, None if it can.
    """
    for decoder, (title, pmu, remedy) in KNOWN.items():
        here = [name for name in aux_pmus if decoder_of(name) == decoder and name in pmus]
        if not here and machine in _MACHINES[decoder]:
            yield check(title, ok=False, detail=f"this host has no PMU {pmu}", remedy=remedy)
        for name in here:
            title_here = title if len(here) == 1 else f"{title} {name}"
            yield _row(title_here, pmus[name], aux_pmus[name], refusal)


def _row(title: str, pmu: PmuFacts, facts: AuxPmuFacts, refusal: Refusal) -> Check:
    if facts.decoder == CS_ETM and not (facts.sinks and facts.etms):
        missing = "sink that takes a trace" if facts.etms else "trace unit of a CPU"
        remedy = "a kernel with the drivers of the host's CoreSight parts (CONFIG_CORESIGHT_*)"
        return Check(title, ok=False, detail=f"present, but no {missing}", remedy=remedy)
    error = refusal(trial_attr(pmu, facts))
    if error is None:
        return Check(
            title, ok=True, detail=f"this user's processes can be traced; {_details(pmu, facts)}"
        )
    remedy = _BUSY_REMEDY if error.errno == errno.EBUSY else error.hint or error.message
    return Check(title, ok=False, detail=f"present, but {error.message}", remedy=remedy)


def _details(pmu: PmuFacts, facts: AuxPmuFacts) -> str:
    """Return details of the hardware in words."""
    words = []
    if facts.decoder == CS_ETM:
        words.append(f"{len(facts.etms)} trace units, sinks {', '.join(facts.sinks)}")
    if facts.decoder == INTEL_PT:
        caps = {"psb_cyc": "cycles", "mtc": "MTC", "ptwrite": "PTWRITE"}
        has = [word for cap, word in caps.items() if facts.caps.get(cap)]
        words.append(f"TSC, {', '.join(has)}" if has else "TSC")
    if facts.decoder == ARM_SPE and "min_interval" in facts.caps:
        words.append(f"at most each {facts.caps['min_interval']} operations")
    filters = pmu.address_filters
    words.append(f"{filters} address filters" if filters else "no address filters")
    return ", ".join(words)
