# SPDX-License-Identifier: Apache-2.0
"""The parts that verbs over records share: options, tables, and what is missing in a result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK
from collectord.cli.debug_servers import complain_of_servers
from collectord.cli.new_file import check_is_new
from collectord.cli.output import complain
from collectord.cli.query_rows import print_csv, print_objects
from collectord.cli.segments import STATE_DIRECTORY
from collectord.cli.time_window import time_window
from collectord.cli.times import parse_time
from collectord.errors import install_command
from collectord.reader.chain_tables import Chains, Wishes
from collectord.reader.event_tables import Found
from collectord.reader.fixed_tables import fixed_tables
from collectord.reader.manifest_tables import ManifestTables
from collectord.reader.sql import Database
from collectord.reader.symbols import symbolic_names
from collectord.reader.symbols.symbol_cache import user_cache
from collectord.text.foreign import visible
from collectord.text.nearest import did_you_mean
from collectord.text.wording import counted, were

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import ExitStack

    from collectord.cli.parser import Parser
    from collectord.reader.event_file import EventFile
    from collectord.reader.event_tables import EventTable, Reading
    from collectord.reader.segment_tables import Catalogue
    from collectord.reader.sql import Answered, MadeTable
    from collectord.reader.symbols.debuginfod import Debuginfod

READABLE: Final = (
    "state directories, session directories, segments and files of perf and trace-cmd, sealed or "
    "still written"
)
# Readings of losses have this where the CPU is not known.
_UNKNOWN_CPU: Final = frozenset({-1})
# CPUs that lost records and are named; of more, the number is told.
_CPUS_NAMED: Final = 4
# Damaged manifests that are named; of more, the number is told.
_MANIFESTS_NAMED: Final = 4


def add_paths(made: Parser, name: str) -> None:
    """Add the argument of what is read, which is called `name` in the namespace."""
    made.add_argument(
        name,
        metavar="DIR|FILE",
        type=Path,
        nargs="*",
        help=f"{READABLE} (default: {STATE_DIRECTORY})",
    )


def add_scope(made: Parser) -> None:
    """Add the options that choose what is read."""
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


def add_form(made: Parser, document: str) -> None:
    """Add the options of the output's form; `document` is said of another use of --json."""
    how = made.add_mutually_exclusive_group()
    how.add_argument(
        "--json",
        action="store_true",
        help=f"print one JSON object per line, {document} (default: a table)",
    )
    how.add_argument("--csv", action="store_true", help="print CSV (default: a table)")
    how.add_argument(
        "--parquet",
        metavar="FILE",
        type=Path,
        help="write a Parquet file, which must not exist (default: print a table)",
    )


def database_of(
    catalogue: Catalogue,
    args: argparse.Namespace,
    stack: ExitStack,
    *,
    tables: Mapping[str, EventTable] | None = None,
    fixed: Mapping[str, MadeTable] | None = None,
) -> Database:
    """Return a database of a catalogue, with more tables that take the place of its own."""
    return Database(
        {**catalogue.tables, **(tables or {})},
        {**fixed_tables(catalogue.rows, os.uname().machine), **(fixed or {})},
        time_window(args.since, args.until),
        did_you_mean,
        stack,
    )


def chains_of(
    catalogue: Catalogue, args: argparse.Namespace, servers: Debuginfod | None
) -> Chains:
    """Return the call chains of a catalogue's samples, whose tables a database may have."""
    window = time_window(args.since, args.until)
    wishes = Wishes(window, user_cache(servers), visible, did_you_mean)
    return Chains(catalogue.files, wishes)


def manifests_of(catalogue: Catalogue, args: argparse.Namespace) -> ManifestTables:
    """Return what the manifests of a catalogue tell, whose tables a database may have."""
    return ManifestTables(catalogue, time_window(args.since, args.until))


def complain_of_chains(chains: Chains, servers: Debuginfod | None) -> None:
    """Say why frames of a statement have no names."""
    if chains.is_read:
        complain_of_names(chains.nameless, chains.left_out)
    complain_of_servers(servers, is_needed=chains.is_read)


def give(
    database: Database,
    sql: str,
    args: argparse.Namespace,
    show: Callable[[Answered], None],
    values: Mapping[str, int | str] | None = None,
) -> None:
    """Carry out a statement, and write the result as the options say.

    Args:
        database: the tables.
        sql: one SELECT.
        args: with the options of `add_form`.
        show: prints rows for people.
        values: of the statement's parameters.
    """
    if args.parquet is None:
        form = print_objects if args.json else print_csv if args.csv else show
        form(database.ask(sql, values))
        return
    check_is_new(args.parquet)
    rows = database.write_parquet(sql, str(args.parquet.absolute()), values)
    complain(f"wrote {counted(rows, 'row')} to {args.parquet}")


