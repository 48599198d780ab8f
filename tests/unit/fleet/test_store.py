# SPDX-License-Identifier: Apache-2.0
"""Stores: a folder and an S3 server do the same, and what fails is told by its type."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import pytest

from collectord.errors import NotStored, StoreError, StoreUnavailable, UsageError
from collectord.fleet import store as stores
from collectord.fleet.store import Store, folder_of

if TYPE_CHECKING:
    from tests.support.object_stores import S3Server

KEY = "events/event=a%3Ab/date=2026-11-27/host=x%20y/abc-0.parquet"


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, s3_server: S3Server) -> Store:
    """Return an empty store of each kind."""
    if request.param == "folder":
        return Store.open(str(tmp_path / "store"), make=True)
    return Store.open(s3_server.new_bucket(), s3_server.options())


def test_what_is_put_is_there_once(store: Store) -> None:
    """The first one has the key, whoever comes later."""
    assert store.head(KEY) is None
    assert store.put_new(KEY, b"first") is True
    assert store.put_new(KEY, b"second") is False
    assert store.get(KEY, 5) == b"first"
    assert store.get_range(KEY, 1, 3) == b"irs"
    info = store.head(KEY)
    assert info is not None
    assert (info.key, info.bytes) == (KEY, 5)
    assert store.digest(KEY) == (5, hashlib.sha256(b"first").hexdigest())


def test_what_is_not_there_is_said(store: Store, tmp_path: Path) -> None:
    """A missing object is an error of its own, and so is one that is too large."""
    with pytest.raises(NotStored) as caught:
        store.get("ledger/x", 10)
    assert caught.value.key == "ledger/x"
    with pytest.raises(NotStored):
        store.digest("ledger/x")
    with pytest.raises(NotStored):
        store.download("ledger/x", tmp_path / "target")
    assert store.put_new(KEY, b"12345")
    with pytest.raises(StoreError, match="more than 4 bytes"):
        store.get(KEY, 4)


def test_what_is_deleted_is_gone(store: Store) -> None:
    """The others stay, and one that is not there is as good as deleted."""
    store.put_new(KEY, b"first")
    store.put_new("ledger/x", b"other")
    store.delete(KEY)
    store.delete(KEY)
    assert [info.key for info in store.objects()] == ["ledger/x"]
    assert store.put_new(KEY, b"again") is True


def test_the_store_is_asked_to_encrypt(s3_server: S3Server) -> None:
    """By the options that the manual names."""
    options = {**s3_server.options(), "aws_server_side_encryption": "AES256"}
    store = Store.open(s3_server.new_bucket(), options)
    assert store.put_new(KEY, b"secret")
    signed = obstore.sign(store._backend, "HEAD", KEY, timedelta(minutes=1))
    request = urllib.request.Request(signed, method="HEAD")  # noqa: S310
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        assert answer.headers["x-amz-server-side-encryption"] == "AES256"


def test_large_files_are_put_in_parts(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same contents, and not twice."""
    monkeypatch.setattr(stores, "PART_BYTES", 10 << 20)
    file = tmp_path / "large"
    file.write_bytes(os.urandom(11 << 20))
    assert store.put_new(KEY, file) is True
    assert store.put_new(KEY, file) is False
    store.download(KEY, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_listing(store: Store) -> None:
    """All that is below whole parts of a key, and the folders of one level."""
    keys = [f"events/event={event}/date=2026-11-2{day}/a" for event in "xy" for day in (6, 7)]
    for key in [*keys, "events/event=xx/date=2026-11-26/a", "ledger/a"]:
        assert store.put_new(key, b"1")
    assert sorted(one.key for one in store.objects("events/event=x")) == keys[:2]
    assert len([*store.objects()]) == 6
    folders, objects = store.list_folder("events")
    assert folders == ["events/event=x", "events/event=xx", "events/event=y"]
    assert objects == []
    folders, objects = store.list_folder("ledger")
    assert folders == []
    assert [one.key for one in objects] == ["ledger/a"]


def test_addresses() -> None:
    """A folder by its path or as file://, and no scheme that nothing is known of."""
    assert folder_of("/a b") == Path("/a b")
    assert folder_of("store") == Path.cwd() / "store"
    assert folder_of("file:///a%20b") == Path("/a b")
    assert folder_of("s3://bucket/path") is None
    with pytest.raises(UsageError, match="address of a store"):
        folder_of("ftp://host")


def test_a_folder_is_made_only_if_asked(tmp_path: Path) -> None:
    """A mistyped path makes no folder."""
    with pytest.raises(StoreError, match="not a folder"):
        Store.open(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_what_does_not_answer(s3_server: S3Server) -> None:
    """A store that is away, or that has no such bucket, may be asked again."""
    away = Store.open("s3://bucket/x", s3_server.options(port=1))
    with pytest.raises(StoreUnavailable):
        away.put_new(KEY, b"1")
    none = Store.open("s3://no-such-bucket/x", s3_server.options())
    with pytest.raises(StoreError):
        none.put_new(KEY, b"1")
