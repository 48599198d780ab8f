# SPDX-License-Identifier: Apache-2.0
"""Turns an answer's rows of the hosts of two groups into one row for each key, with differences.

The rows are those that each host alone would give, without the answer's own limit. Those of a
group are put together by key: sums are divided by the hosts of the group, so groups of different
sizes can be compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

import sqlglot
from sqlglot import exp

from collectord.errors import UsageError
from collectord.fleet.dialect import DUCKDB, number_of
from collectord.fleet.per_host_statement import HOST
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.fleet.groups import Groups
    from collectord.fleet.question import Question

# The table of {host, number of its group}, and the column that rows have from it.
GROUPS: Final = "groups_of_hosts"
GROUP: Final = "group_of_host"
# The ends of the names of the columns of each measure, in this order.
FORMS: Final = ("", "_against", "_difference", "_ratio")
# All engines have this number, and as a parameter it leaves nothing out.
NO_LIMIT: Final = (1 << 31) - 1
# The measure that is the number of rows, and no column of the statement.
ROWS: Final = "rows"
_ROWS: Final = "rows_of_groups"
_SUMS: Final = "sums_of_groups"
_DECIMALS: Final = 3


class Measure(NamedTuple):
    """A column whose values of two groups are compared.

    Attributes:
        name: of the column.
        how: the values of a key are put together: sum or rows (their number), each per host; max;
            mean.
        weight: of a mean: the column with how many each value is the mean of.
    """

    name: str
    how: str
    weight: str = ""


class Columns(NamedTuple):
    """The columns of an answer by which two groups are compared.

    Attributes:
        keys: rows with the same values are of the same thing on all hosts.
        measures: that are compared; rows are in the order of the first one's difference.
    """

    keys: Sequence[str]
    measures: Sequence[Measure]

    @classmethod
    def of(cls, keys: Sequence[str], measures: Mapping[str, str]) -> Self:
        """Return columns by their names; `measures` has words such as "mean by turns"."""
        words = ((name, how.partition(" by ")) for name, how in measures.items())
        return cls(keys, [Measure(name, how, weight) for name, (how, _, weight) in words])

    @property
    def names(self) -> list[str]:
        """All columns that the statement must have."""
        read = [
            name for one in self.measures if one.how != ROWS for name in (one.name, one.weight)
        ]
        return [*self.keys, *filter(None, read)]

    def check(self, known: Sequence[str]) -> None:
        """Raise NoColumn for a column that is not among those of the statement."""
        lower = {name.lower() for name in known}
        for name in self.names:
            if name not in lower:
                near = did_you_mean(name, known)
                there = f"its columns are {', '.join(known)}"
                raise NoColumn(
                    f"the statement has no column {name}, which is compared",
                    hint=f"{near} {there}" if near else there,
                )


class Comparison(NamedTuple):
    """The question how an answer differs between two groups of hosts.

    Attributes:
        groups: the hosts that have recorded what it reads for some of the time, by whose number
            sums are divided.
        recorded_ns: for how long a host of each group has, in the mean.
        left_out: the number of those that have not.
    """

    question: Question
    groups: Groups
    recorded_ns: tuple[float, float]
    left_out: int


class NoColumn(UsageError):
    """A column by which groups are to be compared is none of the statement's."""


def compared(
    tree: exp.Query, columns: Columns, hosts: tuple[int, int], limit: int | None
) -> exp.Query:
    """Return a statement with a row for each key, in the order of the size of the difference.

    Args:
        tree: the answer's statement, whose rows have `GROUP`, 0 or 1; it is changed.
        columns: that are compared.
        hosts: the number of each group's hosts.
        limit: the most rows; None: as many as the answer itself has.
    """
    last = tree.args.get("limit")
    if limit is None and last is not None:
        limit = number_of(last.expression)
    for part in ("order", "limit", "offset"):
        tree.set(part, None)
    keys = ", ".join(map(_quoted, columns.keys))
    sums = [
        f"{_value(measure, side, hosts[side])} AS {_cell(number, side)}"
        for number, measure in enumerate(columns.measures)
        for side in range(len(hosts))
    ]
    shown = [
        f"{value} AS {_quoted(measure.name + form)}"
        for number, measure in enumerate(columns.measures)
        for form, value in zip(FORMS, _forms(number), strict=True)
    ]
    first = f"coalesce({_cell(0, 0)}, 0) - coalesce({_cell(0, 1)}, 0)"
    # ClickHouse drops a column that nothing reads, though a subquery about the host needs it.
    of_hosts = f"HAVING max({HOST}) IS NOT NULL"
    of_keys = f"SELECT {keys}, {', '.join(sums)} FROM {_ROWS} GROUP BY {keys} {of_hosts}"  # noqa: S608  # quoted
    text = (
        f"WITH {_SUMS} AS ({of_keys}) SELECT {keys}, {', '.join(shown)} FROM {_SUMS} "  # noqa: S608
        f"ORDER BY abs({_rounded(first)}) DESC, {keys}"
        f"{'' if limit is None else f' LIMIT {limit:d}'}"
    )
    made = sqlglot.parse_one(text, read=DUCKDB)
    assert isinstance(made, exp.Query)  # noqa: S101  # see above
    inner = tree.args.get("with_")
    tree.set("with_", None)
    rows = exp.CTE(this=tree, alias=exp.TableAlias(this=exp.to_identifier(_ROWS)))
    with_ = made.args["with_"]
    before = [] if inner is None else inner.expressions
    with_.set("expressions", [*before, rows, *with_.expressions])
    if inner is not None:
        with_.set("recursive", inner.args.get("recursive"))
    return made


def _value(measure: Measure, side: int, hosts: int) -> str:
    """Return a measure of a group's rows of one key."""

    def total(value: str) -> str:
        return f"sum(CASE WHEN {GROUP} = {side} THEN {value} END)"

    value = f"CAST({_quoted(measure.name)} AS DOUBLE)"
    rows = f"sum(CASE WHEN {GROUP} = {side} THEN 1 ELSE 0 END)"
    if measure.how == ROWS:
        return f"CAST({rows} AS DOUBLE) / {hosts}"
    if measure.how == "max":
        return f"max(CASE WHEN {GROUP} = {side} THEN {value} END)"
    if measure.how == "mean":
        weight = f"CAST({_quoted(measure.weight)} AS DOUBLE)"
        return f"{total(f'{value} * {weight}')} / nullif({total(weight)}, 0)"
    # A group without a row has none of it; of rows without a value nothing is known.
    return f"CASE WHEN {rows} = 0 THEN CAST(0 AS DOUBLE) ELSE {total(value)} / {hosts} END"


def _forms(number: int) -> list[str]:
    """Return the values of a measure: of each group, their difference, and their ratio."""
    group, against = _cell(number, 0), _cell(number, 1)
    return [
        _rounded(value)
        for value in (group, against, f"{group} - {against}", f"{group} / nullif({against}, 0)")
    ]


def _cell(number: int, side: int) -> str:
    return f"measure_{number}_{side}"


def _rounded(value: str) -> str:
    return f"round({value}, {_DECIMALS})"


def _quoted(name: str) -> str:
    return exp.to_identifier(name, quoted=True).sql(DUCKDB)
