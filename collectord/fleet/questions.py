# SPDX-License-Identifier: Apache-2.0
"""Makes what an engine is asked: a statement, or an answer, with the tables that it names."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import UsageError
from collectord.fleet import dialect, sql_tree, tables
from collectord.fleet.comparison import GROUP, GROUPS, Comparison, compared
from collectord.fleet.engines import duck
from collectord.fleet.omitted_hosts import HOSTS_NAMED, OmittedHosts
from collectord.fleet.per_host_statement import HOST, HOSTS, per_host_statement
from collectord.fleet.question import Chosen, Objects, Question
from collectord.fleet.recordings import Recordings
from collectord.fleet.required_events import NotShipped
from collectord.fleet.shortfall import shortfall
from collectord.fleet.stored_events import StoredEvents, plain_name
from collectord.reader.event_file import Window
from collectord.reader.event_tables import (
    ERRNO_NAMES,
    GAPS,
    STACKS,
    SYSCALL_NAMES,
)
from collectord.reader.fixed_tables import FixedTable, fixed_tables
from collectord.reader.sql import Database
from collectord.text.nearest import did_you_mean
from collectord.text.wording import some_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from sqlglot import exp

    from collectord.errors import CollectordError
    from collectord.fleet.comparison import Columns
    from collectord.fleet.engines import Engine
    from collectord.fleet.engines.place import Place
    from collectord.fleet.groups import Group, Groups
    from collectord.fleet.required_events import RequiredEvents
    from collectord.fleet.selection import Selection
    from collectord.fleet.shortfall import Shortfall
    from collectord.fleet.store_keys import CommitKey

# The same for all hosts.
_UNLIKE: Final = (SYSCALL_NAMES, ERRNO_NAMES)


class AskedAnswer(NamedTuple):
    """An answer that is asked for: its statement, what it needs, and values of its parameters."""

    sql: str
    head: RequiredEvents
    values: Mapping[str, int | str]


class Asking:
    """A store, an engine, and what is asked of them.

    Attributes:
        place: of the store and the engine.
        is_ordered: the last question orders records of hosts by time.
        left_out: the hosts that an answer leaves out.
        read: names of the events and other tables of which it reads records.
    """

    def __init__(
        self, selection: Selection, place: Place, engine: Engine, session: str | None = None
    ) -> None:
        self._selection = selection
        self.place = place
        self._events = StoredEvents(selection, place, engine)
        self._chosen = Chosen(selection.wanted.window, session)
        self.is_ordered = False
        self.left_out = OmittedHosts()
        self.read: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The names of all tables. Raises StoreError."""
        return sorted({*self._events.names, *tables.NAMES, *_UNLIKE})

    def described(self) -> Iterator[tuple[str, str, str]]:
        """Yield {table, column, type} of all tables. Raises StoreError."""
        for name, event in self._events.names.items():
            found = self._events.table(event, name)
            if found is None:
                continue
            for column, kind in {**found.columns, **found.of_keys}.items():
                yield found.name, column, kind
        for column, kind in tables.made(HOSTS, self._selection).columns.items():
            yield HOSTS, column, kind
        yield from tables.described()
        for name in _UNLIKE:
            for column, kind in _names_table(name).columns.items():
                yield name, column, kind

    def of_statement(self, sql: str, optional: Mapping[str, FixedTable] | None = None) -> Question:
        """Return the question of a statement.

        Args:
            sql: the statement.
            optional: tables that have no rows where no object of theirs is there, by name.

        Raises:
            UsageError: it is not a SELECT, or names a table that there is not.
            StoreError: the store cannot be read, or all objects of a table are gone.
        """
        tree = sql_tree.parsed(sql)
        known = {name.lower(): (event, name) for name, event in self._events.names.items()}
        objects: list[Objects] = []
        rows: dict[str, FixedTable] = {}
        names: dict[str, str] = {}
        empty = optional or {}
        for name in sorted(sql_tree.tables_of(tree)):
            key = name.lower()
            event, names[key] = known.get(key, (name, key))
            if key in tables.NAMES:
                rows[key] = tables.made(key, self._selection)
            elif key in _UNLIKE:
                rows[key] = _names_table(key)
            else:
                found = self._events.table(event, names[key]) if key in known else None
                if self._selection.is_small:
                    self._events.note_gone(event, found, self._recordings)
                if found is not None:
                    objects.append(found)
                elif key in empty:
                    rows[key] = empty[key]
                else:
                    raise self._without(name, is_known=key in known)
        self.read = {one.event for one in objects} | (rows.keys() & empty.keys())
        self.is_ordered = bool(objects) and sql_tree.orders_by_time(tree)
        tree = sql_tree.with_names(tree, names)
        return Question(tree, sql, objects, rows, self._chosen)

    def _without(self, name: str, *, is_known: bool) -> CollectordError:
        """Return the error that a statement names a table without an object."""
        for gone in self._selection.gone.values():
            return gone
        if is_known:
            return UsageError(
                f"no object of {name} is in the time and of the hosts that are asked for"
            )
        hint = did_you_mean(name, self.names) or "`collectord fleet query --schema` has all"
        return UsageError(f"there is no table {name}", hint=hint)

    def of_answer(
        self,
        sql: str,
        head: RequiredEvents,
        values: Mapping[str, int | str],
        by: Sequence[str],
    ) -> Question:
        """Return the question of an answer, which is asked of each host by itself.

        Raises:
            NotShipped: no list of its events is in the store.
            UsageError: two sessions of a host recorded an event at the same time.
            StoreError: the store cannot be read.
        """
        need, hosts = self._need_of(head)
        asked, rows = self._tables_of(head, need, hosts)
        tree = per_host_statement(sql_tree.parsed(sql, values), _UNLIKE, by)
        return self._question(tree, asked, rows)

    def of_comparison(
        self, asked: AskedAnswer, columns: Columns, groups: Groups, limit: int | None
    ) -> Comparison:
        """Return the question how an answer differs between two groups of hosts.

        Args:
            asked: the answer, whose own limit leaves nothing out.
            columns: of the answer, that are compared.
            groups: of the hosts.
            limit: the most rows; None: as many as the answer itself has.

        Raises:
            NotShipped: as `of_answer`, or no host of a group has recorded what it reads.
            NoColumn: it has not all columns.
            UsageError, StoreError: as `of_answer`.
        """
        need, hosts = self._need_of(asked.head, groups)
        objects, rows = self._tables_of(asked.head, need, hosts, self._selection.read)
        recorded_ns = self._recordings.times_ns(need, self._chosen.window)
        compared_hosts = recorded_ns.keys() | self.left_out.gone  # those are told by themselves
        left_out = sum(host not in compared_hosts for group in groups for host in group.hosts)
        hosts = recorded_ns.keys() - self.left_out.gone - self.left_out.chainless
        for group in groups:
            if hosts.isdisjoint(group.hosts):
                why = self.left_out.of_group(group)
                raise NotShipped(f"{asked.head.words}, and {why}")
        groups = groups.among(hosts)
        rows[GROUPS] = FixedTable(
            {HOST: "VARCHAR", GROUP: "INTEGER"},
            [(host, side) for side, group in enumerate(groups) for host in group.hosts],
        )
        tree = per_host_statement(
            sql_tree.parsed(asked.sql, asked.values), _UNLIKE, (HOST, GROUP), GROUPS
        )
        names = [name for name, _ in self.shape(self._question(tree, objects, rows))]
        columns.check([name for name in names if name not in {HOST, GROUP}])
        numbers = len(groups.group.hosts), len(groups.against.hosts)
        question = self._question(compared(tree, columns, numbers, limit), objects, rows)
        each_ns = [
            sum(recorded_ns[host] for host in group.hosts) / len(group.hosts) for group in groups
        ]
        return Comparison(question, groups, (each_ns[0], each_ns[1]), left_out)

    def _tables_of(
        self,
        head: RequiredEvents,
        need: Sequence[str],
        hosts: Collection[str],
        segments: Collection[CommitKey] | None = None,
    ) -> tuple[list[Objects], dict[str, FixedTable]]:
        """Return the tables of what an answer reads of some hosts, which have all that it needs.

        Args:
            head: the needs of the answer.
            need: the list of its events by which it is given.
            hosts: the hosts.
            segments: only records of these; None: of all.

        Raises as `of_answer`.
        """
        recorded = self._recordings.among(head.events)
        read = [event for event in (*need, *head.optional) if event in recorded]
        told = {event: self._events.of_event(event, self._recordings) for event in read}
        # A host alone refuses to answer from a part of what is needed.
        own = {event: one.of(hosts, segments) for event, one in told.items() if one is not None}
        found = {event: one for event, one in own.items() if one.keys}
        self.read = {*read}
        gone = {
            event: self._events.note_gone(event, one, self._recordings)
            for event, one in told.items()
        }
        self.left_out.gone = {host for event in need for host in gone[event]}
        for event in need:
            if event not in found and event not in head.columns:
                was = "its objects are gone from the store" if gone[event] else "there was none"
                raise NotShipped(f"a record of {event}, and {was}")
        if self._chosen.session is None:
            for event in sorted(found):
                _refuse_twice(event, self._recordings.twice(event, self._chosen.window))
        asked = [found[event] for event in sorted(found)]
        if head.call_chains:
            asked = self._with_chains(need, asked)
        rows: dict[str, FixedTable] = {
            plain_name(event): FixedTable({HOST: "VARCHAR", **head.columns[event]})
            for event in head.events
            if event not in found
        }
        rows[GAPS] = self._recordings.gaps(need)
        return asked, rows

    def _need_of(
        self, head: RequiredEvents, groups: Iterable[Group] = ()
    ) -> tuple[Sequence[str], set[str]]:
        """Return the list of an answer's events that most hosts have recorded, and these hosts.

        Of groups that are compared, each is to have some. Raises NotShipped if no host has one.
        """
        window = self._chosen.window
        told = [(need, self._recordings.hosts_of(need, window)) for need in head.needs]
        parts = [{*group.hosts} for group in groups]

        def size(one: tuple[Sequence[str], set[str]]) -> tuple[int, int]:
            return min((len(one[1] & part) for part in parts), default=0), len(one[1])

        need, hosts = max(told, key=size)
        if not hosts:
            of_time = "" if window.everything else " of that time"
            recorders = set[str]().union(
                *(self._recordings.recorders(need, window) for need in head.needs)
            )
            by = (
                f", though {some_of(sorted(recorders), HOSTS_NAMED)} recorded it"
                if recorders
                else ""
            )
            self.read = {event for need in head.needs for event in need}
            raise NotShipped(f"{head.words}, which no host that is asked has shipped{of_time}{by}")
        recorders = self._recordings.recorders(need, window)
        lacking = self._recordings.hosts(window) - recorders
        self.left_out = OmittedHosts(need, lacking, recorders - hosts)
        return need, hosts

    def shortfall(self) -> Shortfall | None:
        """Return the records and times that the tables of the last question lack, see `Shortfall`.

        None: there are too many commits, and nothing else of the question has read them.

        Raises:
            StoreError: the store cannot be read.
        """
        if not self._selection.is_small:
            return None
        return shortfall(self._recordings, self.read, self._chosen.window)

    def without_records(self) -> set[str]:
        """Return the hosts of the time of which no record was shipped; none if it is not known.

        Raises:
            StoreError: the store cannot be read.
        """
        if not self._selection.is_small:
            return set()
        return self._recordings.without_records(self._chosen.window)

    def _with_chains(self, need: Sequence[str], asked: Sequence[Objects]) -> list[Objects]:
        """Return the objects of those hosts of whose events there are call chains.

        Others are left out, as each alone would refuse to answer.
        """
        stacks = self._events.table(STACKS, STACKS)
        gone = self._events.note_gone(STACKS, stacks, self._recordings)
        hosts: set[str] = set()
        if stacks is not None:
            names = {name for event in need for name in (event, plain_name(event))}
            told = stacks._replace(of_events=sorted(names))
            hosts = duck.values_of(HOST, told, self.place, self._chosen)
        all_hosts = {host for one in asked for host in one.hosts}
        self.left_out.gone |= gone & all_hosts
        self.left_out.chainless = all_hosts - hosts - gone
        found = [one.of(hosts) for one in asked]
        if not all(one.keys for one in found):
            was = "are gone from the store" if gone else "no host that is asked has shipped"
            raise NotShipped(f"call chains of {' and '.join(need)}, which {was}")
        return found

    def _question(
        self, tree: exp.Query, asked: list[Objects], rows: dict[str, FixedTable]
    ) -> Question:
        """Return the question of a statement over tables of an answer, and others it names."""
        self._add_others(tree, asked, rows)
        named = {one.name.lower(): one.name for one in asked} | {name: name for name in rows}
        self.is_ordered = sql_tree.orders_at_the_end(tree)
        tree = sql_tree.with_names(tree, named)
        text = sql_tree.text_for(tree, dialect.DUCKDB)
        return Question(tree, text, asked, rows, self._chosen)

    def _add_others(
        self, tree: exp.Query, asked: list[Objects], rows: dict[str, FixedTable]
    ) -> None:
        """Add the tables that a statement names beside those of its events."""
        for name in sql_tree.tables_of(tree):
            if name in _UNLIKE:
                rows[name] = _names_table(name)
            elif name in tables.NAMES:
                rows[name] = tables.made(name, self._selection)
            elif name not in rows and name not in {one.name for one in asked}:
                more = self._events.table(name, name)
                gone = self._events.note_gone(name, more, self._recordings)
                if more is None:
                    was = "is gone from the store" if gone else "no host that is asked has shipped"
                    raise NotShipped(f"{name}, which {was}")
                self.read.add(name)
                asked.append(more)

    def shape(self, question: Question) -> list[tuple[str, str]]:
        """Return {name, DuckDB's type} of the columns of a result: DuckDB has empty tables for it.

        Raises:
            UsageError: the statement is wrong.
        """
        empty = {one.name: FixedTable({**one.columns, **one.of_keys}) for one in question.objects}
        empty |= {name: FixedTable(table.columns) for name, table in question.rows.items()}
        with ExitStack() as stack:
            database = Database({}, empty, Window(), did_you_mean, stack)
            answer = database.ask(question.sql)
            return [*zip(answer.columns, answer.types, strict=True)]

    @cached_property
    def _recordings(self) -> Recordings:
        """The recordings of the session."""
        commits = (told.commit for told in self._selection.commits)
        session = self._chosen.session
        own = (one for one in commits if session in {None, one.session})
        return Recordings(own, self._selection.gone.keys())


def _names_table(name: str) -> FixedTable:
    return fixed_tables((), os.uname().machine)[name]


def _refuse_twice(event: str, sessions: Mapping[str, Sequence[str]]) -> None:
    for host, names in sessions.items():
        raise UsageError(
            f"{event} was recorded by several sessions of {host} at the same time: "
            f"{', '.join(names)}",
            hint="choose a --session: else each record counts twice",
        )
