# SPDX-License-Identifier: Apache-2.0
"""The metadata of an Iceberg table as a JSON document, and the next one after a change; pure.

It is of version 3, as times have nanoseconds, and no row has an id: as a table has it that came
from version 2, whose manifests these are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from collectord.errors import StoreConflict, StoreError
from collectord.fleet.iceberg.columns import NONE, OF_KEYS, Columns, from_document
from collectord.fleet.per_host_statement import HOST
from collectord.fleet.question import DATE
from collectord.text.foreign import decode_json, encode_json
from collectord.text.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENT_MAX_BYTES: Final = 16 << 20
SNAPSHOTS_KEPT: Final = 10
WRITER: Final = "collectord"
LEFT_OUT: Final = "collectord.columns-left-out"
# Iceberg's names: whether versions before the newest are deleted, and how many are kept.
DELETES: Final = "write.metadata.delete-after-commit.enabled"
PREVIOUS_VERSIONS: Final = "write.metadata.previous-versions-max"
_KEEPING: Final[dict[str, str]] = {DELETES: "true", PREVIOUS_VERSIONS: "100"}
_VERSION: Final = 3
_MAPPING: Final = "schema.name-mapping.default"
# The ids of the fields of partitions.
_FIRST_PARTITION: Final = 1000
SPEC: Final[dict[str, Any]] = {
    "spec-id": 0,
    "fields": [
        {
            "source-id": OF_KEYS[name],
            "field-id": _FIRST_PARTITION + number,
            "name": name,
            "transform": "identity",
        }
        for number, name in enumerate((DATE, HOST))
    ],
}


class Made(NamedTuple):
    """A snapshot that was written.

    Attributes:
        manifests: address of the list of its manifests.
        added, dropped: files.
        files, rows: of the table.
    """

    id: int
    manifests: str
    added: int
    dropped: int
    files: int
    rows: int


class TableDocument(NamedTuple):
    """A table's metadata.

    Attributes:
        raw: the document.
        columns: that it tells.
    """

    raw: dict[str, Any]
    columns: Columns = NONE

    @property
    def snapshot(self) -> dict[str, Any] | None:
        """The newest snapshot; None before the first."""
        found = {one["snapshot-id"]: one for one in self.raw["snapshots"]}
        return found.get(self.raw["current-snapshot-id"])

    @property
    def manifests(self) -> str:
        """The address of the list of manifests, "" before the first snapshot."""
        snapshot = self.snapshot
        return "" if snapshot is None else str(snapshot["manifest-list"])

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the table, with what holds where it says nothing."""
        return {**_KEEPING, **self.raw["properties"]}

    @property
    def previous_versions(self) -> int:
        """How many versions before the newest are kept. Raises ValueError."""
        return max(int(self.properties[PREVIOUS_VERSIONS]), 1)

    @property
    def deletes(self) -> bool:
        """Whether other versions are deleted."""
        return self.properties[DELETES].lower() == "true"

    def keeping(self, previous_versions: int | None) -> TableDocument:
        """Return the table with so many versions kept; 0: all, None: what it says itself."""
        if previous_versions is None:
            return self
        told = {DELETES: str(previous_versions > 0).lower()}
        if previous_versions:
            told[PREVIOUS_VERSIONS] = str(previous_versions)
        return self._replace(raw={**self.raw, "properties": {**self.raw["properties"], **told}})

    @property
    def sequence_number(self) -> int:
        """The number of the next snapshot."""
        return int(self.raw["last-sequence-number"]) + 1

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the columns; the document may not have it yet."""
        return {"type": "struct", "fields": self.columns.fields()}

    def to_bytes(self) -> bytes:
        """Return the bytes of the document's object in the store."""
        return encode_json(self.raw) + b"\n"


def new_table(location: str, table_uuid: str) -> TableDocument:
    """Return a table without files."""
    raw: dict[str, Any] = {
        "format-version": _VERSION,
        "table-uuid": table_uuid,
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": NONE.last_id,
        "schemas": [],
        "current-schema-id": -1,
        "partition-specs": [SPEC],
        "default-spec-id": 0,
        "last-partition-id": _FIRST_PARTITION + len(SPEC["fields"]) - 1,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {_MAPPING: "[]"},
        "current-snapshot-id": -1,
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "refs": {},
        "next-row-id": 0,
    }
    return TableDocument(raw)


