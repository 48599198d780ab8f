# SPDX-License-Identifier: Apache-2.0
"""Two groups of the hosts of a selection, which are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from collectord.fleet.choice_checks import no_host_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from collectord.fleet.selection import Selection


class Group(NamedTuple):
    """A group of hosts.

    Attributes:
        name: as it was asked for, such as `role=db`.
        hosts: in order of their names.
    """

    name: str
    hosts: tuple[str, ...]

    def among(self, hosts: Collection[str]) -> Group:
        """Return the group without hosts that are not among some."""
        return self._replace(hosts=tuple(host for host in self.hosts if host in hosts))


class Groups(NamedTuple):
    """Two groups of hosts; a host may be in both, and counts in each then.

    Attributes:
        group: that is asked for.
        against: with which it is compared.
    """

    group: Group
    against: Group

    @property
    def shared(self) -> list[str]:
        """The hosts that are in both."""
        return [host for host in self.group.hosts if host in self.against.hosts]

    def sides_of(self, host: str) -> list[int]:
        """Return the numbers of the groups that a host is in, 0 and 1."""
        return [side for side, group in enumerate(self) if host in group.hosts]

    def among(self, hosts: Collection[str]) -> Groups:
        """Return both groups without hosts that are not among some."""
        return Groups(self.group.among(hosts), self.against.among(hosts))


class Pair(NamedTuple):
    """A figure of two groups, None where nothing tells it."""

    group: float | None
    against: float | None

    @property
    def difference(self) -> float | None:
        """The first group's figure less the second's; None if either is unknown."""
        if self.group is None or self.against is None:
            return None
        return self.group - self.against

    def per_host(self, hosts: Pair) -> Pair:
        """Return the figure for each host; None for a group that has none."""
        return Pair(_share(self.group, hosts.group), _share(self.against, hosts.against))


def groups_of(selection: Selection, name: str, against: str) -> Groups:
    """Return the groups of a selection whose hosts are those of two choices.

    Args:
        selection: of what is wanted, and of the other hosts that are `also` wanted.
        name: of the first group.
        against: name of the other one.

    Raises:
        UsageError: a group has no host; the hint lists the labels that there are.
        StoreError: the store cannot be read.
    """
    names = (name, against)
    groups = [
        Group(called, tuple(sorted(selection.chosen(one))))
        for called, one in zip(names, selection.wanted.either, strict=True)
    ]
    for group in groups:
        if not group.hosts:
            raise no_host_of(selection, group.name)
    return Groups(*groups)


def _share(figure: float | None, hosts: float | None) -> float | None:
    return figure / hosts if figure is not None and hosts else None
