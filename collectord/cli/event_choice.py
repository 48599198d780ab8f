# SPDX-License-Identifier: Apache-2.0
"""The choice by `-e` and `--filter` of `collectord events`, for events of any format."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from collectord.errors import UnknownEvent, UsageError
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from collectord.codec.record_filter import Term


class Choosable(NamedTuple):
    """An event that can be chosen.

    Attributes:
        key: the key of its predicate in `Choice.predicates`.
        names: the names that globs are matched with.
        fields: the fields that a filter may name.
        bind: returns what chooses its records for given terms: a predicate, or what makes
            the core's. Raises UsageError.
    """

    key: Hashable
    names: tuple[str, ...]
    fields: frozenset[str]
    bind: Callable[[Sequence[Term]], Any]


class Choice(NamedTuple):
    """The choice made by -e and --filter."""

    globs: Sequence[str]
    terms: Sequence[Term]

    @property
    def everything(self) -> bool:
        """Whether neither -e nor --filter is given."""
        return not self.globs and not self.terms

    def names(self, event: Choosable) -> bool:
        """Whether -e chooses an event."""
        return not self.globs or _is_named(event, self.globs)

    def check(self, events: Sequence[Choosable]) -> None:
        """Refuse a choice that no record in the segments can match.

        Raises:
            UnknownEvent: a glob matches no event.
            UsageError: no event has the filter's fields, or they cannot be compared in this way.
        """
        for glob in self.globs:
            if not any(_is_named(event, [glob]) for event in events):
                known = {name for event in events for name in event.names}
                hint = did_you_mean(glob.strip("*"), known) or "--count lists the events"
                raise UnknownEvent(f"no event {glob!r} in the segments", hint=hint)
        chosen = [event for event in events if self.names(event)]
        fields = {field for event in chosen for field in event.fields}
        for term in self.terms:
            if term.field not in fields:
                hint = did_you_mean(term.field, fields) or f"one of {', '.join(sorted(fields))}"
                raise UsageError(f"no event has a field {term.field!r}", hint=hint)
        complete = [event for event in chosen if self._filtered <= event.fields]
        if not complete:
            names = ", ".join(term.field for term in self.terms)
            raise UsageError(f"no event has all of {names}")
        refusals = []
        for event in complete:
            try:
                event.bind(self.terms)
            except UsageError as error:
                refusals.append(error)
        if len(refusals) == len(complete):
            raise refusals[0]

    def predicates(self, events: Iterable[Choosable]) -> dict[Hashable, Any]:
        """Return the predicates of the events that may match, by the event's key."""
        found = {}
        for event in events:
            if self.names(event) and self._filtered <= event.fields:
                try:
                    found[event.key] = event.bind(self.terms)
                except UsageError:  # another event of this choice has such a field
                    continue
        return found

    @property
    def _filtered(self) -> set[str]:
        return {term.field for term in self.terms}


def _is_named(event: Choosable, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs for name in event.names)
