# SPDX-License-Identifier: Apache-2.0
"""Commits: what is written is read again, and anything else is refused."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from collectord.errors import StoreError
from collectord.fleet import commit as commits
from collectord.fleet.commit import Balance, ClockState, Commit, Covered, Previous, StoredObject

SOURCE = "ab" * 32
KEY = "ledger/date=2026-11-27/host=h/x.json"


def make(**changes: object) -> Commit:
    """Return a commit with all that one may have."""
    whole = Commit(
        source=SOURCE,
        host="db-1",
        session="exec",
        kind="perf",
        format="perf.data",
        boot_id="b",
        kernel="6.18",
        labels={"role": "db"},
        date="2026-11-27",
        segment="20261127T000000Z-000001.perf.data",
        started_ns=1,
        first_ns=2,
        last_ns=3,
        clock=ClockState(at_ns=4, synchronized=True, max_error_us=5, est_error_us=6),
        rule="columns",
        balance=Balance(produced=7, stored=6, lost=1, lost_by={"kernel_ring/ring_full": 1}),
        covered=(Covered(what="recorded", since_ns=1, until_ns=3, cpus=(0, 1)),),
        previous=Previous(key=KEY, source=SOURCE, sha256=SOURCE),
        manifests=("{}\n",),
        objects=(StoredObject(key=KEY, bytes=1, sha256=SOURCE, event="x", rows=6),),
        shipped_ns=8,
    )
    return msgspec.structs.replace(whole, **changes)


def test_a_commit_is_read_as_it_was_written() -> None:
    """All fields of it."""
    commit = make()
    data = commits.encode(commit)
    assert commits.decode(data, KEY) == commit
    assert commits.digest(data) == hashlib.sha256(data).hexdigest()
    assert commits.sources_told(commit) == [hashlib.sha256(b"{}\n").hexdigest()]
    assert commit.stream == ("db-1", "exec", "perf.data")
    assert commit.decoded() == []  # it is no manifest


@pytest.mark.parametrize(
    "change",
    [
        {"source": "x"},
        {"schema": 2},
        {"host": "x" * 300},
        {"date": "yesterday"},
        {"manifests": ()},
        {"started_ns": -1},
        {"labels": {str(number): "" for number in range(65)}},
        {"balance": Balance(stored=-1)},
        {"objects": (StoredObject(key="", bytes=1, sha256=SOURCE),)},
    ],
)
def test_what_is_no_commit_is_refused(change: dict[str, object]) -> None:
    """Numbers have ranges, and texts and lists have limits."""
    data = commits.encode(make(**change))
    with pytest.raises(StoreError) as caught:
        commits.decode(data, KEY)
    assert caught.value.key == KEY


def test_any_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that is no JSON, and more of it than a commit can have."""
    for data in (b"", b"[]", b"\xff", b"[" * 100_000):
        with pytest.raises(StoreError):
            commits.decode(data, KEY)
    data = commits.encode(make())
    monkeypatch.setattr(commits, "COMMIT_MAX_BYTES", len(data) - 1)
    with pytest.raises(StoreError, match="more than"):
        commits.decode(data, KEY)
