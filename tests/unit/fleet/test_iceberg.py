# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables name the files of committed segments, each once."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.manifest import ManifestContent, ManifestFile, write_manifest_list
from pyiceberg.table import ALWAYS_TRUE, StaticTable
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.utils.concurrent import ExecutorFactory

from collectord.errors import StoreConflict, StoreError, StoreUnavailable
from collectord.fleet.engines.place import Place
from collectord.fleet.iceberg import iceberg_manifests, registration, table_document
from collectord.fleet.iceberg.registration import Registered, Registration
from collectord.fleet.iceberg.store_io import StoreIO
from collectord.fleet.iceberg.table_document import DELETES, PREVIOUS_VERSIONS, SNAPSHOTS_KEPT
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.store import Store
from collectord.reader.event_file import Window
from tests.support.fleets import BEGIN_NS, DAY, MINUTE, SCHED, SECOND, Host, Shipped, switches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.object_stores import S3Server

# It makes a store of several hosts for most tests.
pytestmark = pytest.mark.slow

_DAYS: Final = ("2026-11-20", "2026-11-21", "2026-11-22")


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the threads by which pyiceberg plans a scan end with the test."""
    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(ExecutorFactory, "_instance", pool)
        monkeypatch.setattr(ExecutorFactory, "_instance_pid", os.getpid())
        yield


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with two days of two hosts, and a segment without a commit."""
    made = Store.open(str(tmp_path / "store"), make=True)
    _fill(made)
    return made


def _fill(store: Store, days: int = 2, host: str = "b c") -> None:
    with Shipped(store) as shipped:
        for name in ("a", host):
            one = Host(name)
            for day in range(days):
                shipped.segment(
                    one, {f"sched:{SCHED}": switches(day, 20)}, BEGIN_NS + day * DAY, MINUTE
                )
            events = {f"sched:{SCHED}": switches(7, 5)}
            shipped.segment(one, events, BEGIN_NS + SECOND, MINUTE, is_committed=False)


def _put(store: Store, select: str, *, host: str = "a", second: int = 0, event: str = "x") -> None:
    """Put a segment with rows of a SELECT."""
    with Shipped(store) as shipped:
        events = {f"some:{event}": f"SELECT i AS n, {select}, i AS after FROM range(3) r(i)"}  # noqa: S608
        shipped.segment(Host(name=host), events, BEGIN_NS + second * SECOND, SECOND)


def _address(store: Store) -> str:
    return store.url if "://" in store.url else f"file://{store.url}"


def _register(
    store: Store,
    event: str = SCHED,
    since_ns: int | None = None,
    previous_versions: int | None = None,
) -> Registered:
    selection = Selection(store, Wanted(Window(since_ns)))
    place = Place(store)
    made = Registration(selection, place, _address(store), previous_versions).register(event)
    assert made is not None
    return made


def _table(store: Store, event: str = SCHED) -> StaticTable:
    """Return a table as another program reads it."""
    place = f"iceberg/event={event}/metadata"
    version = store.get(f"{place}/version-hint.text", 100).decode()
    key = f"{place}/v{version}.metadata.json"
    return StaticTable(
        identifier=("collectord", event),
        metadata=TableMetadataUtil.parse_raw(store.get(key, 1 << 20).decode()),
        metadata_location=f"{_address(store)}/{key}",
        io=StoreIO(store, _address(store)),
        catalog=NoopCatalog("none"),
    )


def _files(store: Store, event: str = SCHED, row_filter: str = "") -> list[str]:
    """Return the keys of the files that a scan would read, in order; one twice is there twice."""
    tasks = _table(store, event).scan(row_filter or ALWAYS_TRUE).plan_files()
    return sorted(task.file.file_path.removeprefix(f"{_address(store)}/") for task in tasks)


def _committed(store: Store, event: str = SCHED) -> list[str]:
    return [*Selection(store, Wanted(Window())).objects(event).keys]


