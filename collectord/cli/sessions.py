# SPDX-License-Identifier: Apache-2.0
"""`collectord sessions`: what the sessions of a running daemon have recorded, lost and lack.

An action in front of the names changes them first.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from collectord.cli import EXIT_OK, record_options
from collectord.cli.mark import add_common
from collectord.cli.output import figure_text, print_json, say
from collectord.cli.parser import Parser
from collectord.cli.record_config import timed_session
from collectord.cli.text_table import Column, print_table
from collectord.control import client
from collectord.errors import UsageError
from collectord.text.nearest import did_you_mean
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    Document = Mapping[str, Any]

_ACTIONS: Final = frozenset({"pause", "resume", "stop"})
_COLUMNS: Final = (
    *map(Column, ("SESSION", "SOURCE", "STATE", "BASIS")),
    Column("PRODUCED", "right"),
    Column("STORED", "right"),
    Column("LOST", "right"),
    Column("UNACCOUNTED", "right"),
)


def parser() -> Parser:
    """Return the parser of `sessions`."""
    made = Parser(
        "sessions",
        (
            "[pause|resume|stop]",
            "[--socket PATH]",
            "[--json]",
            "[SESSION...]",
            "| start [-e EVENT|--bpf NAME]... --duration TIME",
        ),
        (
            "collectord sessions",
            "collectord sessions exec --json",
            "collectord sessions pause exec",
            "collectord sessions start -e sched:sched_switch --duration 30s",
            "collectord sessions start --bpf opensnoop --duration 30s",
        ),
    )
    made.add_argument(
        "sessions",
        metavar="SESSION",
        nargs="*",
        help="sessions to show (default: all). `pause NAME...` has sessions record nothing until "
        "they are resumed. `resume NAME...` has paused sessions record again. `stop NAME...` ends "
        "sessions that `sessions start` has started",
    )
    made.add_argument(
        "--name",
        metavar="NAME",
        help="start: name of the session (default: timed-N with the lowest N that is free)",
    )
    record_options.add_session(made)
    add_common(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Change the sessions if an action is given, and print them."""
    made = parser()
    args = made.parse_intermixed_args(arguments)
    action, *names = args.sessions or [""]
    if action == "start":
        return _start(args, names)
    defaults = vars(made.parse_args([]))
    common = {"sessions", "socket", "json"}
    for name in vars(args).keys() - common:
        if vars(args)[name] != defaults[name]:
            raise UsageError("options of `sessions start` are given without start")
    if action in _ACTIONS:
        sessions = _changed(args.socket, action, names)
    else:
        sessions = _chosen(client.get(args.socket, "/v1/sessions")["sessions"], args.sessions)
    if args.json:
        print_json({"sessions": sessions})
        return EXIT_OK
    print_sessions(sessions)
    for path in (path for one in sessions if action == "stop" for path in one["segments"]):
        say(f"sealed {path}")
    return EXIT_OK


def _start(args: argparse.Namespace, names: Sequence[str]) -> int:
    """Start a session, and print its name and its end."""
    if names:
        raise UsageError(f"{names[0]!r} is not an option", hint="--name names the session")
    if not args.duration:
        raise UsageError("a session that is started needs an end", hint="--duration TIME")
    answer = client.post(args.socket, "/v1/sessions", timed_session(args, args.name or ""))
    if args.json:
        print_json(answer)
        return EXIT_OK
    ends = datetime.fromtimestamp(answer["ends_ns"] / NS_PER_SECOND).astimezone()
    say(f"session {answer['session']} records until {ends.isoformat(' ', 'seconds')}")
    return EXIT_OK


def _changed(socket: Path, action: str, names: Sequence[str]) -> list[Document]:
    """Pause, resume or stop sessions in turn; return them. Raises as `client.post`."""
    if not names:
        raise UsageError(f"there is no session to {action}", hint="name one or more")
    places = (f"/v1/sessions/{quote(name, safe='')}/{action}" for name in names)
    return [one for place in places for one in client.post(socket, place, {})["sessions"]]


def _chosen(sessions: Sequence[Document], names: Collection[str]) -> list[Document]:
    """Return the sessions of these names, or all. Raises UsageError if a name is unknown."""
    known = {session["name"] for session in sessions}
    for name in names:
        if name not in known:
            raise UsageError(f"no session {name}", hint=did_you_mean(name, known))
    return [session for session in sessions if not names or session["name"] in names]


def print_sessions(sessions: Sequence[Document]) -> None:
    """Print a row for each session and source, and what they lack.

    Args:
        sessions: entries of `/v1/status` or `/v1/sessions`.
    """
    print_table(_COLUMNS, [_row(session) for session in sessions])
    for session in sessions:
        for reason in session["degraded"]:
            say(f"{session['name']}: {session['state']}, {reason}")


def _row(session: Document) -> list[str]:
    return [
        session["name"],
        session["source"],
        session["state"],
        session["ledger_basis"],
        figure_text(session["produced"]),
        figure_text(session["stored"]),
        figure_text(sum(session["lost"].values())),
        figure_text(session["unaccounted"]),
    ]
