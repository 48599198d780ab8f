# SPDX-License-Identifier: Apache-2.0
"""Checks that chosen hosts, labels and sessions are in a store; errors name those that are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.errors import UsageError
from collectord.fleet.per_host_statement import HOST
from collectord.fleet.selection import EVERYBODY, Selection, Wanted
from collectord.text.nearest import did_you_mean
from collectord.text.wording import some_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VALUES_NAMED: Final = 8


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


def check_session(selection: Selection, session: str | None) -> None:
    """See that hosts have shipped a session, if one is asked for; it reads all commits.

    Raises:
        UsageError: none has; the hint has the nearest one, or those that there are.
        StoreError: the store cannot be read.
    """
    known = {told.commit.session for told in selection.commits} if session is not None else set()
    if session is None or session in known:
        return
    hint = did_you_mean(session, known) or f"there are: {', '.join(sorted(known)) or 'none'}"
    raise UsageError(f"no host that is asked has shipped the session {session}", hint=hint)


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
