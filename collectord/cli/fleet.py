# SPDX-License-Identifier: Apache-2.0
"""`collectord fleet`: questions to many hosts at once, from what they have put into a store."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import answer_file
from collectord.cli.parser import Parser, named_values
from collectord.cli.query_parts import add_scope
from collectord.cli.time_window import time_window
from collectord.cli.times import TIMES, joined
from collectord.errors import CollectordError, UsageError, install_command
from collectord.text.units import Nanoseconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_ASKING: Final = ("query", "answer", "ledger", "flame", "incidents")
_ACTIONS: Final = (*_ASKING, "tables")
_ENGINES: Final = ("duckdb", "clickhouse", "spark")
_VARIABLE: Final = "COLLECTORD_STORE"
_SILENT: Final = "2h"
# --against takes these beside labels.
_HOST: Final = "host"
_NEXT_KEY: Final = re.compile(r",(?=\w+=)", re.ASCII)
# The actions of each option; --store is of all.
_OF: Final = {
    "engine": ("query", "answer", "flame"),
    "engine_address": ("query", "answer", "flame"),
    "param": ("answer",),
    "by": ("answer", "flame"),
    "answer_dir": ("answer",),
    "show": ("query", "answer"),
    "schema": ("query",),
    "csv": ("query", "answer"),
    "parquet": ("query", "answer"),
    "verify": ("ledger",),
    "silent_after": ("ledger",),
    "against": ("answer", "ledger", "flame", "incidents"),
    "event": ("flame",),
    "output": ("flame",),
    "location": ("tables",),
    "previous_versions": ("tables",),
    "host": _ASKING,
    "label": _ASKING,
    "since": _ACTIONS,
    "until": _ASKING,
    "session": ("query", "answer", "ledger", "flame"),
    "json": ("query", "answer", "ledger", "incidents", "tables"),
}
# Options that would have no effect beside another one.
_WITHOUT: Final = {
    "schema": ("words", "show", "session", "parquet"),
    "show": ("json", "csv", "parquet"),
}
_SPELT: Final = {"event": "-e", "output": "-o", "words": "a statement"}


def parser() -> Parser:
    """Return the parser of `fleet`."""
    made = Parser(
        "fleet",
        (
            "query SQL | answer NAME | ledger | flame",
            "| incidents [ID] | tables",
            "--store URL",
            "[--engine duckdb|clickhouse|spark]",
            "[--engine-address ADDRESS]",
            "[--since TIME]",
            "[--until TIME]",
            "[--host GLOB]",
            "[--label K=V]...",
            "[--session NAME]",
            "[--by KEY[,KEY]]",
            "[--param K=V]...",
            "[--answer-dir DIR]",
            "[--show]",
            "[--schema]",
            "[--verify]",
            "[--silent-after TIME]",
            "[-e GLOB]",
            "[--against K=V[,K=V]]...",
            "[-o FILE]",
            "[--location URL]",
            "[--previous-versions N]",
            "[--json | --csv | --parquet FILE]",
        ),
        (
            "collectord fleet query --store s3://traces/prod --schema",
            "collectord fleet query 'SELECT host, sum(lost) FROM ledger GROUP BY 1'",
            "collectord fleet answer slow-io --since -7d --by host,kernel",
            "collectord fleet answer syscalls --label role=db --against role=web",
            "collectord fleet ledger --since -1d --verify",
            "collectord fleet flame --label role=db --against role=web -o db.html",
            "collectord fleet incidents --store /srv/fleet",
            "collectord fleet tables --since -2d",
        ),
    )
    made.add_argument(
        "action",
        metavar="|".join(_ACTIONS),
        choices=_ACTIONS,
        help="query: carry out a statement over the records of all hosts; answer: give an answer "
        "of `collectord answer list` for each host; ledger: say what the hosts have lost, or not "
        "told; flame: show where time goes on all of them; incidents: list incidents, those of "
        "several hosts together, or show one; tables: have Iceberg tables name all that was "
        "shipped, and drop what is gone",
    )
    made.add_argument(
        "words",
        metavar="SQL|NAME|ID",
        nargs="*",
        help="the statement, the name of the answer (default: list all), or the incident",
    )
    made.add_argument(
        "--store",
        metavar="URL",
        default=os.environ.get(_VARIABLE, ""),
        help="s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or a folder; credentials "
        f"are those of the environment (default: the variable {_VARIABLE})",
    )
    made.add_argument(
        "--engine",
        metavar="duckdb|clickhouse|spark",
        choices=_ENGINES,
        default=_ENGINES[0],
        help="engine that carries the statement out (default: duckdb, in this process)",
    )
    made.add_argument(
        "--engine-address",
        metavar="ADDRESS",
        default="",
        help="address of ClickHouse's HTTP interface, such as http://USER:PASSWORD@HOST:8123, or "
        "of Spark's master, such as spark://HOST:7077 (default: chDB in this process; Spark on "
        "this host)",
    )
    _add_choice(made)
    made.add_argument(
        "--by",
        metavar="KEY[,KEY]",
        help="answer: group rows by host, by labels of hosts, or not at all (all) "
        "(default: host); flame: the outermost frame, a label, host or comm (default: comm)",
    )
    made.add_argument(
        "--param",
        metavar="K=V",
        action="append",
        default=[],
        help="answer: set a parameter, repeatable (default: the answer's own default)",
    )
    made.add_argument(
        "--answer-dir",
        metavar="DIR",
        type=Path,
        default=answer_file.LOCAL,
        help=f"answer: directory of this host's own answers (default: {answer_file.LOCAL})",
    )
    made.add_argument(
        "--show",
        action="store_true",
        help="print the statement that the engine would get, and ask nothing (default: no)",
    )
    made.add_argument(
        "--schema",
        action="store_true",
        help="query: list the tables and their columns, without SQL (default: no)",
    )
    made.add_argument(
        "--verify",
        action="store_true",
        help="ledger: follow the chains of commits, compare sums with the manifests, and read all "
        "objects for their hashes (default: no)",
    )
    made.add_argument(
        "--silent-after",
        metavar="TIME",
        type=Nanoseconds.parse,
        default=Nanoseconds.parse(_SILENT),
        help="ledger: report a host as silent if it shipped nothing in this time before --until, "
        f"or before now (default: {_SILENT})",
    )
    made.add_argument(
        "-e",
        metavar="GLOB",
        dest="event",
        help="flame: count samples of events whose SYSTEM:NAME matches (default: the only event, "
        "or the only one besides tracepoints, such as cycles)",
    )
    made.add_argument(
        "--against",
        metavar="K=V[,K=V]",
        action="append",
        help="answer, ledger, flame, incidents: show what is more or less than on the hosts with "
        "all of these labels; the label host is a host's name, values may be patterns, and a "
        "comma belongs to a value unless K= follows it; repeatable (default: compare with "
        "nothing)",
    )
    made.add_argument(
        "-o",
        metavar="FILE",
        dest="output",
        type=Path,
        help="flame: write a file, as `collectord flame` does (default: print folded stacks, each "
        "with its samples; with --against with two numbers, first those of the hosts to compare "
        "with)",
    )
    made.add_argument(
        "--location",
        metavar="URL",
        default="",
        help="tables: address of the store by which engines read it, such as one of abfss:// "
        "(default: that of --store)",
    )
    made.add_argument(
        "--previous-versions",
        metavar="N",
        type=int,
        help="tables: keep the metadata of this many versions before the newest, and delete older "
        "ones; 0: delete nothing (default: as the table says, 100 at first)",
    )
    how = made.add_mutually_exclusive_group()
    how.add_argument(
        "--json",
        action="store_true",
        help="print JSON, of query and answer an object per line (default: text)",
    )
    how.add_argument("--csv", action="store_true", help="print CSV (default: a table)")
    how.add_argument(
        "--parquet",
        metavar="FILE",
        type=Path,
        help="query and answer, by DuckDB: write a Parquet file, which must not exist (default: "
        "print a table)",
    )
    return made


def _add_choice(made: Parser) -> None:
    """Add the options that choose hosts and times."""
    add_scope(made)
    made.add_argument(
        "--host",
        metavar="GLOB",
        default="*",
        help="ask only hosts whose name matches (default: all)",
    )
    made.add_argument(
        "--label",
        metavar="K=V",
        action="append",
        default=[],
        help="ask only hosts with this label, whose value may be a pattern; kernel is a label of "
        "all; repeatable (default: all)",
    )


def run(arguments: Sequence[str]) -> int:
    """Carry out one action; return 1 if its answer is not whole."""
    made = parser()
    args = made.parse_intermixed_args(joined(arguments, TIMES))
    _check(args, made)
    try:
        from collectord.cli import (  # noqa: PLC0415  # with packages that need not be there
            fleet_audit,
            fleet_flame,
            fleet_incidents,
            fleet_query,
            fleet_tables,
        )
    except ImportError as error:
        raise CollectordError(
            f"`fleet` needs {error.name}, which is not installed", hint=install_command("fleet")
        ) from error
    args.window = time_window(args.since, args.until)
    args.labels = named_values("--label", args.label)
    if _HOST in args.labels:
        raise UsageError(
            "host is the name of a host, and no label",
            hint=f"--host {shlex.quote(args.labels[_HOST])}",
        )
    if args.against is not None:
        args.labels_against = named_values("--against", _conditions(args.against))
        args.against = ",".join(args.against)  # the name of these hosts
    actions = {
        "query": fleet_query.query,
        "answer": fleet_query.answer,
        "ledger": fleet_audit.ledger,
        "flame": fleet_flame.flame,
        "incidents": fleet_incidents.incidents,
        "tables": fleet_tables.tables,
    }
    return actions[args.action](args)


def _conditions(words: Sequence[str]) -> list[str]:
    """Return each K=V of words that may have several, with commas between them."""
    return [one for word in words for one in _NEXT_KEY.split(word)]


def _check(args: argparse.Namespace, made: Parser) -> None:
    """Raise UsageError for options that do not go together."""
    _check_given({name for name in _OF if getattr(args, name) != made.get_default(name)}, args)
    most = {"query": 1, "answer": 1, "incidents": 1}.get(args.action, 0)
    if len(args.words) > most:
        raise UsageError(f"fleet {args.action} takes {most or 'no'} word{'s' * (most != 1)}")
    if not args.store and not (args.action == "answer" and not args.words):
        raise UsageError("no store is named", hint=f"--store URL, or the variable {_VARIABLE}")
    if args.engine_address and args.engine == _ENGINES[0]:
        raise UsageError("DuckDB has no address", hint="--engine clickhouse or spark")
    if args.previous_versions is not None and args.previous_versions < 0:
        raise UsageError("--previous-versions is negative", hint="0 keeps all versions")
    if args.parquet is not None and args.engine != _ENGINES[0]:
        raise UsageError("--parquet is written by DuckDB", hint="leave out --engine")


def _check_given(options: set[str], args: argparse.Namespace) -> None:
    """Raise UsageError for an option that would have no effect."""
    given = options | ({"words"} if args.words else set())
    for name, actions in _OF.items():
        if name in given and args.action not in actions:
            raise UsageError(f"{_spelt(name)} is an option of fleet {', '.join(actions)}")
    for name, others in _WITHOUT.items():
        for other in others:
            if {name, other} <= given:
                raise UsageError(f"{_spelt(name)} and {_spelt(other)} do not go together")
    if args.action == "answer" and not args.words:
        for name in sorted(given - {"answer_dir"}):
            raise UsageError(
                f"{_spelt(name)} is of an answer, and none is named",
                hint="`collectord fleet answer` lists all",
            )


def _spelt(name: str) -> str:
    """Return an option as it is written."""
    return _SPELT.get(name, f"--{name.replace('_', '-')}")
