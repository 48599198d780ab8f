# SPDX-License-Identifier: Apache-2.0
"""`collectord query`: SQL over the records of segments."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK
from collectord.cli.output import Column, complain, print_json, print_table
from collectord.cli.parser import Parser
from collectord.cli.query_rows import print_csv, print_objects, print_rows
from collectord.cli.segments import STATE_DIRECTORY
from collectord.cli.times import joined, parse_time
from collectord.errors import UsageError
from collectord.reader.event_file import Window
from collectord.reader.event_tables import Found, described
from collectord.reader.segment_tables import open_catalogue
from collectord.reader.sql import SEGMENT_COLUMNS, Database, Segment
from collectord.text.foreign import encodable
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from collectord.reader.event_file import EventFile
    from collectord.reader.event_tables import TableScan
    from collectord.reader.segment_tables import Catalogue

_TIMES: Final = ("--since", "--until")


def parser() -> Parser:
    """Return the parser of `query`."""
    made = Parser(
        "query",
        (
            "[--since TIME]",
            "[--until TIME]",
            "[--session NAME]",
            "[--json | --csv | --parquet FILE]",
            "[--schema]",
            "SQL",
            "[DIR|FILE...]",
        ),
        (
            "collectord query --schema",
            "collectord query 'SELECT comm, count(*) FROM sched_switch GROUP BY 1'",
            "collectord query --since -10m 'SELECT * FROM losses ORDER BY time'",
            "collectord query 'FROM sys_enter SELECT id, count(*) GROUP BY id' trace.dat",
            "collectord query --parquet out.parquet 'FROM sched_wakeup' out",
        ),
    )
    made.add_argument(
        "words",
        metavar="SQL DIR|FILE",
        nargs="*",
        help="one SELECT, then what it reads: state directories, session directories, "
        "segments and files of perf and trace-cmd, sealed or still written; with --schema only "
        f"these (default of these: {STATE_DIRECTORY})",
    )
    made.add_argument(
        "--since",
        metavar="TIME",
        type=parse_time,
        help="read only records from this time on: RFC 3339, HH:MM[:SS] of today, or such as -10m "
        "(default: all)",
    )
    made.add_argument(
        "--until",
        metavar="TIME",
        type=parse_time,
        help="read only records up to this time (default: all)",
    )
    made.add_argument(
        "--session", metavar="NAME", help="read only segments of this session (default: all)"
    )
    how = made.add_mutually_exclusive_group()
    how.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object per line, with --schema one document (default: a table)",
    )
    how.add_argument("--csv", action="store_true", help="print CSV (default: a table)")
    how.add_argument(
        "--parquet",
        metavar="FILE",
        type=Path,
        help="write a Parquet file, which must not exist (default: print a table)",
    )
    made.add_argument(
        "--schema",
        action="store_true",
        help="list the tables and their columns, without SQL (default: no)",
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """Carry out one statement; return 1 if something could not be read."""
    args = parser().parse_intermixed_args(joined(arguments, _TIMES))
    words = list(args.words)
    if not args.schema and not words:
        raise UsageError("no statement is given", hint="see `collectord query --help`")
    sql = "" if args.schema else words.pop(0)
    window = Window(args.since, args.until)
    targets = [Path(word) for word in words] or [STATE_DIRECTORY]
    with ExitStack() as stack:
        catalogue = open_catalogue(targets, stack, session=args.session, nearest=did_you_mean)
        if args.schema:
            _print_schema(catalogue, as_json=args.json)
            return _complain_of(catalogue, ())
        database = Database(catalogue.tables, _segments(catalogue), window, did_you_mean, stack)
        if args.parquet is not None:
            _write_parquet(database, sql, args.parquet)
        else:
            answer = database.ask(sql)
            show = print_objects if args.json else print_csv if args.csv else print_rows
            show(answer)
        return _complain_of(catalogue, database.scans)


def _print_schema(catalogue: Catalogue, *, as_json: bool) -> None:
    rows = list(described(catalogue.tables))
    rows += [("segments", name, kind) for name, kind in SEGMENT_COLUMNS.items()]
    if as_json:
        keys = ("table", "column", "type")
        print_json({"columns": [dict(zip(keys, row, strict=True)) for row in rows]})
        return
    print_table((Column("TABLE"), Column("COLUMN"), Column("TYPE")), rows)


def _write_parquet(database: Database, sql: str, path: Path) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{path} exists", hint="name a file that does not exist")
    rows = database.write_parquet(sql, str(path.absolute()))
    complain(f"wrote {rows:,} rows to {path}")


def _segments(catalogue: Catalogue) -> list[Segment]:
    return [
        Segment(
            path=encodable(str(row.path)),
            session=row.session,
            format=row.format,
            state=str(row.state),
            started=row.started_ns,
            first=row.begins_ns,
            last=row.ends_ns,
            samples=row.samples,
            bytes=row.bytes,
        )
        for row in catalogue.rows
    ]


def _complain_of(catalogue: Catalogue, scans: Iterable[TableScan]) -> int:
    """Report what is missing in the result, and return the exit status."""
    for error in catalogue.failures:
        complain(str(error))
    if catalogue.unread:
        complain(
            f"{len(catalogue.unread)} files were not read: query reads trace.dat and perf.data so "
            f"far; the first is {catalogue.unread[0]}"
        )
    files = dict.fromkeys(file for table in catalogue.tables.values() for file in table.files)
    damaged = [file for file in files if file.damage]
    for file in damaged:
        complain(f"{file.path} is damaged in part: {file.damage}")
    untimed = dict.fromkeys(file for scan in scans for file in scan.untimed)
    for file in untimed:
        complain(
            f"{file.path} was left out: without a manifest nothing tells the time of its records"
        )
    found = _most(scans)
    _complain_of_losses(found)
    broken = {file: one.damaged for file, one in found.items() if one.damaged}
    for file, places in broken.items():
        complain(f"{file.path}: {places:,} damaged places were skipped; the table damage has them")
    return EXIT_FAILURE if catalogue.failures or damaged or broken else EXIT_OK


def _most(scans: Iterable[TableScan]) -> dict[EventFile, Found]:
    """Return what was found in each file: several scans of one find the same losses."""
    most: dict[EventFile, Found] = {}
    for scan in scans:
        for file, found in scan.found().items():
            before = most.get(file, Found())
            most[file] = Found(*map(max, zip(before, found, strict=True)))
    return most


def _complain_of_losses(found: dict[EventFile, Found]) -> None:
    """Say how many records are missing, by session."""
    by_session: dict[tuple[str, bool], Found] = {}
    for file, one in found.items():
        key = file.session or file.path_text, file.wraps
        before = by_session.get(key, Found())
        by_session[key] = Found(*map(sum, zip(before, one, strict=True)))
    for (session, wraps), one in by_session.items():
        how = "overwritten" if wraps else "lost"
        if one.lost:
            complain(f"{one.lost:,} records of {session} were {how} in what was read")
        if one.lost_untold:
            complain(
                f"records of {session} were {how} at {one.lost_untold:,} places, and nothing "
                "tells how many"
            )