def _metadata(store: Store, event: str = SCHED) -> Path:
    return Path(store.url) / f"iceberg/event={event}/metadata"


def _edit(store: Store, version: int, event: str = SCHED, /, **changes: object) -> None:
    path = _metadata(store, event) / f"v{version}.metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_committed_files_are_there_once(store: Store) -> None:
    """Files without a commit are not there, and a second run changes nothing."""
    made = _register(store)
    assert (made.files, made.rows, made.added, made.dropped) == (4, 80, 4, 0)
    assert _files(store) == _committed(store)
    before = sorted(_metadata(store).iterdir())
    again = _register(store)
    assert (again.files, again.rows, again.added) == (4, 80, 0)
    assert sorted(_metadata(store).iterdir()) == before


def test_a_new_segment_is_added(store: Store) -> None:
    """The others are not touched."""
    _register(store)
    _fill(store, days=3)
    made = _register(store)
    assert (made.files, made.added) == (6, 2)
    assert _files(store) == _committed(store)


def test_partitions_and_times_choose_files(store: Store) -> None:
    """A reader passes over hosts, days and times that it does not ask for."""
    _register(store)
    assert len(_files(store, row_filter="host = 'b c'")) == 2
    assert len(_files(store, row_filter=f"date = '{_DAYS[1]}'")) == 2
    assert len(_files(store, row_filter=f"host = 'a' and date > '{_DAYS[0]}'")) == 1
    (found, _) = sorted(
        _table(store).scan(row_filter="host = 'a'").plan_files(),
        key=lambda task: task.file.file_path,
    )
    number = next(one.field_id for one in _table(store).schema().fields if one.name == "time")
    assert found.file.lower_bounds is not None
    assert int.from_bytes(found.file.lower_bounds[number], "little") == BEGIN_NS


def test_types_are_those_of_the_rows(store: Store) -> None:
    """Numbers without a sign are in the next larger type; what none holds is left out and told."""
    _put(
        store,
        "7::UTINYINT AS small, 4000000000::UINTEGER AS middle, 9::UBIGINT AS fits, "
        "18446744073709551615::UBIGINT AS big, MAP{'a': 1} AS map, [1.5::DOUBLE] AS list, "
        "'b'::BLOB AS blob, true AS flag, [1::UBIGINT] AS unsigned, 1.5::FLOAT AS half",
    )
    assert _register(store, "x").columns_left_out == ["big", "unsigned"]
    types = {one.name: str(one.field_type) for one in _table(store, "x").schema().fields}
    assert types == {
        "date": "date",
        "host": "string",
        "time": "timestamp_ns",
        "mono_ns": "long",
        "small": "int",
        "middle": "long",
        "fits": "long",
        "map": "map<string, int>",
        "list": "list<double>",
        "blob": "binary",
        "flag": "boolean",
        "half": "float",
        "session": "string",
        "boot_id": "string",
    }
    mapping = _table(store, "x").name_mapping()
    assert mapping is not None
    ids = {one.field_id for one in mapping.root if one.names == ["big"]}
    assert ids
    assert ids.isdisjoint(_table(store, "x").schema().field_ids)


def test_a_column_is_added_and_widened(store: Store) -> None:
    """A column keeps its id, and files before it have null."""
    _put(store, "1::INTEGER AS one")
    _register(store, "x")
    ids = {one.name: one.field_id for one in _table(store, "x").schema().fields}
    _put(store, "1::BIGINT AS one, 'x' AS two", second=10)
    made = _register(store, "x")
    assert (made.added, made.files_left_out) == (1, {})
    fields = {one.name: one for one in _table(store, "x").schema().fields}
    assert {name: fields[name].field_id for name in ids} == ids
    assert (str(fields["one"].field_type), str(fields["two"].field_type)) == ("long", "string")
    _put(store, "1::INTEGER AS one", second=20)
    assert _register(store, "x").files == 3
    assert str(_table(store, "x").schema().find_type("one")) == "long"


