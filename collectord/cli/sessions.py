# SPDX-License-Identifier: Apache-2.0
"""`collectord sessions`: what the sessions of a running daemon have recorded, lost and lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from collectord.cli import EXIT_OK
from collectord.cli.mark import add_common
from collectord.cli.output import Column, figure_text, print_json, print_table, say
from collectord.cli.parser import Parser
from collectord.control import client
from collectord.errors import UsageError
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    Document = Mapping[str, Any]

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
        ("[--socket PATH]", "[--json]", "[SESSION...]"),
        (
            "collectord sessions",
            "collectord sessions exec --json",
        ),
    )
    made.add_argument(
        "sessions",
        metavar="SESSION",
        nargs="*",
        help="sessions to show (default: all)",
    )
    add_common(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Print the sessions."""
    args = parser().parse_intermixed_args(arguments)
    sessions = _chosen(client.get(args.socket, "/v1/sessions")["sessions"], args.sessions)
    if args.json:
        print_json({"sessions": sessions})
    else:
        print_sessions(sessions)
    return EXIT_OK


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
