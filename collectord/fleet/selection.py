# SPDX-License-Identifier: Apache-2.0
"""The part of a store that a question is about: hosts and days, their commits and objects.

Keys say the event, the day and the host of each object, and a key in the ledger says that all
objects of a segment are there; `lasting` has the keys of segments that are of other days, too. So
the objects are found by listing alone; commits are read, each at most once, where labels of hosts
or times of segments are asked for.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from collectord.errors import StoreError
from collectord.fleet import commit
from collectord.fleet.host_labels import KERNEL
from collectord.fleet.multi_day_notes import DAYS_BEFORE
from collectord.fleet.store_keys import (
    EVENTS,
    LASTING,
    LEDGER,
    CommitKey,
    day_of,
    event_prefix,
    ledger_prefix,
    parse_commit_key,
    parse_event_key,
    parse_lasting_key,
    partition,
)
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from collectord.fleet.commit import Commit
    from collectord.fleet.store import ObjectInfo, Store
    from collectord.reader.event_file import Window

_NS_PER_DAY: Final = 86_400 * NS_PER_SECOND
# Requests at once.
_THREADS: Final = 16
# Commits that are read for a question: they take a second or two.
_FEW: Final = 2000

EVERYBODY: Final = "*"
_GLOB: Final = frozenset("*?[")
T = TypeVar("T")


class Wanted(NamedTuple):
    """The hosts and the time that are asked for.

    Attributes:
        window: the time that is asked for, UTC.
        hosts: a glob, "*" for all.
        labels: the labels that a host must have, by key; values may be globs.
        also: other hosts that are asked for as well, of the same time; None: no others.
    """

    window: Window
    hosts: str = EVERYBODY
    labels: Mapping[str, str] = {}
    also: Wanted | None = None

    @property
    def either(self) -> list[Wanted]:
        """All choices of hosts: a host is asked for if any choice has it."""
        return [self, *([] if self.also is None else self.also.either)]

    @property
    def names(self) -> list[str]:
        """The prefixes of hosts to list: their names, or "" (all hosts) if a name has a glob."""
        names = sorted({one.hosts for one in self.either})
        return [""] if any(map(_is_glob, names)) else names

    def may_have(self, host: str) -> bool:
        """Whether the hosts that are asked for may include a host of this name."""
        return any(fnmatchcase(host, one.hosts) for one in self.either)

    def has(self, host: str, labels: Mapping[str, str]) -> bool:
        """Whether this choice, without `also`, has a host with some labels."""
        return fnmatchcase(host, self.hosts) and all(
            fnmatchcase(labels.get(key, ""), value) for key, value in self.labels.items()
        )


class Told(NamedTuple):
    """A commit that was read, with its key and the hash of its bytes."""

    key: str
    sha256: str
    commit: Commit


class Found(NamedTuple):
    """The objects of an event: the objects that are asked for, each with a commit, and others.

    Attributes:
        sizes: bytes of the objects that are asked for, by key.
        left_out: keys of all others of the same hosts and days.
    """

    sizes: Mapping[str, int]
    left_out: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the objects that are asked for."""
        return tuple(self.sizes)

    @property
    def bytes(self) -> int:
        """The total size in bytes of the objects that are asked for."""
        return sum(self.sizes.values())


