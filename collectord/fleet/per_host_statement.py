# SPDX-License-Identifier: Apache-2.0
"""Rewrites an SQL statement about one host so that it asks each of many hosts by itself.

A statement that was written for the records of one host pairs and counts them as if there were
no other. Here each part of it gets the column `host`: what it groups, orders within a window,
joins or looks for in a subquery is that of one host. So its rows are those that each host alone
would give, with the host before them; only orders with a limit are over all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlglot import exp

from collectord.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

HOST: Final = "host"
HOSTS: Final = "hosts"
# The names that the table of hosts and its columns have where labels are joined to a statement: a
# label may be called as a column is.
_LABELS: Final = "hosts_of_labels"
_LABEL: Final = "label {}"


def per_host_statement(
    tree: exp.Query, unlike: Collection[str], by: Sequence[str] = (HOST,), labels: str = HOSTS
) -> exp.Query:
    """Return a statement that asks each host by itself.

    Args:
        tree: the statement, which is changed.
        unlike: names of tables that are the same for all hosts, in lower case.
        by: what each row begins with, and is grouped by at the end if it is a group: labels of
            hosts; nothing for all hosts together.
        labels: name of the table that has them; a host may have several rows in it, and each row
            of the host is then there as often.

    Raises:
        UsageError: a part of the statement puts records of hosts together with others.
    """
    return _Lift(frozenset(unlike), tuple(by), labels).statement(tree)


class _Lift:
    """One walk through a statement."""

    def __init__(self, unlike: frozenset[str], by: tuple[str, ...], labels: str) -> None:
        self._unlike = unlike
        self._by = by
        self._table = labels

    def statement(self, tree: exp.Query) -> exp.Query:
        """Rewrite the whole statement."""
        known = self._with(tree, {})
        self._parts(tree, known, is_last=True)
        return tree

    def _with(self, node: exp.Expr, known: Mapping[str, bool]) -> dict[str, bool]:
        """Rewrite the named parts of a query, and return whether each name has hosts."""
        names = dict(known)
        with_ = node.args.get("with_")
        for part in with_.expressions if with_ is not None else ():
            names[part.alias.lower()] = self._query(part.this, names)
        return names

    def _query(self, node: exp.Expr, known: Mapping[str, bool]) -> bool:
        """Rewrite a query, and return whether its rows have a host."""
        return self._parts(node, self._with(node, known), is_last=False)

    def _parts(self, node: exp.Expr, known: Mapping[str, bool], *, is_last: bool) -> bool:
        if isinstance(node, exp.Subquery):
            return self._parts(node.this, self._with(node.this, known), is_last=is_last)
        if isinstance(node, exp.SetOperation):
            sides = [
                self._parts(side, self._with(side, known), is_last=is_last)
                for side in (node.this, node.expression)
            ]
            if sides[0] != sides[1]:
                raise _not_by_host("a UNION of rows of hosts and others")
            return sides[0]
        if not isinstance(node, exp.Select):
            raise _not_by_host(f"{node.key.upper()}")
        return self._select(node, known, is_last=is_last)

    def _select(self, select: exp.Select, known: Mapping[str, bool], *, is_last: bool) -> bool:
        host = self._join(select, known)
        self._subqueries(select, known, host)
        if host is None:
            return False
        is_labelled = is_last and self._by != (HOST,)
        keys = self._labels(select, host) if is_labelled else [(HOST, host)]
        self._windows(select, host, *(key for name, key in keys if name != HOST))
        self._group(select, [key for _, key in keys])
        if not any(one.is_star for one in select.expressions):
            shown = [exp.alias_(key.copy(), name, quoted=True) for name, key in keys]
            select.set("expressions", [*shown, *select.expressions])
        return True

    def _join(self, select: exp.Select, known: Mapping[str, bool]) -> exp.Column | None:
        """Join the tables of a SELECT by host; return the first host column, None without one."""
        host = self._source(select.args.get("from_"), known)
        for join in select.args.get("joins") or ():
            other = self._source(join, known)
            if other is None:
                continue
            if host is None:
                if join.side:
                    raise _not_by_host("an outer join of what has no host with what has one")
                host = other
                continue
            if join.args.get("using"):
                join.set("using", [*join.args["using"], exp.to_identifier(HOST, quoted=True)])
                continue
            same = exp.EQ(this=other.copy(), expression=host.copy())
            on = join.args.get("on")
            join.set("on", same if on is None else exp.and_(on, same))
            if on is None:
                join.set("kind", "INNER")
        return host

    def _source(self, node: exp.Expr | None, known: Mapping[str, bool]) -> exp.Column | None:
        """Return the column `host` of the table that FROM or a JOIN names; None if it has none."""
        source = node.this if node is not None else None
        if isinstance(source, exp.Subquery):
            has_host = self._query(source, known)
        elif isinstance(source, exp.Table):
            name = source.name.lower()
            has_host = known.get(
                name, name not in self._unlike and isinstance(source.this, exp.Identifier)
            )
        else:
            return None
        if not has_host:
            return None
        if not source.alias_or_name:
            source.set("alias", exp.TableAlias(this=exp.to_identifier("of_host")))
        return exp.column(HOST, table=source.alias_or_name, quoted=True)

    def _subqueries(
        self, select: exp.Select, known: Mapping[str, bool], host: exp.Column | None
    ) -> None:
        """Restrict the subqueries in expressions of a SELECT to the host of its row."""
        # By identity: two parts of a statement may have the same words.
        sources = {id(select.args.get("from_")), id(select.args.get("with_"))}
        sources |= {id(join.this) for join in select.args.get("joins") or ()}
        for node in select.walk(prune=lambda one: id(one) in sources or _is_inner(one, select)):
            if not _is_inner(node, select) or id(node) in sources:
                continue
            inner = node.this if isinstance(node, exp.Subquery) else node
            if not isinstance(inner, exp.Select):
                raise _not_by_host("a UNION in a subquery")
            names = self._with(inner, known)
            if host is not None:
                _tell_apart(inner, host.table)
            own = self._join(inner, names)
            self._subqueries(inner, names, own)
            if own is None:
                continue
            if host is None:
                raise _not_by_host("a subquery about hosts in a part that has none")
            self._windows(inner, own)
            inner.where(exp.EQ(this=own.copy(), expression=host.copy()), copy=False)

    @staticmethod
    def _windows(select: exp.Select, *whose: exp.Column) -> None:
        """Partition each window of a SELECT by host, and by the labels that are asked for."""
        named = {id(window) for window in select.args.get("windows") or ()}
        for window in _windows_of(select):
            if id(window) not in named and window.alias:  # by the name of one
                continue
            keys = [key.copy() for key in whose]
            window.set("partition_by", [*keys, *(window.args.get("partition_by") or ())])

    def _group(self, select: exp.Select, keys: Sequence[exp.Column]) -> None:
        """Group a SELECT that has aggregates by the columns of hosts as well."""
        group = select.args.get("group")
        if group is not None and group.args.get("all"):
            return
        if group is None and not _has_aggregates(select):
            return
        if keys:
            select.group_by(*(key.copy() for key in keys), copy=False)

    def _labels(self, select: exp.Select, host: exp.Column) -> list[tuple[str, exp.Column]]:
        """Join the labels of hosts to a SELECT, and return the labels that are asked for."""
        if any(name != HOST for name in self._by):
            on = exp.EQ(this=_label(HOST), expression=host.copy())
            labels = exp.select(
                *(
                    exp.alias_(exp.column(name, quoted=True), _LABEL.format(name), quoted=True)
                    for name in dict.fromkeys((HOST, *self._by))
                )
            ).from_(self._table)
            alias = exp.TableAlias(this=exp.to_identifier(_LABELS, quoted=True))
            table = exp.Subquery(this=labels, alias=alias)
            select.join(table, on=on, join_type="inner", copy=False)
        return [(name, host if name == HOST else _label(name)) for name in self._by]


def _label(name: str) -> exp.Column:
    return exp.column(_LABEL.format(name), table=_LABELS, quoted=True)


def _is_inner(node: exp.Expr, select: exp.Select) -> bool:
    return node is not select and isinstance(node, exp.Query)


def _tell_apart(inner: exp.Select, outer: str) -> None:
    """Rename the table that a subquery reads, if the outer query's table has the same name."""
    joins = inner.args.get("joins") or ()
    for node in filter(None, (inner.args.get("from_"), *joins)):
        source = node.this
        if source.alias_or_name != outer:
            continue
        other = f"{outer}_within"
        for column in inner.find_all(exp.Column):
            if column.table == outer:
                column.set("table", exp.to_identifier(other, quoted=True))
        source.set("alias", exp.TableAlias(this=exp.to_identifier(other, quoted=True)))


def _windows_of(select: exp.Select) -> list[exp.Expr]:
    """Return the windows of a SELECT, without those in its subqueries."""
    found = select.walk(prune=lambda node: _is_inner(node, select))
    return [node for node in found if isinstance(node, exp.Window)]


def _has_aggregates(select: exp.Select) -> bool:
    """Whether a SELECT has an aggregate, and so makes one row of all without GROUP BY."""
    places = [*select.expressions, select.args.get("having")]
    for place in filter(None, places):
        for node in place.walk(prune=lambda one: isinstance(one, exp.Window | exp.Query)):
            if isinstance(node, exp.AggFunc) and not isinstance(node.parent, exp.Window):
                return True
    return False


def _not_by_host(what: str) -> UsageError:
    return UsageError(
        f"{what} cannot be asked of each host by itself", hint="ask with `fleet query`"
    )
