# SPDX-License-Identifier: Apache-2.0
"""The files of a table: manifests in a store, read and written by pyiceberg."""

from __future__ import annotations

import secrets
import struct
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple

from pyiceberg.exceptions import ValidationError
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from collectord.errors import StoreError
from collectord.fleet.iceberg.columns import NANOSECONDS
from collectord.fleet.iceberg.table_document import SPEC, Made
from collectord.fleet.question import TIME
from collectord.fleet.store_keys import parse_event_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyiceberg.manifest import ManifestFile

    from collectord.fleet.iceberg.footers import Footer
    from collectord.fleet.iceberg.store_io import StoreIO
    from collectord.fleet.iceberg.table_document import TableDocument

# More small ones are made into larger ones.
MANIFESTS_MAX: Final = 64
_ENTRIES_MAX: Final = 50_000
_VERSION: Final = 2
_CODEC: Final = "deflate"  # that every reader of Avro must know
_EPOCH: Final = date(1970, 1, 1)


class Manifest(NamedTuple):
    """A manifest of the newest snapshot.

    Attributes:
        entries: its files, None if it was not read.
    """

    file: ManifestFile
    entries: Sequence[ManifestEntry] | None

    @property
    def files(self) -> int:
        """The number of its files."""
        return (self.file.added_files_count or 0) + (self.file.existing_files_count or 0)

    @property
    def rows(self) -> int:
        """The number of rows in them."""
        return (self.file.added_rows_count or 0) + (self.file.existing_rows_count or 0)


class NewFile(NamedTuple):
    """An object that becomes a file of the table."""

    key: str
    bytes: int
    footer: Footer


class Change(NamedTuple):
    """A change of a table's files.

    Attributes:
        before: the manifests that it has.
        added: new files.
        dropped: addresses of files that go.
    """

    before: Sequence[Manifest]
    added: Sequence[NewFile]
    dropped: frozenset[str]


def read_manifests(
    table: TableDocument, files: StoreIO, is_asked: Callable[[str, str], bool]
) -> list[Manifest]:
    """Return the manifests of a table.

    Args:
        table: whose they are.
        files: of the store.
        is_asked: whether the files of a manifest are read, by its first and its last day.

    Raises:
        StoreError: one cannot be read.
    """
    if not table.manifests:
        return []
    with _errors(table.manifests):
        found = [*read_manifest_list(files.new_input(table.manifests))]
        return [
            Manifest(one, one.fetch_manifest_entry(files) if is_asked(*_days(one)) else None)
            for one in found
        ]


def manifests_in(address: str, files: StoreIO) -> list[str]:
    """Return the addresses of the manifests in a list of them. Raises as `read_manifests`."""
    with _errors(address):
        return [one.manifest_path for one in read_manifest_list(files.new_input(address))]


