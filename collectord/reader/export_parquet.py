# SPDX-License-Identifier: Apache-2.0
"""Read stage: records as Parquet files, one for each event, with the ledgers beside them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from collectord.reader.export_rows import quoted
from collectord.sink.manifest import Manifest
from collectord.sink.segment import sink_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from collectord.reader.event_file import EventFile
    from collectord.reader.event_tables import EventTable
    from collectord.reader.sql import Database

LEDGER: Final = "ledger.json"
_UNWRITABLE: Final = "cannot write the export"
_NAME_MAX_BYTES: Final = 200


def write_parquet(tables: Mapping[str, EventTable], database: Database, directory: Path) -> int:
    """Write each table that has rows to DIRECTORY/table=NAME/records.parquet; return all rows.

    The ledgers of the files are in DIRECTORY/ledger.json. A name has the bytes that are no
    letters, digits and `_.-~` as %XX, as the partitions of Hive have.

    Raises:
        SinkError: the directory exists, or cannot be written.
        CollectordError: records cannot be read.
    """
    with sink_errors(_UNWRITABLE, directory):
        directory.mkdir()
    count = 0
    for table in tables.values():
        name = quote(table.name, safe="")
        folder = directory / f"table={name[:_NAME_MAX_BYTES]}"
        with sink_errors(_UNWRITABLE, folder):
            folder.mkdir()
        file = folder / "records.parquet"
        rows = database.write_parquet(f"FROM {quoted(table.name)}", str(file.absolute()))
        count += rows
        if not rows:
            with sink_errors(_UNWRITABLE, folder):
                file.unlink(missing_ok=True)
                folder.rmdir()
    files = dict.fromkeys(file for table in tables.values() for file in table.files)
    with sink_errors(_UNWRITABLE, directory), (directory / LEDGER).open("xb") as ledger:
        ledger.write(msgspec.json.encode({"segments": [*map(_ledger, files)]}) + b"\n")
        os.fsync(ledger.fileno())
    return count


def _ledger(file: EventFile) -> dict[str, Any]:
    """Return what the manifest of a file says, null where there is none or it is not sealed."""
    manifest = file.manifest
    sealed = manifest if isinstance(manifest, Manifest) else None
    return {
        "file": file.path_text,
        "session": file.session or None,
        "sealed": sealed is not None,
        "first_ns": sealed.first_ns if sealed else None,
        "last_ns": sealed.last_ns if sealed else None,
        "samples": sealed.samples if sealed else None,
        "ledger": sealed.ledger if sealed else None,
    }
