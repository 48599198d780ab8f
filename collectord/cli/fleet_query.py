# SPDX-License-Identifier: Apache-2.0
"""`fleet query` and `fleet answer`: a statement over the records of many hosts."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK, answer_file
from collectord.cli.answer_rows import print_answer
from collectord.cli.fleet_groups import (
    check_hosts,
    compared_groups,
    complain_of_groups,
    print_compared,
    selection_of,
)
from collectord.cli.new_file import check_is_new
from collectord.cli.output import complain, say
from collectord.cli.parser import named_values
from collectord.cli.query_rows import print_csv, print_objects, print_rows, print_schema
from collectord.cli.text_table import Column, print_table
from collectord.errors import ConfigError, UsageError
from collectord.fleet.choice_checks import check_labels, check_session
from collectord.fleet.clock_bound import clock_bound
from collectord.fleet.comparison import NO_LIMIT, Columns, NoColumn
from collectord.fleet.engines import ENGINES, duck
from collectord.fleet.engines.place import Place
from collectord.fleet.omitted_hosts import HOSTS_NAMED
from collectord.fleet.per_host_statement import HOST
from collectord.fleet.questions import AskedAnswer, Asking
from collectord.fleet.required_events import NotShipped, RequiredEvents
from collectord.programs.parameter import values_of
from collectord.text.units import NS_PER_SECOND
from collectord.text.wording import counted, some_of, were

if TYPE_CHECKING:
    import argparse
    from collections import Counter
    from collections.abc import Callable

    from collectord.cli.answer_file import AnswerFile
    from collectord.fleet.comparison import Comparison
    from collectord.fleet.groups import Groups
    from collectord.fleet.omitted_hosts import OmittedHosts
    from collectord.fleet.question import Question
    from collectord.fleet.selection import Selection
    from collectord.fleet.shortfall import Shortfall
    from collectord.reader.sql import Answered

_ALL: Final = "all"
# The parameter of answers with the most rows.
_LIMIT: Final = "limit"
# Times that hosts have recorded are told if one is longer by more than this.
_ALIKE: Final = 1.1
_DAMAGED_NAMED: Final = 4
_LEDGER: Final = "; `collectord fleet ledger` tells when and why"


def query(args: argparse.Namespace) -> int:
    """Carry out a statement, or list the tables."""
    selection = selection_of(args)
    asking = _asking(selection, args)
    if args.schema:
        print_schema([*asking.described()], args)
        return complain_of(selection)
    if not args.words:
        raise UsageError("no statement is given", hint="see `collectord fleet --help`")
    check_hosts(selection, args)
    if selection.is_small:
        check_session(selection, args.session)
    question = asking.of_statement(args.words[0])
    _give(asking, question, args, print_rows)
    return _end(selection, asking, args)


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
    if args.by is not None and args.against is not None:
        raise UsageError("--by and --against do not go together", hint="choose hosts by --label")
    by = args.by or HOST
    keys = () if by == _ALL else tuple(by.split(","))
    selection = selection_of(args)
    asking = _asking(selection, args)
    head = one.head
    needs = RequiredEvents(head.needs, head.optional, head.columns, head.call_chains)
    asked = AskedAnswer(one.text, needs, values)
    groups = compared_groups(selection, args)
    if groups is None:
        check_hosts(selection, args)
        check_labels(selection, keys)
    check_session(selection, args.session)
    try:
        if groups is None:
            question = asking.of_answer(*asked, keys)
            _give(
                asking,
                question,
                args,
                lambda rows: print_answer(rows, one.head.render, whose=len(keys)),
            )
        else:
            _compare(asking, one, asked, groups, args)
    except NotShipped as error:
        complain(f"{one.name} needs {error.message}")
        _complain_of_unshipped(asking.shortfall())
        return max(EXIT_FAILURE, complain_of(selection))
    if groups is None:
        _complain_of_left_out(asking.left_out, one.name)
    return _end(selection, asking, args)


def _complain_of_left_out(left_out: OmittedHosts, name: str) -> None:
    """Say which hosts have no rows in an answer, as nothing of it was recorded, or shipped."""
    events = " and ".join(left_out.events)
    for hosts, words in (
        (left_out.lacking, f"not recorded {events}, by which {name} is given"),
        (left_out.unshipped, f"recorded what {name} needs, and not shipped the records"),
    ):
        if hosts:
            have = "has" if len(hosts) == 1 else "have"
            complain(
                f"{counted(len(hosts), 'host')} {have} {words}, and {were(len(hosts))} left out: "
                f"{some_of(sorted(hosts), HOSTS_NAMED)}"
            )


def _compare(
    asking: Asking,
    one: AnswerFile,
    asked: AskedAnswer,
    groups: Groups,
    args: argparse.Namespace,
) -> None:
    """Give the difference of an answer between two groups of hosts."""
    columns = _columns_of(one)
    limit = asked.values.get(_LIMIT)
    if limit is not None:
        asked = asked._replace(values={**asked.values, _LIMIT: NO_LIMIT})
    try:
        made = asking.of_comparison(asked, columns, groups, None if limit is None else int(limit))
    except NoColumn as error:
        raise ConfigError(error.message, path=one.path, key="compare", hint=error.hint) from error
    if not args.show:
        have = "has" if made.left_out == 1 else "have"
        without = f"; {made.left_out:,} more {have} not recorded or shipped what {one.name} needs"
        complain_of_groups(made.groups, f"sums are per host{without if made.left_out else ''}")
        _complain_of_times(made)
    _give(asking, made.question, args, lambda rows: print_compared(rows, len(columns.keys)))


def _complain_of_times(made: Comparison) -> None:
    """Say that hosts of one group have recorded for longer than those of the other."""
    times = [ns / NS_PER_SECOND for ns in made.recorded_ns]
    if max(times) <= min(times) * _ALIKE:
        return
    told = " and ".join(
        f"{_seconds_text(seconds)} s each in {group.name}"
        for group, seconds in zip(made.groups, times, strict=True)
    )
    complain(f"hosts have recorded for {told}: sums are of all of that time")


def _seconds_text(seconds: float) -> str:
    """Return seconds with three significant digits or all before the point, as short as can be."""
    decimals = max(2 - math.floor(math.log10(seconds)), 0)
    text = f"{seconds:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def _columns_of(one: AnswerFile) -> Columns:
    """Return the columns of an answer that are compared. Raises UsageError if it names none."""
    compare = one.head.compare
    if compare is None:
        raise UsageError(
            f"{one.name} does not say which rows of two hosts are of the same thing",
            hint=f"[compare] in the head of {one.path} names its keys and measures",
        )
    return Columns.of(compare.keys, compare.measures)


def complain_of(selection: Selection) -> int:
    """Report commits and objects that cannot be read, and return the exit status."""
    for what, lacks, errors in (
        ("commit", "nothing tells what its segment lacks", selection.damaged),
        ("object", "its records were left out", selection.gone),
    ):
        for error in [*errors.values()][:_DAMAGED_NAMED]:
            complain(f"{lacks}: {error}")
        more = len(errors) - _DAMAGED_NAMED
        if more > 0:
            complain(f"{counted(more, f'more {what}')} cannot be read")
    return EXIT_FAILURE if selection.damaged or selection.gone else EXIT_OK


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
        complain(f"wrote {counted(rows, 'row')} to {args.parquet}")
        return
    shape = asking.shape(question)
    form = print_objects if args.json else print_csv if args.csv else show
    with ExitStack() as stack:
        form(engine.ask(question, place, shape, stack))


def _end(selection: Selection, asking: Asking, args: argparse.Namespace) -> int:
    """Say what there is to know of a result, and return the exit status."""
    if asking.is_ordered and len(selection.hosts) > 1:
        for words in clock_bound(told.commit for told in selection.commits).words():
            complain(words)
    chainless = sorted(asking.left_out.chainless)
    if chainless:
        complain(
            f"records of {counted(len(chainless), 'host')} have no call chains, and were left "
            f"out: {some_of(chainless, HOSTS_NAMED)}"
        )
    status = EXIT_OK if args.show else complain_of_shortfall(asking)
    return max(status, complain_of(selection))


def complain_of_shortfall(asking: Asking) -> int:
    """Say how much of what was read is missing, and on which hosts most of it.

    Returns:
        The exit status: losses are no failure, but it is one if the store lacks what was recorded.
    """
    found = asking.shortfall()
    if found is None:
        complain(
            "whether records were lost was not looked at in so many segments"
            "; `collectord fleet ledger` tells it"
        )
        return EXIT_OK
    for (how, unit), by_host in found.lost.items():
        lost = by_host.total()
        complain(
            f"{counted(lost, unit.removesuffix('s'))} of {counted(len(by_host), 'host')} "
            f"{were(lost)} {how} in what was read: {_most(by_host)}{_LEDGER}"
        )
    if found.gaps:
        gaps = found.gaps.total()
        complain(
            f"there {'is' if gaps == 1 else 'are'} {counted(gaps, 'gap')} in what "
            f"{counted(len(found.gaps), 'host')} recorded: {_most(found.gaps)}{_LEDGER}"
        )
    return _complain_of_unshipped(found)


def _complain_of_unshipped(found: Shortfall | None) -> int:
    """Say of how many segments the store has no records; return the status.

    It is a failure only if the store should have them.
    """
    if found is None:
        return EXIT_OK
    for by_host, why, where in (
        (found.withheld, "as their hosts are configured", ""),
        (found.without_rows, "though they should be", _LEDGER),
    ):
        if by_host:
            complain(
                f"the records of {counted(by_host.total(), 'segment')} of "
                f"{counted(len(by_host), 'host')} were not shipped, {why}: "
                f"{_most(by_host)}{where}"
            )
    return EXIT_FAILURE if found.without_rows else EXIT_OK


def _most(by_host: Counter[str]) -> str:
    """Return the hosts with the most of something, each with its number."""
    ordered = sorted(by_host.items(), key=lambda told: (-told[1], told[0]))
    return some_of([f"{host} {count:,}" for host, count in ordered], HOSTS_NAMED)
