# SPDX-License-Identifier: Apache-2.0
"""`collectord answer`: questions that many ask, answered in SQL from the records in segments."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK, answer_file
from collectord.cli.answer_rows import print_answer
from collectord.cli.answer_session import recording_of
from collectord.cli.answer_tables import NotRecorded, plain_name, prepare
from collectord.cli.debug_servers import USAGE, add_debug_servers, debug_servers
from collectord.cli.output import complain, print_json, say
from collectord.cli.parser import Parser, named_values
from collectord.cli.query_parts import (
    add_form,
    add_paths,
    add_scope,
    chains_of,
    complain_of,
    complain_of_chains,
    complain_of_manifests,
    give,
    manifests_of,
)
from collectord.cli.segments import STATE_DIRECTORY
from collectord.cli.text_table import Column, print_table
from collectord.cli.times import TIMES, joined
from collectord.errors import ConfigError, UsageError
from collectord.programs.parameter import show_default, values_of
from collectord.reader.segment_tables import open_catalogue
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from collectord.cli.answer_file import AnswerFile
    from collectord.reader.sql import Database
    from collectord.reader.symbols.debuginfod import Debuginfod

_COLUMNS: Final = tuple(map(Column, ("ANSWER", "FROM", "TELLS")))


def parser() -> Parser:
    """Return the parser of `answer`."""
    made = Parser(
        "answer",
        (
            "[--param K=V]...",
            "[--since TIME]",
            "[--until TIME]",
            "[--session NAME]",
            "[--json | --csv | --parquet FILE]",
            "[--show]",
            USAGE,
            "[--answer-dir DIR]",
            "list|NAME",
            "[DIR|FILE...]",
        ),
        (
            "collectord answer list",
            "collectord answer run-queue --since -10m",
            "collectord answer syscalls --param order=errors out",
            "collectord answer slow-io --show",
        ),
    )
    made.add_argument(
        "name",
        metavar="list|NAME",
        help="list: list all answers; else the answer to give",
    )
    add_paths(made, "paths")
    made.add_argument(
        "--param",
        metavar="K=V",
        action="append",
        default=[],
        help="set a parameter of the answer, repeatable (default: the answer's own default)",
    )
    add_scope(made)
    add_form(made, "with list one document")
    made.add_argument(
        "--show",
        action="store_true",
        help="print the answer's file: its parameters, its events and its statement (default: no)",
    )
    add_debug_servers(made)
    made.add_argument(
        "--answer-dir",
        metavar="DIR",
        type=Path,
        default=answer_file.LOCAL,
        help=f"directory of this host's own answers (default: {answer_file.LOCAL})",
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """List answers, or give one; return 1 if its events were not recorded or cannot be read."""
    args = parser().parse_intermixed_args(joined(arguments, TIMES))
    nameless = args.name if args.name == answer_file.LIST else "--show" if args.show else ""
    servers = debug_servers(args, f"answer {args.name}", nameless)
    if args.name == answer_file.LIST:
        if args.param or args.paths:
            raise UsageError("list takes neither --param nor paths", hint="answer NAME DIR")
        return _list(args)
    answer = answer_file.load(args.name, args.answer_dir)
    if args.show:
        for line in answer.text.splitlines():
            say(line)
        return EXIT_OK
    values = values_of(answer.name, answer.head.parameter, named_values("--param", args.param))
    with ExitStack() as stack:
        return _answer(answer, values, args, servers, stack)


def _list(args: argparse.Namespace) -> int:
    found = answer_file.load_all(args.answer_dir)
    if args.json:
        print_json({"answers": [_described(name, one) for name, one in found.items()]})
        return EXIT_OK
    rows = [
        (name, "", str(one))
        if isinstance(one, ConfigError)
        else (name, one.origin, one.head.summary)
        for name, one in found.items()
    ]
    print_table(_COLUMNS, rows)
    return EXIT_OK


def _described(name: str, one: AnswerFile | ConfigError) -> dict[str, object]:
    if isinstance(one, ConfigError):
        return {"name": name, "problem": str(one)}
    parameters = {
        key: {"type": parameter.type, "default": show_default(parameter), "help": parameter.help}
        for key, parameter in one.head.parameter.items()
    }
    return {
        "name": name,
        "origin": one.origin,
        "path": one.path,
        "summary": one.head.summary,
        "needs": one.head.needs,
        "optional": one.head.optional,
        "render": one.head.render,
        "parameters": parameters,
    }


def _answer(
    answer: AnswerFile,
    values: Mapping[str, int | str],
    args: argparse.Namespace,
    servers: Debuginfod | None,
    stack: ExitStack,
) -> int:
    catalogue = open_catalogue(
        args.paths or [STATE_DIRECTORY], stack, session=args.session, nearest=did_you_mean
    )
    chains = chains_of(catalogue, args, servers)
    manifests = manifests_of(catalogue, args)
    try:
        need, database = prepare(
            answer.head, catalogue, {**chains.tables, **manifests.tables}, args, stack
        )
    except NotRecorded as error:
        complain_of(catalogue, ())
        complain(
            f"{answer.name} needs {error}, and no segment that was read has it",
            *recording_of(answer.name, answer.head),
        )
        return EXIT_FAILURE
    render = answer.head.render
    give(database, answer.text, args, lambda rows: print_answer(rows, render), values)
    complain_of_chains(chains, servers)
    status = complain_of(catalogue, database.scans)
    _complain_of_nothing(need, database)
    return max(status, complain_of_manifests(manifests))


def _complain_of_nothing(need: Sequence[str], database: Database) -> None:
    """Name the events of which no record was read, so that an empty answer says why."""
    rows: dict[str, int] = {}
    for scan in database.scans:
        found = sum(one.rows for one in scan.found().values())
        rows[scan.table.name] = max(found, rows.get(scan.table.name, 0))
    for event in need:
        if rows.get(plain_name(event)) == 0:
            complain(f"there was no {event} in what was read")
