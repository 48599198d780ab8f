# SPDX-License-Identifier: Apache-2.0
"""`collectord query`: SQL over the records of segments."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from collectord.cli.debug_servers import USAGE, add_debug_servers, debug_servers
from collectord.cli.parser import Parser
from collectord.cli.query_parts import (
    READABLE,
    add_form,
    add_scope,
    chains_of,
    complain_of,
    complain_of_chains,
    complain_of_manifests,
    database_of,
    give,
    manifests_of,
)
from collectord.cli.query_rows import print_rows, print_schema
from collectord.cli.segments import STATE_DIRECTORY
from collectord.cli.times import TIMES, joined
from collectord.errors import UsageError
from collectord.reader.chain_tables import described_chains
from collectord.reader.event_tables import described
from collectord.reader.fixed_tables import FIXED_COLUMNS, described_columns
from collectord.reader.manifest_tables import MANIFEST_COLUMNS
from collectord.reader.segment_tables import open_catalogue
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.reader.segment_tables import Catalogue


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
            USAGE,
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
        help=f"one SELECT, then what it reads: {READABLE}; with --schema only these (default of "
        f"these: {STATE_DIRECTORY})",
    )
    add_scope(made)
    add_form(made, "with --schema one document")
    made.add_argument(
        "--schema",
        action="store_true",
        help="list the tables and their columns, without SQL (default: no)",
    )
    add_debug_servers(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Carry out one statement; return 1 if something could not be read."""
    args = parser().parse_intermixed_args(joined(arguments, TIMES))
    servers = debug_servers(args, "query", "--schema" if args.schema else "")
    words = list(args.words)
    if not args.schema and not words:
        raise UsageError("no statement is given", hint="see `collectord query --help`")
    sql = "" if args.schema else words.pop(0)
    targets = [Path(word) for word in words] or [STATE_DIRECTORY]
    with ExitStack() as stack:
        catalogue = open_catalogue(targets, stack, session=args.session, nearest=did_you_mean)
        if args.schema:
            print_schema(_schema(catalogue), args)
            return complain_of(catalogue, ())
        chains = chains_of(catalogue, args, servers)
        manifests = manifests_of(catalogue, args)
        fixed = {**chains.tables, **manifests.tables}
        database = database_of(catalogue, args, stack, fixed=fixed)
        give(database, sql, args, print_rows)
        complain_of_chains(chains, servers)
        status = complain_of(catalogue, database.scans)
        return max(status, complain_of_manifests(manifests))


def _schema(catalogue: Catalogue) -> list[tuple[str, str, str]]:
    return [
        *described(catalogue.tables),
        *described_chains(),
        *described_columns({**MANIFEST_COLUMNS, **FIXED_COLUMNS}),
    ]
