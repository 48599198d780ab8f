# SPDX-License-Identifier: Apache-2.0
"""Has Iceberg tables name the objects of committed segments, each once.

The newest of the documents `vN.metadata.json` of a table counts. The next one is put on the
condition that nobody has put it: of two that do so at once one begins again, with what is there.
So a kill at any instant leaves the table as it was, or as it should be. What only old versions
have is deleted behind it.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import CollectordError, StoreConflict, StoreError
from collectord.fleet.iceberg.columns import COLUMNS_MAX, extended
from collectord.fleet.iceberg.footers import read_footers
from collectord.fleet.iceberg.iceberg_manifests import (
    Change,
    NewFile,
    paths_in,
    read_manifests,
    write_snapshot,
)
from collectord.fleet.iceberg.old_versions import delete_old
from collectord.fleet.iceberg.store_io import StoreIO
from collectord.fleet.iceberg.table_document import (
    DOCUMENT_MAX_BYTES,
    following,
    new_table,
    parsed,
)
from collectord.fleet.selection import Selection
from collectord.fleet.store_keys import (
    ICEBERG,
    event_prefix,
    parse_event_key,
    partition,
    quoted,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from collectord.fleet.engines.place import Place
    from collectord.fleet.iceberg.footers import Footer
    from collectord.fleet.iceberg.table_document import TableDocument

# Files of one snapshot.
FILES_MAX: Final = 2000
_TRIES: Final = 5
_HINT: Final = "version-hint.text"
_HINT_MAX_BYTES: Final = 32
_DOCUMENT: Final = re.compile(r"v(\d{1,15})\.metadata\.json")


class Registered(NamedTuple):
    """A table that was brought up to date, and what was done to it.

    Attributes:
        event: whose it is.
        files, rows: that it has now.
        added, dropped: files.
        columns_left_out: that its files have, and it has not.
        files_left_out: why files are not in it, by key.
        deleted: objects of old versions.
        not_deleted: why not all of them are, "" if they are.
    """

    event: str
    files: int
    rows: int
    added: int
    dropped: int
    columns_left_out: Sequence[str]
    files_left_out: Mapping[str, str]
    deleted: int
    not_deleted: str


class _Outcome(NamedTuple):
    """A version of a table, and the changes that made it."""

    table: TableDocument
    version: int
    added: int = 0
    dropped: int = 0
    left_out: Mapping[str, str] = {}
    more: bool = False


class Registration:
    """Has the tables of a store name the objects of some days.

    Args:
        selection: the days, of all hosts.
        place: of the objects.
        location: the address of the store, as engines are to have it.
        previous_versions: how many of a table are kept before its newest; 0: all of them, None: as
            the table says.
    """

    def __init__(
        self,
        selection: Selection,
        place: Place,
        location: str,
        previous_versions: int | None = None,
    ) -> None:
        self._selection = selection
        self._place = place
        self._store = selection.store
        self._files = StoreIO(selection.store, location)
        self._previous_versions = previous_versions

    def events(self) -> list[str]:
        """Return the events that have objects, or a table. Raises StoreError."""
        folders, _ = self._store.list_folder(ICEBERG)
        tables = (
            value for name, value in filter(None, map(partition, folders)) if name == "event"
        )
        return sorted({*self._selection.events, *tables})

    def register(self, event: str) -> Registered | None:
        """Bring the table of an event up to date; None if there is nothing to have one of.

        Raises:
            StoreConflict: others change the table all the while, or it is not of this program.
            StoreError: the store fails.
        """
        added = dropped = 0
        left_out: dict[str, str] = {}
        lost = 0
        while True:
            found = self._newest(event)
            made = self._attempt(event, found, left_out)
            if made is None:
                lost += 1
                if lost >= _TRIES:
                    prefix = _prefix(event)
                    raise StoreConflict(
                        f"{prefix} is changed by others all the while",
                        key=prefix,
                        hint="try again",
                    )
                continue
            added += made.added
            dropped += made.dropped
            left_out |= made.left_out
            if not made.more:
                break
        snapshot = made.table.snapshot
        if snapshot is None:
            return None
        documents = self._hint(event, self._documents(event))
        deleted, problem = self._delete_old(made.table, documents)
        return Registered(
            event,
            files=int(snapshot["summary"]["total-data-files"]),
            rows=int(snapshot["summary"]["total-records"]),
            added=added,
            dropped=dropped,
            columns_left_out=made.table.columns.left_out(),
            files_left_out=left_out,
            deleted=deleted,
            not_deleted=problem,
        )

    def _delete_old(self, table: TableDocument, documents: Mapping[int, str]) -> tuple[int, str]:
        """Delete old versions; return how many objects, and why not all of them."""
        if not table.deletes:
            return 0, ""
        try:
            return delete_old(self._files, documents, table.previous_versions), ""
        except StoreError as error:
            return 0, error.message

    def _attempt(
        self, event: str, found: tuple[int, TableDocument], known_bad: Mapping[str, str]
    ) -> _Outcome | None:
        """Put the next version of a table, if it needs one; None if another has put it."""
        version, table = found
        scope = self._selection.first_day
        first = self._first_day(event)
        wanted = self._selection.objects(event).sizes
        # These are the days of segments that lasted into those that are asked for.
        lasting = {day for day in map(_day_in, wanted) if day < scope}

        def is_asked(begin: str, end: str) -> bool:
            return end >= scope or begin < first or any(begin <= day <= end for day in lasting)

        before = read_manifests(table, self._files, is_asked)
        registered = {self._files.key_of(path): path for path in paths_in(before)}
        in_scope = {key for key in registered if not scope > _day_in(key) >= first}
        if in_scope - wanted.keys():
            # Another may have registered what was put since the store was listed.
            self._selection = Selection(self._store, self._selection.wanted)
            sizes = self._selection.objects(event).sizes
            wanted = {
                key: size
                for key, size in sizes.items()
                if (day := _day_in(key)) >= scope or day in lasting
            }
        dropped = frozenset(registered[key] for key in in_scope - wanted.keys())
        missing = sorted(wanted.keys() - registered.keys() - known_bad.keys())
        chosen = missing[:FILES_MAX]
        columns = table.columns
        added: list[NewFile] = []
        left_out: dict[str, str] = {}
        for key, footer in self._footers(chosen, left_out):
            columns_now, clashes = extended(columns, footer.columns)
            if clashes or len(columns_now.named) > COLUMNS_MAX:
                words = ", ".join(clashes[:4]) or f"more than {COLUMNS_MAX:,} columns"
                left_out[key] = f"its types do not go with the table's: {words}"
                continue
            columns = columns_now
            added.append(NewFile(key, wanted[key], footer))
        more = len(missing) > len(chosen)
        if not added and not dropped:
            return _Outcome(table, version, left_out=left_out, more=more)
        table = table._replace(columns=columns)
        made = write_snapshot(table, self._files, Change(before, added, dropped))
        last = self._files.location + "/" + _document(event, version) if version else ""
        table = following(table, made, time.time_ns(), last)
        data = table.to_bytes()
        if len(data) > DOCUMENT_MAX_BYTES:
            key = _document(event, version + 1)
            raise StoreError(f"{key} would have more than {DOCUMENT_MAX_BYTES} bytes", key=key)
        if not self._store.put_new(_document(event, version + 1), data):
            return None
        if max(self._documents(event)) > version + 1:
            # Another has put a version behind this one; or many, and the name was free again as
            # that of a version that is deleted.
            return None
        return _Outcome(table, version + 1, len(added), len(dropped), left_out, more)

    def _footers(self, keys: list[str], left_out: dict[str, str]) -> Iterator[tuple[str, Footer]]:
        """Yield the ends of objects; note why one cannot be read."""
        if not keys:
            return
        try:
            yield from read_footers(keys, self._place).items()
        except StoreError:
            raise
        except CollectordError as error:
            if len(keys) == 1:
                left_out[keys[0]] = error.message
                return
            half = len(keys) // 2
            yield from self._footers(keys[:half], left_out)
            yield from self._footers(keys[half:], left_out)

    def _first_day(self, event: str) -> str:
        """Return the first day that has objects of an event: what was before is gone."""
        folders, _ = self._store.list_folder(event_prefix(event))
        days = (value for name, value in filter(None, map(partition, folders)) if name == "date")
        return min(days, default="~")

    def _newest(self, event: str) -> tuple[int, TableDocument]:
        """Return the number and the document of a table's newest version, 0 if there is none."""
        location = f"{self._files.location}/{_prefix(event)}"
        version = max(self._documents(event), default=0)
        if not version:
            table = new_table(location, str(uuid.uuid4()))
        else:
            key = _document(event, version)
            table = parsed(self._store.get(key, DOCUMENT_MAX_BYTES), key, location)
        return version, table.keeping(self._previous_versions)

    def _documents(self, event: str) -> dict[int, str]:
        """Return the keys of a table's documents, by version."""
        _, found = self._store.list_folder(f"{_prefix(event)}/metadata")
        named = ((info.key, _DOCUMENT.fullmatch(info.key.rpartition("/")[2])) for info in found)
        return {int(match[1]): key for key, match in named if match is not None}

    def _hint(self, event: str, documents: dict[int, str]) -> dict[int, str]:
        """Have the object by which readers find the newest version name it.

        Args:
            event: whose table it is.
            documents: of the table.

        Returns:
            its documents after that.
        """
        key = f"{_prefix(event)}/metadata/{_HINT}"
        while True:
            newest = max(documents)
            text = str(newest).encode()
            if self._store.head(key) is not None and (
                self._store.get(key, _HINT_MAX_BYTES) == text
            ):
                return documents
            self._store.put(key, text)
            documents = self._documents(event)
            if max(documents) == newest:
                return documents
            # Another has put a newer one, and maybe named it, before this one was named.


def _prefix(event: str) -> str:
    return f"{ICEBERG}/event={quoted(event)}"


def _document(event: str, version: int) -> str:
    return f"{_prefix(event)}/metadata/v{version}.metadata.json"


def _day_in(key: str) -> str:
    parts = parse_event_key(key)
    return "" if parts is None else parts.date
