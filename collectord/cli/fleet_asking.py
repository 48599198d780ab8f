# SPDX-License-Identifier: Apache-2.0
"""`fleet query` and `fleet answer`: a statement over the records of many hosts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK, answer_file
from collectord.cli.answer_rows import print_answer
from collectord.cli.new_file import check_is_new
from collectord.cli.output import Column, complain, print_json, print_table, say
from collectord.cli.parser import named_values
from collectord.cli.query_rows import print_csv, print_objects, print_rows
from collectord.errors import UsageError
from collectord.fleet.clock_bound import clock_bound
from collectord.fleet.engines import ENGINES, duck
from collectord.fleet.engines.place import Place, open_store
from collectord.fleet.lift import HOST
from collectord.fleet.questions import Asking, Needs, NotShipped
from collectord.fleet.selection import Selection, Wanted
from collectord.programs.parameter import values_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from collectord.fleet.question import Question
    from collectord.reader.sql import Answered

_ALL: Final = "all"
_DAMAGED_NAMED: Final = 4


def selection_of(args: argparse.Namespace) -> Selection:
    """Return what the options choose of the store."""
    return Selection(open_store(args.store), Wanted(args.window, args.host, args.labels))


def query(args: argparse.Namespace) -> int:
    """Carry out a statement, or list the tables."""
    selection = selection_of(args)
    asking = _asking(selection, args)
    if args.schema:
        rows = [*asking.described()]
        if args.json:
            keys = ("table", "column", "type")
            print_json({"columns": [dict(zip(keys, row, strict=True)) for row in rows]})
        else:
            print_table((Column("TABLE"), Column("COLUMN"), Column("TYPE")), rows)
        return complain_of(selection)
    if not args.words:
        raise UsageError("no statement is given", hint="see `collectord fleet --help`")
    question = asking.of_statement(args.words[0])
    _give(asking, question, args, print_rows)
    return _end(selection, asking)


def answer(args: argparse.Namespace) -> int:
    """Give an answer for each host; without a name, list them."""
    if not args.words:
        found = answer_file.load_all(args.answer_dir)
        rows = [
            (name, one.head.summary)
            for name, one in found.items()
            if isinstance(one, answer_file.AnswerFile)
        ]
        print_table((Column("ANSWER"), Column("TELLS")), rows)
        return EXIT_OK
    one = answer_file.load(args.words[0], args.answer_dir)
    values = values_of(one.name, one.head.parameter, named_values("--param", args.param))
    by = args.by or HOST
    keys = () if by == _ALL else tuple(by.split(","))
    selection = selection_of(args)
    asking = _asking(selection, args)
    needs = Needs(one.head.needs, one.head.optional, one.head.columns)
    try:
        question = asking.of_answer(one.text, needs, values, keys)
    except NotShipped as error:
        complain(f"{one.name} needs {error.message}")
        return max(EXIT_FAILURE, complain_of(selection))
    render = one.head.render
    _give(asking, question, args, lambda rows: print_answer(rows, render, whose=len(keys)))
    return _end(selection, asking)


def complain_of(selection: Selection) -> int:
    """Report commits that cannot be read, and return the exit status."""
    for error in [*selection.damaged.values()][:_DAMAGED_NAMED]:
        complain(f"its records were left out: {error}")
    more = len(selection.damaged) - _DAMAGED_NAMED
    if more > 0:
        complain(f"{more:,} more commits cannot be read")
    return EXIT_FAILURE if selection.damaged else EXIT_OK


def _asking(selection: Selection, args: argparse.Namespace) -> Asking:
    place = Place(selection.store, args.engine_address)
    return Asking(selection, place, ENGINES[args.engine], args.session)


def _give(
    asking: Asking,
    question: Question,
    args: argparse.Namespace,
    show: Callable[[Answered], None],
) -> None:
    """Carry a question out, and write the result as the options say."""
    engine, place = ENGINES[args.engine], asking.place
    if args.show:
        say(engine.text_of(question, place))
        return
    if args.parquet is not None:
        check_is_new(args.parquet)
        with ExitStack() as stack:
            rows = duck.write(question, place, str(args.parquet.absolute()), stack)
        complain(f"wrote {rows:,} rows to {args.parquet}")
        return
    shape = asking.shape(question)
    form = print_objects if args.json else print_csv if args.csv else show
    with ExitStack() as stack:
        form(engine.ask(question, place, shape, stack))


def _end(selection: Selection, asking: Asking) -> int:
    """Say what there is to know of a result, and return the exit status."""
    if asking.is_ordered and len(selection.hosts) > 1:
        for words in clock_bound(told.commit for told in selection.commits).words():
            complain(words)
    return complain_of(selection)