def test_a_column_that_does_not_fit_any_more_goes(store: Store) -> None:
    """A value beyond 63 bits would be another one to readers."""
    _put(store, "1::UBIGINT AS address")
    assert _register(store, "x").columns_left_out == []
    _put(store, "18446744073709551615::UBIGINT AS address", second=10)
    made = _register(store, "x")
    assert (made.added, made.columns_left_out) == (1, ["address"])
    _put(store, "1::UBIGINT AS address", second=20)
    assert _register(store, "x").columns_left_out == ["address"]
    assert len(_files(store, "x")) == 3


def test_columns_called_as_those_of_keys_are_the_key_s(store: Store) -> None:
    """A record's own `host` is left out."""
    _put(store, "'other' AS host, 5 AS date")
    made = _register(store, "x")
    assert made.columns_left_out == ["host", "date"]
    assert len(_files(store, "x", row_filter="host = 'a'")) == 1


def test_files_that_do_not_go_together_are_told(store: Store) -> None:
    """A text is no number: the file is left out, and all others are there."""
    _put(store, "1::INTEGER AS one")
    _register(store, "x")
    _put(store, "'x' AS one", second=10)
    _put(store, "2::INTEGER AS one", second=20)
    made = _register(store, "x")
    assert (made.files, len(made.files_left_out)) == (2, 1)
    assert "do not go with the table's: one" in next(iter(made.files_left_out.values()))


def test_a_damaged_file_is_told(store: Store) -> None:
    """It is left out, and all others are there."""
    broken = _committed(store)[1]
    Path(store.url, broken).write_bytes(b"PAR1 but not for long PAR1")
    made = _register(store)
    assert (made.files, [*made.files_left_out]) == (3, [broken])
    assert _files(store) == [key for key in _committed(store) if key != broken]


def test_what_is_gone_is_dropped(store: Store) -> None:
    """A day that retention removed, a file, a commit; at last all."""
    _fill(store, days=3)
    _register(store)
    shutil.rmtree(Path(store.url, f"events/event={SCHED}/date={_DAYS[0]}"))
    commit = next(Path(store.url, "ledger").glob(f"date={_DAYS[1]}/host=a/*.json"))
    commit.unlink()
    made = _register(store)
    assert (made.files, made.rows, made.dropped) == (3, 60, 3)
    assert _files(store) == _committed(store)
    shutil.rmtree(Path(store.url, "events"))
    made = _register(store)
    assert (made.files, made.rows, made.dropped) == (0, 0, 3)
    assert _files(store) == []


def test_days_that_are_not_asked_for_stay(store: Store) -> None:
    """With a beginning only its days are looked at, and days that are gone from the front."""
    _fill(store, days=3)
    made = _register(store, since_ns=BEGIN_NS + 2 * DAY)  # and the day before
    assert made.files == 4
    _register(store)
    shutil.rmtree(Path(store.url, f"ledger/date={_DAYS[0]}/host=a"))
    assert _register(store, since_ns=BEGIN_NS + 2 * DAY).dropped == 0
    shutil.rmtree(Path(store.url, f"events/event={SCHED}/date={_DAYS[0]}"))
    assert _register(store, since_ns=BEGIN_NS + 2 * DAY).dropped == 2
    assert _files(store) == _committed(store)


def test_a_segment_that_lasts_into_the_days_is_registered_once(store: Store) -> None:
    """It has the day of its beginning, and is shipped at its end."""
    _register(store)
    with Shipped(store) as shipped:
        for name in ("a", "late"):
            shipped.segment(Host(name), {f"sched:{SCHED}": switches(0, 3)}, BEGIN_NS, 5 * DAY)
    since_ns = BEGIN_NS + 5 * DAY
    made = _register(store, since_ns=since_ns)
    assert (made.files, made.added, made.dropped) == (6, 2, 0)
    assert _register(store, since_ns=since_ns).added == 0
    assert _files(store) == _committed(store)


