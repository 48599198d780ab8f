# SPDX-License-Identifier: Apache-2.0
"""The hosts that an action of `fleet` asks: one group, or two that `--against` compares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from collectord.cli.output import complain
from collectord.cli.query_rows import cell_text, columns_of, fit_rows
from collectord.cli.text_table import Column, print_table
from collectord.fleet.choice_checks import no_host_of
from collectord.fleet.comparison import FORMS
from collectord.fleet.engines.place import open_store
from collectord.fleet.groups import Pair, groups_of
from collectord.fleet.omitted_hosts import HOSTS_NAMED
from collectord.fleet.per_host_statement import HOST
from collectord.fleet.selection import EVERYBODY, Selection, Wanted
from collectord.text.foreign import visible
from collectord.text.wording import counted, some_of

if TYPE_CHECKING:
    import argparse

    from collectord.fleet.groups import Groups
    from collectord.reader.sql import Answered

_ALL: Final = "all hosts"
_DECIMALS: Final = 3
# Columns of figures of two groups, behind those that say of what they are.
FIGURES: Final = (
    Column("FIGURE"),
    *(Column(title, "right") for title in ("GROUP", "AGAINST", "DIFFERENCE", "PER HOST")),
)
# Those of an answer's measures.
_MEASURES: Final = (
    Column("measure"),
    *(Column(title, "right") for title in ("group", "against", "difference", "ratio")),
)


def selection_of(args: argparse.Namespace) -> Selection:
    """Return what the options choose of the store: the hosts of both groups, if there are two."""
    wanted = Wanted(args.window, args.host, args.labels)
    if args.against is not None:
        labels = {**args.labels_against}
        host = labels.pop(HOST, EVERYBODY)
        wanted = wanted._replace(also=Wanted(args.window, host, labels))
    return Selection(open_store(args.store), wanted)


def compared_groups(selection: Selection, args: argparse.Namespace) -> Groups | None:
    """Return the groups that are compared, and None if there is one alone.

    Raises:
        UsageError: a group has no host.
        StoreError: the store cannot be read.
    """
    if args.against is None:
        return None
    return groups_of(selection, name_of(args), args.against)


def check_hosts(selection: Selection, args: argparse.Namespace) -> None:
    """See that the hosts that are chosen, by name or label, are some.

    Raises:
        UsageError: they are none; the hint has what there is.
        StoreError: the store cannot be read.
    """
    if (args.labels or args.host != EVERYBODY) and not selection.hosts:
        raise no_host_of(selection, name_of(args))


def name_of(args: argparse.Namespace) -> str:
    """Return the name of the hosts that are asked, without those they are compared with."""
    host = [] if args.host == EVERYBODY else [args.host]
    return ", ".join([*args.label, *host]) or _ALL


def complain_of_groups(groups: Groups, what: str) -> None:
    """Say how many hosts are compared.

    Args:
        groups: of the hosts.
        what: what figures are, such as "sums are per host".
    """
    told = " against ".join(
        f"{counted(len(group.hosts), 'host')} of {group.name}" for group in groups
    )
    complain(f"{told}; {what}")
    shared = groups.shared
    if shared:
        are, count = ("is", "counts") if len(shared) == 1 else ("are", "count")
        complain(f"{some_of(shared, HOSTS_NAMED)} {are} in both groups, and {count} in each")


def groups_json(groups: Groups) -> list[dict[str, Any]]:
    """Return the form of groups in JSON output."""
    return [{"name": group.name, "hosts": list(group.hosts)} for group in groups]


def pair_json(pair: Pair, per_host: Pair) -> dict[str, Any]:
    """Return the form of a figure of two groups in JSON output."""
    return {
        "group": pair.group,
        "against": pair.against,
        "difference": pair.difference,
        "per_host": {
            "group": per_host.group,
            "against": per_host.against,
            "difference": per_host.difference,
        },
    }


def print_compared(answer: Answered, keys: int) -> None:
    """Print rows of two groups: a line for each measure, behind the first columns, the keys."""
    measures = answer.columns[keys :: len(FORMS)]
    columns = [*columns_of(answer)[:keys], *_MEASURES]
    rows = []
    for batch in answer.batches():
        for row in batch:
            whose = [*map(cell_text, row[:keys])]
            for number, name in enumerate(measures):
                first = keys + number * len(FORMS)
                group, against, difference, ratio = row[first : first + len(FORMS)]
                figures = [*map(number_text, (group, against))]
                figures += [number_text(difference, signed=True), number_text(ratio)]
                rows.append([*(whose if number == 0 else [""] * keys), visible(name), *figures])
    print_table(columns, fit_rows(columns, rows) if rows else rows)


def figure_cells(name: str, pair: Pair, hosts: Pair | None = None) -> list[str]:
    """Return the cells of `FIGURES`.

    Args:
        name: of the figure.
        pair: the figure of both groups.
        hosts: their numbers of hosts; None: the figure is not per host.
    """
    per_host = "" if hosts is None else number_text(pair.per_host(hosts).difference, signed=True)
    return [name, *map(number_text, pair), number_text(pair.difference, signed=True), per_host]


def number_text(number: float | None, *, signed: bool = False) -> str:
    """Return a number with three decimals at most; "-" for one that is not known."""
    if number is None:
        return "-"
    rounded = round(number, _DECIMALS)
    text = f"{rounded:{'+' if signed and rounded else ''},.{_DECIMALS}f}"
    return text.rstrip("0").rstrip(".")