@dataclass
class Selection:
    """The commits of some hosts and days in a store, which is asked as little as is needed.

    Attributes:
        store: the store that is read.
        wanted: the hosts and the time that are asked for.
        damaged: why a commit cannot be read, by its key.
        gone: why an object cannot be read that a commit names, by its key.
    """

    store: Store
    wanted: Wanted

    def __post_init__(self) -> None:
        self.damaged: dict[str, StoreError] = {}
        self.gone: dict[str, StoreError] = {}

    @cached_property
    def days(self) -> list[str]:
        """The days of the wanted time, from `first_day`, oldest first. Raises StoreError."""
        folders, _ = self.store.list_folder(LEDGER)
        found = sorted(
            value for name, value in filter(None, map(partition, folders)) if name == "date"
        )
        _, last = self._days_of_time
        return [day for day in found if self.first_day <= day <= last]

    @property
    def first_day(self) -> str:
        """The first day to look at, "" if the wanted time has no beginning."""
        since_ns = self.wanted.window.since_ns
        return "" if since_ns is None else day_of(max(since_ns - DAYS_BEFORE * _NS_PER_DAY, 0))

    @property
    def _days_of_time(self) -> tuple[str, str]:
        since_ns, until_ns = self.wanted.window
        first = "" if since_ns is None else day_of(since_ns)
        return first, "~" if until_ns is None else day_of(until_ns)

    @cached_property
    def _lasting(self) -> frozenset[CommitKey]:
        """The segments that are of the time, and may have keys of other days."""
        if self.wanted.window.everything:
            return frozenset()
        first, last = self._days_of_time
        folders, _ = self.store.list_folder(LASTING)
        prefixes = [
            folder
            for folder in folders
            if (told := partition(folder)) is not None and told[0] == "until" and told[1] >= first
        ]
        keys = (info.key for found in _at_once(self._keys, prefixes) for info in found)
        return frozenset(
            one.commit
            for one in filter(None, map(parse_lasting_key, keys))
            if one.since <= last and one.until >= first
        )

    @cached_property
    def committed(self) -> dict[str, CommitKey]:
        """The commits of the hosts and days, by key. Raises StoreError."""
        found = self._listed
        if not any(one.labels for one in self.wanted.either):
            return found
        chosen = self.chosen(*self.wanted.either)
        return {key: parts for key, parts in found.items() if parts.host in chosen}

    def chosen(self, *choices: Wanted) -> set[str]:
        """Return the hosts whose labels match any of some choices. Raises StoreError."""
        return {
            host
            for host, labels in self.labels.items()
            if any(one.has(host, labels) for one in choices)
        }

    @cached_property
    def _listed(self) -> dict[str, CommitKey]:
        days = {*self.days}
        others = {one.date for one in self._lasting if self.wanted.may_have(one.host)}
        prefixes = [
            ledger_prefix(day, name) for day in sorted(days | others) for name in self.wanted.names
        ]
        keys = (info.key for found in _at_once(self._keys, prefixes) for info in found)
        parsed = ((key, parse_commit_key(key)) for key in keys)
        return {
            key: parts
            for key, parts in sorted(parsed)
            if parts is not None
            and self.wanted.may_have(parts.host)
            and (parts.date in days or parts in self._lasting)
        }

    @cached_property
    def hosts(self) -> list[str]:
        """The names of the hosts. Raises StoreError."""
        return sorted({parts.host for parts in self.committed.values()})

    @cached_property
    def labels(self) -> dict[str, dict[str, str]]:
        """The labels of each host in the newest commit of its last day. Raises StoreError."""
        last: dict[str, str] = {}
        for parts in self._listed.values():
            last[parts.host] = max(parts.date, last.get(parts.host, ""))
        keys = [key for key, parts in self._listed.items() if parts.date == last[parts.host]]
        newest: dict[str, Commit] = {}
        for told in self._read(keys):
            before = newest.get(told.commit.host)
            if before is None or before.started_ns < told.commit.started_ns:
                newest[told.commit.host] = told.commit
        return {host: {KERNEL: one.kernel, **one.labels} for host, one in sorted(newest.items())}

    @cached_property
    def commits(self) -> list[Told]:
        """All commits, by host and time. Raises StoreError."""
        told = self._read([*self.committed])
        return sorted(told, key=lambda one: (one.commit.host, one.commit.started_ns, one.key))

    @property
    def read(self) -> set[CommitKey]:
        """The segments whose commits can be read; reads all commits. Raises StoreError."""
        return {self.committed[told.key] for told in self.commits}

    @property
    def is_small(self) -> bool:
        """Whether all commits are read, or are few enough to be read. Raises StoreError."""
        known = self._known.keys() | self.damaged.keys()
        return len(self.committed.keys() - known) <= _FEW

    @cached_property
    def events(self) -> list[str]:
        """The names of all events in the store. Raises StoreError."""
        folders, _ = self.store.list_folder(EVENTS)
        return [value for name, value in filter(None, map(partition, folders)) if name == "event"]

    def objects(self, event: str) -> Found:
        """Return the objects of an event. Raises StoreError."""
        sources = {*self.committed.values()}
        hosts = {one.host for one in sources}
        days = sorted({one.date for one in sources})
        prefixes = [event_prefix(event, day, name) for day in days for name in self.wanted.names]
        sizes: dict[str, int] = {}
        left_out: list[str] = []
        for found in _at_once(self._keys, prefixes):
            for info in found:
                parts = parse_event_key(info.key)
                if parts is None or parts.host not in hosts:
                    continue
                if CommitKey(parts.date, parts.host, parts.source) in sources:
                    sizes[info.key] = info.bytes
                else:
                    left_out.append(info.key)
        return Found(dict(sorted(sizes.items())), tuple(sorted(left_out)))

    def _keys(self, prefix: str) -> list[ObjectInfo]:
        return [*self.store.objects(prefix)]

    def _read(self, keys: Sequence[str]) -> list[Told]:
        missing = [key for key in keys if key not in self._known and key not in self.damaged]
        for key, told in zip(missing, _at_once(self._commit, missing), strict=True):
            if isinstance(told, StoreError):
                self.damaged[key] = told
            else:
                self._known[key] = told
        return [self._known[key] for key in keys if key in self._known]

    @cached_property
    def _known(self) -> dict[str, Told]:
        return {}

    def _commit(self, key: str) -> Told | StoreError:
        data = self.store.get(key, commit.COMMIT_MAX_BYTES)
        try:
            return Told(key, commit.digest(data), commit.decode(data, key))
        except StoreError as error:
            return error


def _at_once(call: Callable[[str], T], words: Sequence[str]) -> list[T]:
    """Call a function for each word, several at once; return the results in the words' order."""
    if len(words) < 2:  # noqa: PLR2004
        return [*map(call, words)]
    with ThreadPoolExecutor(_THREADS) as pool:
        return [*pool.map(call, words)]


def _is_glob(name: str) -> bool:
    return not _GLOB.isdisjoint(name)