class _Losing(Store):
    """A store into which somebody else puts the next version first."""

    rival: Any = None

    def put_new(self, key: str, data: bytes | Path) -> bool:
        if key.endswith(".json") and self.rival is not None:
            rival, self.rival = self.rival, None
            rival()
        return super().put_new(key, data)


def test_two_at_once_register_each_file_once(store: Store) -> None:
    """The one that comes second begins again, and drops nothing of what the first one knows."""
    losing = _Losing(store.url, store._backend)

    def rival() -> None:
        _fill(store, days=3)
        assert _register(store).added == 6

    losing.rival = rival
    made = _register(losing)
    assert (made.files, made.added, made.dropped) == (6, 0, 0)
    assert _files(store) == _committed(store)


class _Dying(Store):
    """A store that fails from a certain put or deletion on."""

    left: int = 0

    def put_new(self, key: str, data: bytes | Path) -> bool:
        self._use(key)
        return super().put_new(key, data)

    def put(self, key: str, data: bytes) -> None:
        self._use(key)
        super().put(key, data)

    def delete(self, key: str) -> None:
        self._use(key)
        super().delete(key)

    def _use(self, key: str) -> None:
        if not self.left:
            raise StoreUnavailable("it is away", key=key)
        self.left -= 1


def test_a_run_that_ends_at_any_put_is_made_up_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is there once after the next run, and the hint names the newest version."""
    monkeypatch.setattr(registration, "FILES_MAX", 2)
    for puts in count():
        shutil.rmtree(_metadata(store), ignore_errors=True)
        dying = _Dying(store.url, store._backend)
        dying.left = puts
        try:
            _register(dying)
        except StoreUnavailable:
            _register(store)
            assert _files(store) == _committed(store)
        else:
            break
    assert puts == 7


def test_manifests_and_snapshots_are_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small manifests are made into a large one, and old snapshots are forgotten."""
    monkeypatch.setattr(iceberg_manifests, "MANIFESTS_MAX", 3)
    for number in range(SNAPSHOTS_KEPT + 3):
        _put(store, f"{number} AS one", second=10 * number)
        _register(store, "x")
    table = _table(store, "x")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) <= 5
    assert len(table.snapshots()) == SNAPSHOTS_KEPT
    assert _files(store, "x") == _committed(store, "x")
    assert len(_files(store, "x")) == SNAPSHOTS_KEPT + 3


def test_tables_of_others_are_left_alone(store: Store) -> None:
    """A snapshot of another program, another place, another version."""
    _register(store)
    document = json.loads((_metadata(store) / "v1.metadata.json").read_text())
    summary = {"operation": "replace"}
    _edit(store, 1, snapshots=[{**document["snapshots"][0], "summary": summary}])
    with pytest.raises(StoreConflict, match="snapshot of another program"):
        _register(store)
    _edit(store, 1, location="file:///elsewhere")
    with pytest.raises(StoreConflict, match="is of a table at file:///elsewhere"):
        _register(store)
    _edit(store, 1, **{"format-version": 2})
    with pytest.raises(StoreConflict, match="is no table of this program"):
        _register(store)


@pytest.mark.parametrize(
    "change",
    [
        {"snapshots": 7},
        {"schemas": []},
        {"properties": {}},
        {"properties": {"schema.name-mapping.default": '[{"field-id": "x"}]'}},
        {"last-column-id": None},
        {"properties": {"schema.name-mapping.default": "[]", PREVIOUS_VERSIONS: "many"}},
    ],
    ids=str,
)
def test_damaged_metadata_is_told(store: Store, change: dict[str, object]) -> None:
    """It is an error that names the object."""
    _register(store)
    _edit(store, 1, **change)
    with pytest.raises(StoreError, match=r"v1\.metadata\.json is no metadata of a table"):
        _register(store)


def test_a_damaged_manifest_is_told(store: Store) -> None:
    """It is an error that names the list that it is in."""
    _register(store)
    for path in _metadata(store).glob("*-m0.avro"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StoreError, match="cannot be read"):
        _register(store)


