# SPDX-License-Identifier: Apache-2.0
"""Two groups of the hosts of a selection, which are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import UsageError
from collectord.fleet.lift import HOST
from collectord.fleet.selection import EVERYBODY, Selection, Wanted
from collectord.text.nearest import did_you_mean
from collectord.text.wording import some_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_VALUES_NAMED: Final = 8


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
        """The first less the second."""
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


def no_host_of(selection: Selection, name: str) -> UsageError:
    """Return the error that a choice has no host, with what hosts there are. Raises StoreError."""
    everybody = Selection(selection.store, Wanted(selection.wanted.window)).labels
    if any(one.hosts != EVERYBODY for one in selection.wanted.either):
        everybody = {host: {HOST: host, **labels} for host, labels in everybody.items()}
    return UsageError(
        f"no host of {name} has shipped anything of the time that is asked for",
        hint=_labels_text(everybody),
    )


def check_labels(selection: Selection, keys: Sequence[str]) -> None:
    """See that each of some labels, or `host`, is one that a host of a selection has.

    Raises:
        UsageError: none has; the hint has the nearest one, or those that there are.
        StoreError: the store cannot be read.
    """
    labels = {host: selection.labels.get(host, {}) for host in selection.hosts}
    known = {HOST}.union(*labels.values())
    for key in keys:
        if key not in known:
            hint = did_you_mean(key, known) or _labels_text(labels)
            raise UsageError(f"no host that is asked has the label {key!r}", hint=hint)


def _labels_text(labels: Mapping[str, Mapping[str, str]]) -> str:
    """Return the labels of hosts with their values, as a hint."""
    values: dict[str, set[str]] = {}
    for own in labels.values():
        for key, value in own.items():
            values.setdefault(key, set()).add(value)
    if not values:
        return "no host has"
    told = []
    for key, found in sorted(values.items()):
        told.append(f"{key} is {some_of(sorted(found), _VALUES_NAMED)}")
    return f"there are hosts whose {'; '.join(told)}"


def _share(figure: float | None, hosts: float | None) -> float | None:
    return figure / hosts if figure is not None and hosts else None