def parsed(data: bytes, key: str, location: str) -> TableDocument:
    """Read a document.

    Raises:
        StoreConflict: another program has written it, or for another place.
        StoreError: it is no such document.
    """
    try:
        raw = decode_json(data, dict[str, Any])
        if raw["format-version"] != _VERSION or raw["partition-specs"] != [SPEC]:
            raise StoreConflict(f"{key} is no table of this program", key=key)
        if raw["location"] != location:
            raise StoreConflict(
                f"{key} is of a table at {raw['location']}, and not at {location}",
                key=key,
                hint="--location names the store as it was named before",
            )
        fields = next(
            one["fields"] for one in raw["schemas"] if one["schema-id"] == raw["current-schema-id"]
        )
        mapping = json.loads(raw["properties"][_MAPPING])
        made = TableDocument(raw, from_document(fields, mapping, raw["last-column-id"]))
        _ = made.previous_versions, made.deletes
        snapshot = made.snapshot
        if snapshot is None or snapshot["summary"].get("engine-name") != WRITER:
            raise StoreConflict(
                f"{key} has a snapshot of another program",
                key=key,
                hint="copy the table to change it; remove its folder to have it made again",
            )
    except (
        msgspec.DecodeError,
        AttributeError,
        IndexError,
        KeyError,
        StopIteration,
        TypeError,
        ValueError,
    ) as error:
        raise StoreError(f"{key} is no metadata of a table: {error}", key=key) from error
    return made


def read_lists(data: bytes, key: str) -> list[str]:
    """Return the addresses of the lists of manifests in a document, the oldest snapshot's first.

    Raises StoreError.
    """
    try:
        raw = decode_json(data, dict[str, Any])
        return [str(one["manifest-list"]) for one in raw["snapshots"]]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise StoreError(f"{key} is no metadata of a table: {error}", key=key) from error


def following(table: TableDocument, made: Made, now_ns: int, before: str) -> TableDocument:
    """Return the document of a table with a new snapshot.

    Args:
        table: with the columns that it shall have.
        made: the snapshot.
        now_ns: UTC.
        before: address of the document before it, "" if there is none.
    """
    raw = dict(table.raw)
    now_ms = max(now_ns // NS_PER_MS, raw["last-updated-ms"] + 1)
    _add_schema(raw, table)
    parent = raw["current-snapshot-id"]
    snapshot: dict[str, Any] = {
        "snapshot-id": made.id,
        "sequence-number": table.sequence_number,
        "timestamp-ms": now_ms,
        "manifest-list": made.manifests,
        "schema-id": raw["current-schema-id"],
        "summary": _summary(made),
    }
    if table.snapshot is not None:
        snapshot["parent-snapshot-id"] = parent
    if before:
        log = [
            *raw["metadata-log"],
            {"timestamp-ms": raw["last-updated-ms"], "metadata-file": before},
        ]
        raw["metadata-log"] = log[-table.previous_versions :]
    raw["snapshots"] = [*raw["snapshots"], snapshot][-SNAPSHOTS_KEPT:]
    there = {one["snapshot-id"] for one in raw["snapshots"]}
    moment = {"timestamp-ms": now_ms, "snapshot-id": made.id}
    raw["snapshot-log"] = [
        one for one in [*raw["snapshot-log"], moment] if one["snapshot-id"] in there
    ]
    used = {one["schema-id"] for one in raw["snapshots"]}
    raw["schemas"] = [one for one in raw["schemas"] if one["schema-id"] in used]
    raw["current-snapshot-id"] = made.id
    raw["refs"] = {"main": {"snapshot-id": made.id, "type": "branch"}}
    raw["last-sequence-number"] = table.sequence_number
    raw["last-updated-ms"] = now_ms
    raw["properties"] = {
        **table.properties,
        _MAPPING: json.dumps(table.columns.mapping()),
        LEFT_OUT: ",".join(table.columns.left_out()),
    }
    return TableDocument(raw, table.columns)


def _add_schema(raw: dict[str, Any], table: TableDocument) -> None:
    """Have a document's current schema be that of the columns."""
    fields = table.columns.fields()
    current = raw["current-schema-id"]
    known = {one["schema-id"]: one["fields"] for one in raw["schemas"]}
    if known.get(current) != fields:
        current += 1
        raw["schemas"] = [
            *raw["schemas"],
            {"type": "struct", "schema-id": current, "fields": fields},
        ]
    raw["current-schema-id"] = current
    raw["last-column-id"] = table.columns.last_id


def _summary(made: Made) -> Mapping[str, str]:
    operation = "append" if not made.dropped else "overwrite" if made.added else "delete"
    return {
        "operation": operation,
        "engine-name": WRITER,
        "added-data-files": str(made.added),
        "deleted-data-files": str(made.dropped),
        "total-data-files": str(made.files),
        "total-records": str(made.rows),
    }
