# SPDX-License-Identifier: Apache-2.0
"""The incidents of two groups of hosts, by what triggered them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from collectord.fleet.groups import Pair

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.fleet.groups import Groups
    from collectord.fleet.incidents import FleetIncident


@dataclass(slots=True)
class _Side:
    """The incidents of a trigger in one group."""

    incidents: set[str] = field(default_factory=set)
    of_hosts: int = 0
    hosts: set[str] = field(default_factory=set)


class TriggerSides(NamedTuple):
    """The incidents of a trigger in both groups.

    Attributes:
        trigger: "" of incidents whose note is not there.
        incidents: those of one alert on several hosts are one.
        of_hosts: each host's own.
        hosts: that had one.
    """

    trigger: str
    incidents: Pair
    of_hosts: Pair
    hosts: Pair

    def pairs(self) -> Iterator[tuple[str, Pair]]:
        """Yield the figures of both groups by name."""
        yield "incidents", self.incidents
        yield "incidents_of_hosts", self.of_hosts
        yield "hosts", self.hosts


def incident_groups(found: Sequence[FleetIncident], groups: Groups) -> list[TriggerSides]:
    """Return the incidents of two groups by trigger, those that differ most per host first."""
    triggers: dict[str, tuple[_Side, _Side]] = {}
    for one in found:
        for part in one.parts:
            trigger = part.note.trigger if part.note else ""
            both = triggers.setdefault(trigger, (_Side(), _Side()))
            for number in groups.sides_of(part.host):
                side = both[number]
                side.incidents.add(one.id)
                side.of_hosts += 1
                side.hosts.add(part.host)
    sizes = Pair(*(len(group.hosts) for group in groups))
    made = [
        TriggerSides(
            trigger,
            Pair(*(len(side.incidents) for side in both)),
            Pair(*(side.of_hosts for side in both)),
            Pair(*(len(side.hosts) for side in both)),
        )
        for trigger, both in triggers.items()
    ]

    def order(one: TriggerSides) -> tuple[float, str]:
        return -abs(one.of_hosts.per_host(sizes).difference or 0), one.trigger

    return sorted(made, key=order)