@contextmanager
def _errors(address: str) -> Iterator[None]:
    """Turn what pyiceberg raises for a damaged object in a block into StoreError."""
    try:
        yield
    except (
        ArithmeticError,
        AssertionError,
        EOFError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise StoreError(f"{address} cannot be read: {error}", key="") from error


def _days(manifest: ManifestFile) -> tuple[str, str]:
    """Return the first and the last day of a manifest's files."""
    summary = (manifest.partitions or [])[0]
    return _day(summary.lower_bound), _day(summary.upper_bound)


def _day(bound: bytes | None) -> str:
    (number,) = struct.unpack("<i", bound or b"")
    return date.fromordinal(_EPOCH.toordinal() + number).isoformat()


def write_snapshot(table: TableDocument, files: StoreIO, change: Change) -> Made:
    """Put the manifests of a new snapshot, and their list. Raises StoreError."""
    writer = _Writer(table, files)
    kept: list[Manifest] = []
    left: list[ManifestEntry] = []
    small = sum(one.files < _ENTRIES_MAX // 2 for one in change.before)
    for one in change.before:
        entries = one.entries
        is_hit = entries is not None and any(
            entry.data_file.file_path in change.dropped for entry in entries
        )
        if not is_hit and (small <= MANIFESTS_MAX or one.files >= _ENTRIES_MAX // 2):
            kept.append(one)
            continue
        entries = one.file.fetch_manifest_entry(files) if entries is None else entries
        left += [entry for entry in entries if entry.data_file.file_path not in change.dropped]
    left.sort(key=lambda entry: (entry.data_file.partition[0], entry.data_file.file_path))
    written = [
        *writer.write([writer.new_entry(one) for one in change.added]),
        *writer.write(left),
    ]
    listed = writer.write_list([*(one.file for one in kept), *written])
    return Made(
        id=writer.snapshot_id,
        manifests=listed,
        added=len(change.added),
        dropped=len(change.dropped),
        files=sum(one.files for one in kept) + len(left) + len(change.added),
        rows=sum(one.rows for one in kept)
        + sum(entry.data_file.record_count for entry in left)
        + sum(one.footer.rows for one in change.added),
    )


class _Writer:
    """Writes the manifests of one snapshot, under names of its own."""

    def __init__(self, table: TableDocument, files: StoreIO) -> None:
        self.snapshot_id = secrets.randbits(62)
        self._table = table
        self._files = files
        self._root = f"{table.raw['location']}/metadata"
        self._name = secrets.token_hex(16)
        self._number = 0
        try:
            self._schema = Schema.model_validate({**table.schema, "schema-id": 0})
            self._spec = PartitionSpec.model_validate(SPEC)
        except ValidationError as error:
            raise StoreError(f"pyiceberg refuses the columns: {error}", key="") from error
        time = table.columns.named.get(TIME)
        self._time = time.id if time is not None and time.type == NANOSECONDS else None

    def new_entry(self, one: NewFile) -> ManifestEntry:
        """Return the entry of a new file."""
        parts = parse_event_key(one.key)
        if parts is None:
            raise StoreError(f"{one.key} is no key of rows", key=one.key)
        bounds = (
            [{self._time: struct.pack("<q", time)} for time in one.footer.times]
            if one.footer.times is not None and self._time is not None
            else [None, None]
        )
        day = date.fromisoformat(parts.date).toordinal() - _EPOCH.toordinal()
        data_file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._files.location}/{one.key}",
            file_format=FileFormat.PARQUET,
            partition=Record(day, parts.host),
            record_count=one.footer.rows,
            file_size_in_bytes=one.bytes,
            lower_bounds=bounds[0],
            upper_bounds=bounds[1],
        )
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=self.snapshot_id,
            sequence_number=None,
            file_sequence_number=None,
            data_file=data_file,
        )

    def write(self, entries: Sequence[ManifestEntry]) -> list[ManifestFile]:
        """Put manifests of entries: of new ones, or of those that a table had."""
        return [
            self._write_one(entries[begin : begin + _ENTRIES_MAX])
            for begin in range(0, len(entries), _ENTRIES_MAX)
        ]

    def _write_one(self, entries: Iterable[ManifestEntry]) -> ManifestFile:
        output = self._files.new_output(f"{self._root}/{self._name}-m{self._number}.avro")
        self._number += 1
        with write_manifest(
            _VERSION, self._spec, self._schema, output, self.snapshot_id, _CODEC
        ) as writer:
            for entry in entries:
                is_new = entry.snapshot_id == self.snapshot_id
                (writer.add if is_new else writer.existing)(entry)
        return writer.to_manifest_file()

    def write_list(self, manifests: list[ManifestFile]) -> str:
        """Put the list of a snapshot's manifests; return its address."""
        address = f"{self._root}/snap-{self.snapshot_id}-{self._name}.avro"
        parent = self._table.snapshot
        with write_manifest_list(
            _VERSION,
            self._files.new_output(address),
            self.snapshot_id,
            None if parent is None else parent["snapshot-id"],
            self._table.sequence_number,
            _CODEC,
        ) as writer:
            writer.add_manifests(manifests)
        return address


def paths_in(manifests: Iterable[Manifest]) -> set[str]:
    """Return the addresses of the files of those manifests that were read."""
    return {entry.data_file.file_path for one in manifests for entry in one.entries or ()}
