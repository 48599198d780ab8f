# SPDX-License-Identifier: Apache-2.0
"""`collectord answer`: questions that many ask, answered in SQL from the records in segments."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK, answer_file
from collectord.cli.answer_rows import print_answer
from collectord.cli.answer_session import recording_of
from collectord.cli.asking import (
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
from collectord.cli.debug_servers import USAGE, add_debug_servers, debug_servers
from collectord.cli.output import Column, complain, print_json, print_table, say
from collectord.cli.parser import Parser, named_values
from collectord.cli.segments import STATE_DIRECTORY
from collectord.cli.times import TIMES, joined
from collectord.errors import ConfigError, UsageError
from collectord.programs.parameter import show_default, values_of
from collectord.reader.event_tables import GAPS, software_tables
from collectord.reader.fixed_tables import FixedTable
from collectord.reader.gaps import folders_at_once, gaps_of
from collectord.reader.segment_tables import open_catalogue
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from collectord.cli.answer_file import AnswerFile, AnswerHead
    from collectord.reader.event_tables import EventTable
    from collectord.reader.sql import Database, MadeTable
    from collectord.reader.symbols.debuginfod import Debuginfod

_COLUMNS: Final = tuple(map(Column, ("ANSWER", "FROM", "TELLS")))
_GAP_COLUMNS: Final = {"since": "TIMESTAMP_NS", "until": "TIMESTAMP_NS"}


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
    made.add_argument(
        "paths",
        metavar="DIR|FILE",
        type=Path,
        nargs="*",
        help="state directories, session directories, segments and files of perf and trace-cmd, "
        f"sealed or still written (default: {STATE_DIRECTORY})",
    )
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
    targets = args.paths or [STATE_DIRECTORY]
    catalogue = open_catalogue(targets, stack, session=args.session, nearest=did_you_mean)
    recorded = _by_event([*catalogue.tables.values(), *software_tables(catalogue.files)])
    need = next((one for one in answer.head.needs if recorded.keys() >= {*one}), None)
    if need is None:
        complain_of(catalogue, ())
        _complain_of_missing(answer, _missing(answer.head, recorded))
        return EXIT_FAILURE
    if answer.head.call_chains and not all(_has_chains(recorded[event]) for event in need):
        complain_of(catalogue, ())
        _complain_of_missing(answer, f"call chains of {', '.join(need)}")
        return EXIT_FAILURE
    read = {*need, *answer.head.optional} & recorded.keys()
    for event in sorted(read):
        _refuse_twice(event, recorded[event])
    # By the name that the statement has for it, whatever other event has the same.
    tables = {_plain(event): replace(recorded[event], name=_plain(event)) for event in read}
    gaps = FixedTable(_GAP_COLUMNS, gaps_of(recorded[event] for event in need))
    empty = {
        _plain(event): FixedTable(answer.head.columns[event])
        for event in answer.head.events
        if event not in read
    }
    chains = chains_of(catalogue, args, servers)
    manifests = manifests_of(catalogue, args)
    fixed: dict[str, MadeTable] = {**empty, GAPS: gaps, **chains.tables, **manifests.tables}
    database = database_of(catalogue, args, stack, tables=tables, fixed=fixed)
    render = answer.head.render
    give(database, answer.text, args, lambda rows: print_answer(rows, render), values)
    complain_of_chains(chains, servers)
    status = complain_of(catalogue, database.scans)
    _complain_of_nothing(need, database)
    return max(status, complain_of_manifests(manifests))


def _by_event(tables: Iterable[EventTable]) -> dict[str, EventTable]:
    """Return the tables of events by SYSTEM:NAME."""
    found = {}
    for table in tables:
        if table.system:
            found[f"{table.system}:{table.name.removeprefix(f'{table.system}:')}"] = table
    return found


def _plain(event: str) -> str:
    return event.partition(":")[2]


def _refuse_twice(event: str, table: EventTable) -> None:
    folders = folders_at_once(table.files)
    if folders:
        raise UsageError(
            f"{event} was recorded into several folders at the same time: {', '.join(folders)}",
            hint="name one of them, or a --session: else each record counts twice",
        )


def _missing(head: AnswerHead, recorded: Mapping[str, EventTable]) -> str:
    """Return the events that were not recorded of the list that lacks the fewest."""
    need = min(head.needs, key=lambda one: len({*one} - recorded.keys()))
    return ", ".join(event for event in need if event not in recorded)


def _complain_of_missing(answer: AnswerFile, missing: str) -> None:
    """Say what was not recorded, and how to record it."""
    complain(
        f"{answer.name} needs {missing}, and no segment that was read has it",
        *recording_of(answer.name, answer.head),
    )


def _has_chains(table: EventTable) -> bool:
    """Whether records of an event have call chains in any file."""
    name = f"{table.system}:{table.name.removeprefix(f'{table.system}:')}"
    return any(
        event.has_chain for file in table.files for event in file.events if event.full_name == name
    )


def _complain_of_nothing(need: Sequence[str], database: Database) -> None:
    """Name the events of which no record was read, so that an empty answer says why."""
    rows: dict[str, int] = {}
    for scan in database.scans:
        found = sum(one.rows for one in scan.found().values())
        rows[scan.table.name] = max(found, rows.get(scan.table.name, 0))
    for event in need:
        if rows.get(_plain(event)) == 0:
            complain(f"there was no {event} in what was read")
