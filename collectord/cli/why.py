# SPDX-License-Identifier: Apache-2.0
"""`collectord why`: several answers about one subject, each with the command behind it."""

from __future__ import annotations

import shlex
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from collectord.cli import EXIT_FAILURE, answer_file
from collectord.cli.answer_session import recording_for
from collectord.cli.answer_tables import NotRecorded, prepare
from collectord.cli.output import complain, print_json, say, wrapped
from collectord.cli.parser import Parser
from collectord.cli.query_parts import (
    add_paths,
    add_scope,
    chains_of,
    complain_of,
    complain_of_chains,
)
from collectord.cli.query_rows import cell_text, clock_text, json_value
from collectord.cli.segments import STATE_DIRECTORY
from collectord.cli.times import TIMES, joined, time_text
from collectord.cli.why_questions import QUESTIONS
from collectord.programs.parameter import values_of
from collectord.reader.segment_tables import open_catalogue
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from collectord.cli.answer_file import AnswerHead
    from collectord.cli.why_questions import Step
    from collectord.reader.sql import Answer, Database

_ROWS: Final = 3
_CALLS: Final = 5  # the innermost ones of a stack
_OF_SCHEDULER: Final = "sched"  # calls that every thread makes which leaves the CPU
_LIMIT: Final = "limit"


@dataclass(frozen=True, slots=True)
class Section:
    """The rows of one answer.

    Attributes:
        step: of the question.
        command: the command line that finds these rows, and more.
        rows: the first ones, as plain data by column.
    """

    step: Step
    command: str
    rows: Sequence[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return {
            "title": self.step.title,
            "answer": self.step.answer,
            "command": self.command,
            "rows": self.rows,
        }


def parser() -> Parser:
    """Return the parser of `why`."""
    made = Parser(
        "why",
        (
            "[--since TIME]",
            "[--until TIME]",
            "[--session NAME]",
            "[--json]",
            "|".join(QUESTIONS),
            "[DIR|FILE...]",
        ),
        (
            "collectord why io --since -10m",
            "collectord why cpu sched.data",
        ),
    )
    made.add_argument(
        "question",
        metavar="|".join(QUESTIONS),
        choices=[*QUESTIONS],
        help="io: what waits for block devices; cpu: who has the CPUs and who waits for them; "
        "mem: who lacks memory; net: which TCP connections fail or are slow",
    )
    add_paths(made, "paths")
    add_scope(made)
    made.add_json("print the rows of all answers as JSON (default: a sentence for each)")
    return made


def run(arguments: Sequence[str]) -> int:
    """Print what the answers say; return 1 if none could be given or records cannot be read."""
    args = parser().parse_intermixed_args(joined(arguments, TIMES))
    sections: list[Section] = []
    missing: dict[str, str] = {}
    missing_heads: list[AnswerHead] = []
    with ExitStack() as stack:
        catalogue = open_catalogue(
            args.paths or [STATE_DIRECTORY], stack, session=args.session, nearest=did_you_mean
        )
        chains = chains_of(catalogue, args, None)
        databases: list[Database] = []
        for step in QUESTIONS[args.question]:
            answer = answer_file.load(step.answer, answer_file.LOCAL)
            limit = {_LIMIT: str(_ROWS)} if _LIMIT in answer.head.parameter else {}
            values = values_of(answer.name, answer.head.parameter, {**step.parameters, **limit})
            try:
                _, database = prepare(answer.head, catalogue, chains.tables, args, stack)
            except NotRecorded as error:
                missing[step.answer] = str(error)
                missing_heads.append(answer.head)
                continue
            databases.append(database)
            rows = _rows(step, database.ask(answer.text, values))
            sections.append(Section(step, _command(step, args), rows))
        _print(args, sections, missing)
        complain_of_chains(chains, None)
        scans = chain.from_iterable(database.scans for database in databases)
        status = complain_of(catalogue, [*scans])
    if missing:
        needs = "; ".join(f"{name} needs {events}" for name, events in missing.items())
        told = recording_for(args.question, missing_heads)
        complain(f"no segment that was read has this: {needs}", *told)
    return status if sections else EXIT_FAILURE


def _rows(step: Step, answer: Answer) -> list[dict[str, Any]]:
    """Return the first rows that count."""
    rows = (
        dict(zip(answer.columns, map(json_value, row), strict=True))
        for row in islice(chain.from_iterable(answer.batches()), _ROWS)
    )
    return [row for row in rows if not step.above or (row.get(step.above) or 0) > 0]


def _line(step: Step, row: dict[str, Any]) -> str:
    """Return the sentence of a row; an answer of the host's own may lack a column."""
    texts = defaultdict(lambda: "-", {name: cell_text(value) for name, value in row.items()})
    texts["time"] = clock_text(texts["time"])
    who, *calls = texts["folded"].split(";")
    while calls and _OF_SCHEDULER in calls[-1]:
        calls.pop()
    texts["where"] = " < ".join([*reversed(calls[-_CALLS:]), who])
    return step.line.format_map(texts)


def _command(step: Step, args: argparse.Namespace) -> str:
    """Return the command line that finds the rows of a step."""
    words = ["collectord", "answer", step.answer]
    for key, value in step.parameters.items():
        words += ["--param", f"{key}={value}"]
    for option, time in (("--since", args.since), ("--until", args.until)):
        words += [option, time_text(time)] if time is not None else []
    words += ["--session", args.session] if args.session else []
    return shlex.join([*words, *map(str, args.paths)])


def _print(args: argparse.Namespace, sections: Sequence[Section], missing: dict[str, str]) -> None:
    if args.json:
        told = [section.to_json() for section in sections]
        print_json({"question": args.question, "sections": told, "not_recorded": missing})
        return
    for section in sections:
        say(f"{section.step.title}:")
        for row in section.rows:
            for line in wrapped(_line(section.step, row), first="  ", rest="      "):
                say(line)
        if not section.rows:
            say("  nothing")
        say(f"  $ {section.command}")
        say("")
