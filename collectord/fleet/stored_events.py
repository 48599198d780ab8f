# SPDX-License-Identifier: Apache-2.0
"""The objects of each event in a store, with their columns: a table of a question each."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from collectord.fleet.dialect import DUCKDB
from collectord.fleet.engines import duck
from collectord.fleet.host_labels import KERNEL
from collectord.fleet.question import Objects
from collectord.fleet.shortfall import note_gone
from collectord.fleet.store_keys import parse_event_key
from collectord.reader.event_tables import table_of_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.fleet.engines import Engine
    from collectord.fleet.engines.place import Place
    from collectord.fleet.recordings import Recordings
    from collectord.fleet.selection import Selection

# Objects whose columns are looked at, of an event.
_SAMPLES: Final = 32


class StoredEvents:
    """The objects of the events that a selection has.

    Args:
        selection: of hosts and days.
        place: of the store and the engine.
        engine: is asked for rows later; DuckDB is asked for columns in any case.
    """

    def __init__(self, selection: Selection, place: Place, engine: Engine) -> None:
        self._selection = selection
        self._place = place
        self._engine = engine

    @property
    def names(self) -> Mapping[str, str]:
        """The events in the keys, by the names of their tables. Raises StoreError."""
        events = self._selection.events
        counts = Counter(map(plain_name, events))
        return {plain if counts[plain := plain_name(one)] == 1 else one: one for one in events}

    def table(self, event: str, name: str) -> Objects | None:
        """Return the objects of an event in the keys, as a table; None if there are none.

        Raises:
            StoreError: the store cannot be read, or an object is damaged.
        """
        found = self._selection.objects(event)
        if not found.keys:
            return None
        with ExitStack() as stack:
            columns = duck.columns_of(self._samples(found.keys), self._place, stack)
        return Objects(name, columns, found.keys, found.bytes, found.left_out)

    def of_event(self, event: str, recordings: Recordings) -> Objects | None:
        """Return the objects of an event SYSTEM:NAME; None if there are none.

        Raises as `table`.
        """
        plain = plain_name(event)
        for name in (event, plain):
            if name in self._selection.events:
                return self.table(name, plain)
        samples = table_of_samples(event)
        if samples in self._selection.events:
            found = self.table(samples, plain)
            names = recordings.samples_of(event)
            return None if found is None else found._replace(of_events=names)
        return None

    def note_gone(self, event: str, there: Objects | None, recordings: Recordings) -> set[str]:
        """Note the objects of an event that are gone, and return the hosts that have no other."""
        samples = table_of_samples(event)
        names = {samples} if samples else {event, plain_name(event)}
        if there is not None:
            names = {there.event}
        keys = {*there.keys} if there is not None else set()
        commits = recordings.within(self._selection.wanted.window)
        return note_gone(self._selection, commits, names, keys)

    def _samples(self, keys: Sequence[str]) -> list[str]:
        """Return objects that have all columns: those of an event differ between kernels."""
        if self._engine.dialect == DUCKDB:  # which looks at all of them
            return [keys[-1]]
        labels = self._selection.labels
        newest: dict[str, str] = {}
        for key in keys:
            parts = parse_event_key(key)
            if parts is not None:
                newest[labels.get(parts.host, {}).get(KERNEL, parts.host)] = key
        return [*newest.values()][-_SAMPLES:]


def plain_name(event: str) -> str:
    """Return the name of an event without its system."""
    return event.rpartition(":")[2]
