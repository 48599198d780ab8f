# SPDX-License-Identifier: Apache-2.0
"""`fleet flame`: where time goes on many hosts, from the call chains that they have shipped."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from collectord.cli.fleet_groups import (
    check_hosts,
    compared_groups,
    complain_of_groups,
    name_of,
    selection_of,
)
from collectord.cli.fleet_query import complain_of, complain_of_shortfall
from collectord.cli.new_file import new_file
from collectord.cli.output import complain, say
from collectord.cli.stacks import chosen_form, write_stacks
from collectord.errors import UsageError
from collectord.fleet.choice_checks import check_labels, check_session
from collectord.fleet.engines import ENGINES
from collectord.fleet.engines.place import Place
from collectord.fleet.omitted_hosts import HOSTS_NAMED
from collectord.fleet.per_host_statement import HOST
from collectord.fleet.questions import Asking
from collectord.reader.embedded_db import literal
from collectord.reader.event_tables import FRAMES, STACKS
from collectord.reader.fixed_tables import FixedTable
from collectord.reader.flame import folded
from collectord.reader.flame.picture import Picture
from collectord.reader.symbols.frame import UNKNOWN, Frame, of_text
from collectord.text.foreign import visible
from collectord.text.wording import counted, some_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from collectord.fleet.groups import Groups
    from collectord.fleet.question import Question
    from collectord.fleet.selection import Selection

    _Stacks = Counter[tuple[Frame, ...]]

_COMM: Final = "comm"
# The columns that are read of tables, which need not be there.
_STACK: Final = {HOST: "VARCHAR", "event": "VARCHAR", "stack_id": "UBIGINT"}
_TABLES: Final = {
    FRAMES: FixedTable({**_STACK, "comm": "VARCHAR", "position": "UINTEGER"}),
    STACKS: FixedTable({**_STACK, "stack": "VARCHAR"}),
}
_UNIT: Final = "samples"


def flame(args: argparse.Namespace) -> int:
    """Count the stacks of hosts, and write them; return 1 if something could not be read.

    Having no samples is no failure, as for `collectord flame`.
    """
    form = chosen_form(args.output, compares=args.against is not None)
    selection = selection_of(args)
    groups = compared_groups(selection, args)
    if groups is None:
        check_hosts(selection, args)
    engine, place = ENGINES[args.engine], Place(selection.store, args.engine_address)
    asking = Asking(selection, place, engine, args.session)
    stacks, before = both = _stacks(selection, asking, args, groups)
    status = max(complain_of_shortfall(asking), complain_of(selection))
    if groups is not None:
        complain_of_groups(groups, "samples are those of all hosts of a group, not per host")
    picture = Picture(_title(args), _UNIT, stacks, None if groups is None else before)
    if groups is None and not stacks:
        complain("there are no samples in what was read")
    for group, found in zip(groups or (), both, strict=False):
        if not found:
            why = _why_without(asking.without_records(), group.hosts)
            complain(f"there are no samples of {group.name} in what was read{why}")
    if args.output is None:
        for line in folded.lines(picture):
            say(line)
        return status
    with new_file(args.output) as write:
        write_stacks(picture, form, write)
    say(f"wrote {counted(picture.total, 'sample')} to {args.output}")
    return status


def _stacks(
    selection: Selection, asking: Asking, args: argparse.Namespace, groups: Groups | None
) -> tuple[_Stacks, _Stacks]:
    """Return the samples of hosts by their stacks, and those of the hosts to compare with."""
    if selection.is_small:
        check_session(selection, args.session)
    found: tuple[_Stacks, _Stacks] = Counter(), Counter()
    question = asking.of_statement("SELECT DISTINCT event FROM frames WHERE position = 0", _TABLES)
    event = _event(question, selection, asking, args)
    if event is None:
        return found
    by = args.by or _COMM
    is_named = any(_COMM in one.columns for one in question.objects)  # unless it is redacted
    comm = _COMM if is_named else f"CAST(NULL AS VARCHAR) AS {_COMM}"
    counts = (
        f"SELECT {HOST}, {comm}, stack_id, count(*) AS samples FROM frames "  # noqa: S608  # literal
        f"WHERE position = 0 AND event = {literal(event)} GROUP BY {HOST}, comm, stack_id"
    )
    texts = (
        "SELECT stack_id, any_value(stack) AS stack FROM stacks "  # noqa: S608
        f"WHERE event = {literal(event)} GROUP BY stack_id"
    )
    question = asking.of_statement(
        f"WITH counted AS ({counts}), texts AS ({texts}) "  # noqa: S608
        f"SELECT {HOST}, comm, stack, sum(samples)::BIGINT FROM counted "
        f"LEFT JOIN texts ON texts.stack_id = counted.stack_id GROUP BY {HOST}, comm, stack",
        _TABLES,
    )
    labels: Mapping[str, Mapping[str, str]] = {}
    if by not in {_COMM, HOST}:
        check_labels(selection, (by,))
        labels = selection.labels
    with ExitStack() as stack:
        rows = ENGINES[args.engine].ask(question, asking.place, asking.shape(question), stack)
        for batch in rows.batches():
            for host, comm, text, count in batch:
                outer = [visible(comm or UNKNOWN).replace(";", ":")]
                if by == HOST:
                    outer.insert(0, visible(host))
                elif by != _COMM:
                    outer.insert(0, visible(labels.get(host, {}).get(by, UNKNOWN)))
                frames = [Frame(word) for word in outer]
                frames += map(of_text, visible(text or UNKNOWN).split(";"))
                for side in [0] if groups is None else groups.sides_of(host):
                    found[side][tuple(frames)] += count
    return found


def _event(
    question: Question, selection: Selection, asking: Asking, args: argparse.Namespace
) -> str | None:
    """Return the event whose samples are counted, by the question of all; None without any."""
    if FRAMES in question.rows and not selection.gone:
        why = _why_without(asking.without_records(), selection.hosts)
        hint = "; `call_graph` in a perf source records them"
        complain(f"no host that is asked has shipped call chains{why or hint}")
    with ExitStack() as stack:
        rows = ENGINES[args.engine].ask(question, asking.place, asking.shape(question), stack)
        events: list[str] = sorted(event for batch in rows.batches() for (event,) in batch)
    if not events:
        return None
    if args.event is None:
        chosen = [one for one in events if ":" not in one] or events
    else:
        chosen = [one for one in events if _matches(one, args.event)]
    if len(chosen) != 1:
        told = ", ".join(chosen or events)
        raise UsageError(
            f"samples of one event can be counted, and there are: {told}", hint="choose by -e"
        )
    return chosen[0]


def _why_without(unshipped: AbstractSet[str], hosts: Sequence[str]) -> str:
    """Say that hosts have shipped no records, which is why there is nothing of them; else ""."""
    named = sorted(unshipped & {*hosts})
    return f": no record of {some_of(named, HOSTS_NAMED)} was shipped" if named else ""


def _matches(event: str, glob: str) -> bool:
    return any(fnmatchcase(name, glob) for name in (event, event.rpartition(":")[2]))


def _title(args: argparse.Namespace) -> str:
    title = f"{args.session or 'samples'} of {name_of(args)}"
    return visible(f"{title}, against {args.against}" if args.against is not None else title)