def complain_of(catalogue: Catalogue, scans: Iterable[Reading]) -> int:
    """Report what is missing in a result, and return the exit status."""
    for error in catalogue.failures:
        complain(str(error))
    unread = len(catalogue.unread)
    if unread:
        complain(
            f"{counted(unread, 'file')} {were(unread)} not read: only trace.dat, perf.data and "
            f"blktrace files have tables; the first is {catalogue.unread[0]}"
        )
    damaged = [file for file in catalogue.files if file.damage]
    for file in damaged:
        complain(f"{file.path} is damaged in part: {file.damage}")
    untimed = dict.fromkeys(file for scan in scans for file in scan.untimed)
    for file in untimed:
        complain(
            f"{file.path} was left out: without a manifest nothing tells the time of its records"
        )
    moved = [file for file in catalogue.files if file.move]
    for file in moved:
        complain(f"{file.path}: {file.move}")
    found = _most(scans)
    _complain_of_losses(found)
    broken = {file: one.damaged for file, one in found.items() if one.damaged}
    for file, places in broken.items():
        skipped = f"{counted(places, 'damaged place')} {were(places)} skipped"
        complain(f"{file.path}: {skipped}; the table damage says where")
    return EXIT_FAILURE if catalogue.failures or damaged or moved or broken else EXIT_OK


def complain_of_manifests(tables: ManifestTables) -> int:
    """Report manifests that cannot be read, if a statement needs them; return the exit status."""
    damage = tables.damage
    for path, reason in damage[:_MANIFESTS_NAMED]:
        complain(f"{path}: {reason}")
    more = len(damage) - _MANIFESTS_NAMED
    if more > 0:
        are = "is" if more == 1 else "are"
        complain(f"{counted(more, 'more manifest')} {are} damaged; the table damage names all")
    return EXIT_FAILURE if damage else EXIT_OK


def complain_of_names(nameless: Sequence[EventFile], left_out: int) -> None:
    """Say why frames have no names.

    Args:
        nameless: files of whose kernel no list of functions is known.
        left_out: mappings that were too many to be remembered.
    """
    if not symbolic_names.is_installed():
        hint = install_command("symbols")
        complain(f"functions of programs have no names without the package symbolic; {hint}")
    if nameless:
        complain(
            f"functions of the kernel have no names in {counted(len(nameless), 'file')}, such "
            f"as {nameless[0].path}: they are of another boot of which no list was kept, or "
            "/proc/kallsyms hides addresses from this user (CAP_SYSLOG)"
        )
    if left_out:
        complain(
            f"{counted(left_out, 'mapping')} {were(left_out)} too many; addresses there have no "
            "names"
        )


def _most(scans: Iterable[Reading]) -> dict[EventFile, Found]:
    """Return what was found in each file: several scans of one find the same losses."""
    most: dict[EventFile, Found] = {}
    for scan in scans:
        for file, found in scan.found().items():
            most[file] = most.get(file, Found()).or_more(found)
    return most


def _complain_of_losses(found: dict[EventFile, Found]) -> None:
    """Say how many records are missing, by session."""
    by_session: dict[tuple[str, bool], Found] = {}
    for file, one in found.items():
        key = file.session or file.path_text, file.wraps
        if (one.lost or one.lost_untold) and not one.cpus:
            one = one._replace(cpus=_UNKNOWN_CPU)  # noqa: PLW2901  # nothing tells it
        by_session[key] = by_session.get(key, Found()).and_also(one)
    for (session, wraps), one in by_session.items():
        how = ("overwritten" if wraps else "lost") + _on_cpus(one.cpus)
        if one.lost:
            lost = f"{counted(one.lost, 'record')} of {session} {were(one.lost)} {how}"
            complain(f"{lost} in what was read")
        if one.lost_untold:
            complain(
                f"records of {session} were {how} at {counted(one.lost_untold, 'place')}, and "
                "nothing tells how many"
            )


def _on_cpus(cpus: frozenset[int]) -> str:
    """Return " on CPU 0" or the like; "" unless all of them are known."""
    if not cpus or not _UNKNOWN_CPU.isdisjoint(cpus):
        return ""
    numbers = sorted(cpus)
    named = ", ".join(map(str, numbers[:_CPUS_NAMED]))
    more = f" and {len(numbers) - _CPUS_NAMED:,} more" if len(numbers) > _CPUS_NAMED else ""
    return f" on CPU{'s' if len(numbers) > 1 else ''} {named}{more}"
