# SPDX-License-Identifier: Apache-2.0
"""`fleet tables`: has Iceberg tables name what hosts have shipped, for engines of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK
from collectord.cli.output import complain, print_json
from collectord.cli.text_table import Column, print_table
from collectord.errors import CollectordError, install_command
from collectord.fleet.engines.place import Place, open_store
from collectord.fleet.selection import Selection, Wanted
from collectord.text.wording import counted

if TYPE_CHECKING:
    import argparse

    from collectord.fleet.iceberg.registration import Registered

_COLUMNS: Final = (
    Column("TABLE"),
    *(Column(title, "right") for title in ("FILES", "ROWS", "ADDED", "DROPPED")),
    Column("WITHOUT"),
)
_NAMED: Final = 4


def tables(args: argparse.Namespace) -> int:
    """Bring all tables up to date; return 1 if a file is in none."""
    try:
        from collectord.fleet.iceberg.registration import (  # noqa: PLC0415  # pyiceberg
            Registration,
        )
    except ImportError as error:
        raise CollectordError(
            f"fleet tables needs {error.name}, which is not installed",
            hint=install_command("fleet", "iceberg"),
        ) from error
    store = open_store(args.store)
    place = Place(store)
    folder = place.folder
    address = args.location or (store.url if folder is None else f"file://{folder}")
    registration = Registration(
        Selection(store, Wanted(args.window)), place, address.rstrip("/"), args.previous_versions
    )
    found = [one for one in map(registration.register, registration.events()) if one is not None]
    if args.json:
        print_json({"tables": [one._asdict() for one in found]})
    else:
        print_table(_COLUMNS, [*map(_row, found)])
    for one in found:
        _complain(one)
    return EXIT_FAILURE if any(one.files_left_out for one in found) else EXIT_OK


def _row(one: Registered) -> list[str]:
    figures = (one.files, one.rows, one.added, one.dropped)
    return [one.event, *(f"{figure:,}" for figure in figures), ", ".join(one.columns_left_out)]


def _complain(one: Registered) -> None:
    """Report what was not done."""
    if one.not_deleted:
        complain(f"old versions of the table of {one.event} are still there: {one.not_deleted}")
    for key, words in [*one.files_left_out.items()][:_NAMED]:
        complain(f"{key} was left out: {words}")
    more = len(one.files_left_out) - _NAMED
    if more > 0:
        were = "was" if more == 1 else "were"
        complain(f"{counted(more, 'more file')} of {one.event} {were} left out")