def test_s3_has_tables_too(s3_server: S3Server) -> None:
    """By conditional puts, and with footers read by ranges."""
    store = Store.open(s3_server.new_bucket(), s3_server.options())
    _fill(store)
    assert _register(store).files == 4
    assert _files(store) == _committed(store)
    assert _register(store).added == 0


def _version(store: Store, key: str) -> tuple[set[str], list[str]]:
    """Return what a version of the table x refers to, and the files of all its snapshots."""
    io = StoreIO(store, _address(store))
    metadata = TableMetadataUtil.parse_raw(store.get(key, 1 << 20).decode())
    used, files = {key}, []
    for snapshot in metadata.snapshots:
        manifests = snapshot.manifests(io)
        used |= {
            io.key_of(snapshot.manifest_list),
            *(io.key_of(m.manifest_path) for m in manifests),
        }
        files += [e.data_file.file_path for m in manifests for e in m.fetch_manifest_entry(io)]
    return used, files


def _grow(store: Store, first: int, count: int, previous_versions: int | None = None) -> None:
    """Have the table x change so many times; a segment goes now and then."""
    for number in range(first, first + count):
        _put(store, f"{number} AS one", second=10 * number)
        if number % 4 == 3:
            gone = min(one.key for one in store.objects("ledger/date=2026-11-20/host=a"))
            store.delete(gone)
        _register(store, "x", previous_versions=previous_versions)


def _objects(store: Store) -> set[str]:
    """Return what is below the table x, without the hint."""
    found = {one.key for one in store.objects("iceberg/event=x/metadata")}
    return {key for key in found if not key.endswith("version-hint.text")}


def _check_versions(store: Store, newest: int, previous_versions: int) -> None:
    """Check that these versions are there, can be read, and are all that is there."""
    used: set[str] = set()
    for version in range(newest - previous_versions, newest + 1):
        named, files = _version(store, f"iceberg/event=x/metadata/v{version}.metadata.json")
        assert files
        used |= named
    assert _objects(store) == used
    assert _files(store, "x") == _committed(store, "x")


@pytest.fixture(params=["folder", "s3"])
def empty(request: pytest.FixtureRequest, tmp_path: Path, s3_server: S3Server) -> Store:
    """Return an empty store, a folder or one in an S3 server."""
    if request.param == "folder":
        return Store.open(str(tmp_path / "empty"), make=True)
    return Store.open(s3_server.new_bucket(), s3_server.options())


