# SPDX-License-Identifier: Apache-2.0
"""Dynamic PMUs as sysfs describes them (Documentation/ABI/testing/sysfs-bus-event_source-*)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from collectord.errors import UsageError
from collectord.facts.kernel_facts import PmuFacts
from collectord.kernel.host import sysfs
from collectord.text import cpu_list

if TYPE_CHECKING:
    from pathlib import Path

# Files beside an event alias that describe its value, not its attributes.
_UNIT: Final = ".unit"
_NOT_EVENTS: Final = (".scale", _UNIT, ".snapshot", ".per-pkg")
# PMUs whose drivers are known to have an AUX area; for others only a trial tells (`aux_trial`).
_AUX_NAMES: Final = re.compile(r"intel_pt|intel_bts|cs_etm|arm_spe_\d+|hisi_ptt\d+_\d+", re.ASCII)


def read_pmus(sys: Path) -> dict[str, PmuFacts]:
    """Read all PMUs below a root of sysfs; what cannot be read is left out."""
    folders = sysfs.entries(sys / "bus/event_source/devices")
    found = {folder.name: _read_pmu(folder) for folder in folders}
    return {name: pmu for name, pmu in found.items() if pmu is not None}


def _read_pmu(folder: Path) -> PmuFacts | None:
    kind = sysfs.text(folder / "type")
    if not kind.isdigit():
        return None
    cpumask = sysfs.text(folder / "cpumask")
    events = sysfs.files(folder / "events")
    filters = sysfs.text(folder / "nr_addr_filters")
    return PmuFacts(
        type=int(kind),
        formats=sysfs.files(folder / "format"),
        events={name: terms for name, terms in events.items() if not name.endswith(_NOT_EVENTS)},
        cpus=_cpus(cpumask or sysfs.text(folder / "cpus")),
        core=not cpumask,
        aux=_AUX_NAMES.fullmatch(folder.name) is not None,
        address_filters=int(filters) if filters.isdigit() else 0,
        units={
            name.removesuffix(_UNIT): unit for name, unit in events.items() if name.endswith(_UNIT)
        },
    )


def _cpus(text: str) -> tuple[int, ...]:
    try:
        return cpu_list.parse(text)
    except UsageError:
        return ()
