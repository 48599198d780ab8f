# SPDX-License-Identifier: Apache-2.0
"""`collectord status`: whether a daemon runs, since when, and how its sessions are."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from collectord.cli import EXIT_OK
from collectord.cli.incident_text import when_text
from collectord.cli.mark import add_common
from collectord.cli.output import bytes_text, print_json, say
from collectord.cli.parser import Parser
from collectord.cli.sessions import print_sessions
from collectord.control import client
from collectord.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SHOWN: Final = 3


def parser() -> Parser:
    """Return the parser of `status`."""
    made = Parser(
        "status",
        ("[--socket PATH]", "[--json]"),
        (
            "collectord status",
            "collectord status --json",
        ),
    )
    add_common(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Print the status."""
    args = parser().parse_args(arguments)
    status = client.get(args.socket, "/v1/status")
    if args.json:
        print_json(status)
        return EXIT_OK
    for line in _lines(status):
        say(line)
    print_sessions(status["sessions"])
    return EXIT_OK


def _lines(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about the daemon itself."""
    yield f"collectord {status['version']}, pid {status['pid']}, since {status['started']}"
    states = Counter(session["state"] for session in status["sessions"])
    counted = ", ".join(f"{count} {state}" for state, count in states.items())
    yield f"sessions: {counted or 'none'}"
    yield f"CPUs: {status['cpus_covered']} of {status['cpus_online']} covered"
    cost = status["cost"]
    budget = f"; the budget is {cost['budget']:.2%}" if cost["budget"] else ""
    yield f"cost: {cost['ratio']:.2%} of all CPUs{budget}"
    if status["unclean_stops"]:
        yield f"unclean stops so far: {status['unclean_stops']:,}"
    if status["damaged_files"]:
        yield f"damaged files: {status['damaged_files']:,}"
    if status["log_lines_dropped"]:
        yield f"lines of the log that nobody took: {status['log_lines_dropped']:,}"
    yield from _incident_lines(status["incidents"])
    for session in status["beginning"]:
        yield f"session {session['name']} ({session['source']}) is still beginning"
    for session in status["ending"]:
        yield f"session {session['name']} ({session['source']}) is still ending"
    for reason in status["drain"]["lacks"]:
        yield f"drain threads: {reason}"


def _incident_lines(incidents: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about triggers and incidents."""
    if incidents["kept"]:
        size = bytes_text(incidents["bytes"])
        yield f"incidents: {incidents['kept']:,} kept, {size}; `collectord incident list`"
    for one in incidents["last"][:_SHOWN]:
        yield f"  {when_text(one['fired_ns'])}  {one['id']}: {one['reason']}"
    for trigger in incidents["triggers"]:
        held = sum(trigger["suppressed"].values())
        if held:
            yield f"trigger {trigger['name']}: held back {counted(held, 'time')}"
        if trigger["trouble"]:
            yield f"trigger {trigger['name']}: {trigger['trouble']}"
    if incidents["failed"]:
        yield f"incidents that could not be written: {incidents['failed']:,}"
