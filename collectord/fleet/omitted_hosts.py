# SPDX-License-Identifier: Apache-2.0
"""The hosts that an answer leaves out, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from collectord.text.wording import some_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.fleet.groups import Group

# Hosts that are named; of more, the number is told.
HOSTS_NAMED: Final = 2


@dataclass(slots=True)
class OmittedHosts:
    """The hosts that an answer leaves out, by the reason.

    Attributes:
        events: by which the answer is given.
        lacking: have not recorded all of them.
        unshipped: have recorded them, and not shipped the rows.
        chainless: their records have no call chains.
        gone: what they have shipped is gone from the store.
    """

    events: Sequence[str] = ()
    lacking: set[str] = field(default_factory=set)
    unshipped: set[str] = field(default_factory=set)
    chainless: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)

    def of_group(self, group: Group) -> str:
        """Return in words why each host of a group is left out."""
        rest = {*group.hosts} - self.gone - self.chainless - self.unshipped
        reasons = (
            (self.gone, "the objects of {} are gone from the store"),
            (self.chainless, "the records of {} have no call chains"),
            (self.unshipped, "{} recorded it, and the records were not shipped"),
            (
                rest,
                f"{{}} did not record {' and '.join(self.events)} in the time that is asked for",
            ),
        )
        told = ((sorted(hosts.intersection(group.hosts)), words) for hosts, words in reasons)
        whose = "; ".join(
            words.format(some_of(hosts, HOSTS_NAMED)) for hosts, words in told if hosts
        )
        return f"no host of {group.name} can be compared: {whose}"
