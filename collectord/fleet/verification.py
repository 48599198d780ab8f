# SPDX-License-Identifier: Apache-2.0
"""Checks that a store is as it was put: the chains of commits, and the objects that they name.

Each commit names the commit before it by its hash, so the chain shows whether a commit was removed
or changed. The hashes of the objects show whether an object was changed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from collectord.errors import NotStored, StoreError
from collectord.fleet import commit as commits_of
from collectord.fleet.ledger_finding import Finding
from collectord.fleet.store_keys import CommitKey, source_of
from collectord.sink.manifest_ledger import balance_in
from collectord.text.wording import some_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from collectord.fleet.commit import Commit
    from collectord.fleet.selection import Told
    from collectord.fleet.store import Store

# At most so many segments are named; for more, the number is told.
_NAMED: Final = 4


class Verification:
    """Follows the chains of some commits, and reads their objects.

    Args:
        store: the store that has the commits.
        told: the commits.
        checked: counts the commits whose links were followed, the objects that were looked at,
            and the bytes that were read.
    """

    def __init__(self, store: Store, told: Sequence[Told], checked: Counter[str]) -> None:
        self._store = store
        self._told = told
        self._by_key = {one.key: one for one in told}
        self._checked = checked

    def findings(self, *, is_whole: bool) -> Iterator[Finding]:
        """Yield a finding for each commit and object that is not as it was put.

        Args:
            is_whole: the commits are all of their hosts, so that those of a run add up.

        Raises:
            StoreError: the store cannot be read.
        """
        first: dict[tuple[str, ...], list[Commit]] = {}
        followers: dict[str, list[Commit]] = {}
        for one in self._told:
            self._checked["commits"] += 1
            previous = one.commit.previous
            if previous is None:
                first.setdefault(one.commit.stream, []).append(one.commit)
            else:
                followers.setdefault(previous.key, []).append(one.commit)
            yield from self._link(one.commit)
            yield from _place(one)
            yield from self._objects(one.commit)
        for key, commits in followers.items():
            if len(commits) > 1:
                detail = f"the commits of {_segments(commits)} all follow {key}, and only one can"
                yield _finding("chain", commits[0], detail, len(commits))
        for commits in first.values():
            if len(commits) > 1:
                detail = (
                    f"the commits of {_segments(commits)} follow no other, and only the first one "
                    f"of {commits[0].format} can"
                )
                yield _finding("chain", commits[0], detail, len(commits))
        if is_whole:
            yield from _sums([one.commit for one in self._told])

    def _link(self, one: Commit) -> Iterator[Finding]:
        """Yield why a commit does not follow the commit that it names."""
        previous = one.previous
        if previous is None:
            return
        words = f"the commit of {one.segment} follows {previous.key}"
        before = self._by_key.get(previous.key)
        if before is not None:
            digest, stream = before.sha256, before.commit.stream
        else:  # of a day or a session that was not asked for, or damaged
            try:
                data = self._store.get(previous.key, commits_of.COMMIT_MAX_BYTES)
            except NotStored:
                yield _finding("chain", one, f"{words}, which is not in the store")
                return
            digest = commits_of.digest(data)
            stream = one.stream
            with suppress(StoreError):  # of a newer version
                stream = commits_of.decode(data, previous.key).stream
        if digest != previous.sha256:
            detail = f"its SHA-256 was {previous.sha256}, and is {digest}"
            yield _finding("chain", one, f"{words}, which was changed: {detail}")
        elif stream != one.stream:
            host, session, form = stream
            yield _finding(
                "chain", one, f"{words}, which is of another chain: {form} of {session} of {host}"
            )

    def _objects(self, one: Commit) -> Iterator[Finding]:
        for stored in one.objects:
            self._checked["objects"] += 1
            words = f"{stored.key} of {one.segment}"
            try:
                size_bytes, sha256 = self._store.digest(stored.key)
            except NotStored:
                yield _finding("object", one, f"{words} is not in the store")
                continue
            except StoreError as error:
                yield _finding("object", one, f"{words} cannot be read: {error}")
                continue
            self._checked["bytes"] += size_bytes
            if (size_bytes, sha256) != (stored.bytes, stored.sha256):
                detail = (
                    f"{stored.bytes:,} bytes with the SHA-256 {stored.sha256} were put, and "
                    f"{size_bytes:,} with {sha256} are there"
                )
                yield _finding("object", one, f"{words} was changed: {detail}")


def _place(one: Told) -> Iterator[Finding]:
    """Yield a finding if a commit is not the commit that its key names."""
    commit = one.commit
    key = CommitKey(commit.date, commit.host, commit.source).key
    if key != one.key:
        detail = f"{one.key} has the commit of {commit.segment} that belongs to {key}"
        yield _finding("commit", commit, detail)
    elif not commit.redacted and source_of(commits_of.sources_told(commit)) != commit.source:
        detail = f"{key} was changed: its manifests of {commit.segment} have another SHA-256"
        yield _finding("commit", commit, detail)


def _sums(commits: Sequence[Commit]) -> Iterator[Finding]:
    """Yield a finding for each run whose commits do not add up to its last manifest's totals."""
    runs: dict[tuple[str, str, str], list[Commit]] = {}
    for one in commits:
        manifests = one.decoded()
        if len(manifests) == 1 and manifests[0].run:
            runs.setdefault((one.host, one.session, manifests[0].run), []).append(one)
    for (host, session, _), segments in runs.items():
        manifests = [one.decoded()[0] for one in segments]
        newest = max(manifests, key=lambda one: (one.stored_before, one.started_ns))
        oldest = min(manifests, key=lambda one: (one.stored_before, one.started_ns))
        passed = any(one.passed_over for one in segments)
        told = balance_in(newest)
        if oldest.stored_before or passed or isinstance(told, str) or told.lost is None:
            continue  # segments that are not here have a part in the run's ledger
        balances = [one.balance for one in segments]
        for name, whole, parts in (
            ("produced", told.produced, [one.produced for one in balances]),
            ("lost", sum(told.lost.values()), [one.lost for one in balances]),
            ("stored", newest.stored_before + newest.samples, [one.stored for one in balances]),
        ):
            if whole is None or None in parts:
                continue
            total = sum(filter(None, parts))
            if total != whole:
                detail = (
                    f"{name} is {total:,} in the commits of {_segments(segments)} together, and "
                    f"{whole:,} in the manifest of {newest.segment}"
                )
                yield Finding("sum", host, session, detail, events=whole - total)


def _finding(what: str, one: Commit, detail: str, events: int | None = None) -> Finding:
    return Finding(what, one.host, one.session, detail, *one.span, events)


def _segments(commits: Sequence[Commit]) -> str:
    """Return the segments of commits in words, with their days: names begin anew with a host."""
    return some_of([f"{one.segment} of {one.date}" for one in commits], _NAMED)
