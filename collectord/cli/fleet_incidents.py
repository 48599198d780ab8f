# SPDX-License-Identifier: Apache-2.0
"""`fleet incidents`: the incidents of all hosts, those of one id together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_FAILURE, EXIT_OK
from collectord.cli.fleet_groups import (
    FIGURES,
    check_hosts,
    compared_groups,
    complain_of_groups,
    figure_cells,
    groups_json,
    pair_json,
    selection_of,
)
from collectord.cli.output import bytes_text, complain, print_json, say
from collectord.cli.query_rows import shortened
from collectord.cli.text_table import Column, print_table
from collectord.cli.times import time_text
from collectord.errors import UsageError
from collectord.fleet.groups import Pair
from collectord.fleet.incident_groups import incident_groups
from collectord.fleet.incidents import fleet_incidents
from collectord.fleet.omitted_hosts import HOSTS_NAMED
from collectord.sink.incident_folder import SUMMARY
from collectord.text.foreign import visible
from collectord.text.nearest import did_you_mean
from collectord.text.wording import some_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from collectord.fleet.groups import Groups
    from collectord.fleet.incidents import FleetIncident, HostIncident
    from collectord.fleet.store import Store

_COLUMNS: Final = (*map(Column, ("INCIDENT", "WHEN", "HOSTS", "TRIGGER", "REASON")),)
_COMPARED: Final = (Column("TRIGGER"), *FIGURES)
_IDS_NAMED: Final = 8
_REASON_CHARS: Final = 40
_SUMMARY_MAX_BYTES: Final = 1 << 20


def incidents(args: argparse.Namespace) -> int:
    """List the incidents, or show the parts of one; return 1 if a part is not whole."""
    if args.words and args.against is not None:
        raise UsageError(
            f"{args.words[0]} is of the hosts that had it",
            hint="--against compares how many there were: leave the incident out",
        )
    selection = selection_of(args)
    store = selection.store
    groups = compared_groups(selection, args)
    if args.labels and groups is None:
        check_hosts(selection, args)
    hosts = selection.hosts if args.labels or groups is not None else None
    found = fleet_incidents(store, selection.wanted, hosts)
    if args.words:
        found = [_named(found, args.words[0])]
    if not found:
        if groups is None:
            check_hosts(selection, args)  # one that ships incidents alone has no segments
        complain("no incident of the time and of the hosts that are asked for was shipped")
    broken = any(part.problem for one in found for part in one.parts)
    if groups is not None:
        _print_compared(found, groups, args)
    elif args.json:
        print_json({"incidents": [one.to_json() for one in found]})
    elif args.words:
        for part in found[0].parts:
            _show(store, part)
    else:
        print_table(_COLUMNS, [*map(_row, found)])
    return EXIT_FAILURE if broken else EXIT_OK


def _print_compared(
    found: Sequence[FleetIncident], groups: Groups, args: argparse.Namespace
) -> None:
    """Print the incidents of two groups by trigger."""
    complain_of_groups(groups, "PER HOST is the difference for each host of a group")
    sizes = Pair(*(len(group.hosts) for group in groups))
    compared = incident_groups(found, groups)
    if args.json:
        triggers = [
            {"trigger": one.trigger}
            | {name: pair_json(pair, pair.per_host(sizes)) for name, pair in one.pairs()}
            for one in compared
        ]
        print_json({"groups": groups_json(groups), "triggers": triggers})
        return
    rows = [
        [visible(one.trigger) or "-", *figure_cells(name.replace("_", " "), pair, sizes)]
        for one in compared
        for name, pair in one.pairs()
    ]
    print_table(_COMPARED, rows)


def _named(found: Sequence[FleetIncident], word: str) -> FleetIncident:
    """Return the incident of a name, which may be that of the folder on a host."""
    named = {one.id: one for one in found}
    parts = [(part, one) for one in found for part in one.parts]
    named |= {part.full_id: one for part, one in parts}
    if word in named:
        return named[word]
    own = {part.full_id: one for part, one in parts if part.id == word}
    incidents = {one.id: one for one in own.values()}
    if len(incidents) > 1:
        raise UsageError(
            f"{len(own):,} hosts have an incident {word}",
            hint=f"name one of {some_of(own, _IDS_NAMED)}",
        )
    if incidents:
        return incidents.popitem()[1]
    hint = did_you_mean(word, named) or "`collectord fleet incidents` lists all"
    raise UsageError(f"there is no incident {word}", hint=hint)


def _row(one: FleetIncident) -> list[str]:
    note = one.first.note
    named = some_of([part.host for part in one.parts], HOSTS_NAMED)
    if note is None:
        return [one.id, "-", named, "-", one.first.problem]
    when = time_text(note.fired_ns)[:19]
    return [one.id, when, named, note.trigger, shortened(visible(note.reason), _REASON_CHARS)]


def _show(store: Store, part: HostIncident) -> None:
    size = bytes_text(sum(part.files.values()))
    say(f"{part.host}  {part.id}  {len(part.files)} objects, {size}")
    if part.problem:
        say(f"  {part.problem}")
    key = next((key for key in part.files if key.endswith(f"/{SUMMARY}")), "")
    if key:
        text = store.get(key, _SUMMARY_MAX_BYTES).decode(errors="backslashreplace")
        for line in text.splitlines():
            say(f"  {line}".rstrip())