def test_old_versions_are_deleted(empty: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the newest and the kept ones refer to is there, and nothing else of the table."""
    monkeypatch.setattr(iceberg_manifests, "MANIFESTS_MAX", 3)
    monkeypatch.setattr(table_document, "SNAPSHOTS_KEPT", 3)
    _grow(empty, 0, 9, previous_versions=2)
    _check_versions(empty, 9, 2)
    table = _table(empty, "x")
    assert table.properties[PREVIOUS_VERSIONS] == "2"
    assert [Path(one.metadata_file).name for one in table.metadata.metadata_log] == [
        "v7.metadata.json",
        "v8.metadata.json",
    ]
    assert _register(empty, "x").deleted == 0


def test_a_table_says_how_many_versions_are_kept(store: Store) -> None:
    """Its own properties hold until an option changes them; without deletion all are there."""
    _grow(store, 0, 4, previous_versions=0)
    assert _table(store, "x").properties[DELETES] == "false"
    _grow(store, 4, 1)
    assert len([*_metadata(store, "x").glob("v*.json")]) == 5
    _grow(store, 5, 1, previous_versions=1)
    assert {path.name for path in _metadata(store, "x").glob("v*.json")} == {
        "v5.metadata.json",
        "v6.metadata.json",
    }
    _grow(store, 6, 1)
    _check_versions(store, 7, 1)


def test_by_default_a_hundred_versions_are_kept(store: Store) -> None:
    """It is the format's own number, and a table has it among its properties."""
    _register(store)
    properties = _table(store).properties
    assert (properties[DELETES], properties[PREVIOUS_VERSIONS]) == ("true", "100")


def test_a_deletion_that_ends_anywhere_is_made_up_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kept versions are whole at any instant, and the next run deletes the rest."""
    monkeypatch.setattr(iceberg_manifests, "MANIFESTS_MAX", 2)
    monkeypatch.setattr(table_document, "SNAPSHOTS_KEPT", 2)
    newest = 6
    _grow(store, 0, newest, previous_versions=0)
    whole = tmp_path / "whole"
    shutil.copytree(_metadata(store, "x"), whole)
    for deletions in count():
        shutil.rmtree(_metadata(store, "x"))
        shutil.copytree(whole, _metadata(store, "x"))
        dying = _Dying(store.url, store._backend)
        dying.left = deletions
        made = _register(dying, "x", previous_versions=1)
        if not made.not_deleted:
            break
        assert made.not_deleted == "it is away"
        for version in (newest - 1, newest):
            _version(store, f"iceberg/event=x/metadata/v{version}.metadata.json")
        assert _register(store, "x", previous_versions=1).not_deleted == ""
        _check_versions(store, newest, 1)
    # Documents and lists of snapshots are seven.
    assert deletions > 7


def test_a_run_that_slept_while_its_version_came_and_went_begins_again(store: Store) -> None:
    """The name of a deleted version is free, and what is put there is no version of the table."""
    _grow(store, 0, 2, previous_versions=1)
    _put(store, "1 AS one", host="other")
    sleeping = _Losing(store.url, store._backend)
    sleeping.rival = lambda: _grow(store, 2, 4)
    made = _register(sleeping, "x")
    assert made.added == 0
    assert _files(store, "x") == _committed(store, "x")
    _check_versions(store, 6, 1)


def test_objects_of_others_are_never_deleted(store: Store) -> None:
    """Anybody may have written an old document: what it names is deleted below the table alone."""
    _grow(store, 0, 3, previous_versions=0)
    place = "iceberg/event=x/metadata"
    others = [
        _committed(store, "x")[0],
        f"{place}/notes-m0.avro",
        f"iceberg/event=y/metadata/{'ab' * 16}-m0.avro",
    ]
    for other in others[1:]:
        store.put(other, b"mine")
    listed = f"{place}/snap-5-{'cd' * 16}.avro"
    with write_manifest_list(
        2,
        StoreIO(store, _address(store)).new_output(f"{_address(store)}/{listed}"),
        5,
        None,
        1,
        "null",
    ) as writer:
        writer.add_manifests([_manifest_file(f"{_address(store)}/{other}") for other in others])
    document = json.loads((_metadata(store, "x") / "v1.metadata.json").read_text())
    snapshot = {**document["snapshots"][0], "manifest-list": f"{_address(store)}/{listed}"}
    _edit(store, 1, "x", snapshots=[snapshot])
    made = _register(store, "x", previous_versions=1)
    assert (made.deleted, made.not_deleted) == (2, "")
    assert [store.head(key) is None for key in (*others, listed)] == [False, False, False, True]


def _manifest_file(address: str) -> ManifestFile:
    counts: dict[str, Any] = {
        f"{what}_{of}_count": 0
        for what in ("added", "existing", "deleted")
        for of in ("files", "rows")
    }
    return ManifestFile.from_args(
        manifest_path=address,
        manifest_length=1,
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=5,
        **counts,
    )


def test_a_store_that_lets_nobody_delete_is_told(store: Store) -> None:
    """The table is as it should be."""
    _grow(store, 0, 3, previous_versions=0)
    dying = _Dying(store.url, store._backend)
    made = _register(dying, "x", previous_versions=1)
    assert (made.files, made.deleted, made.not_deleted) == (3, 0, "it is away")
