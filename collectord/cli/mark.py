# SPDX-License-Identifier: Apache-2.0
"""`collectord mark`: write a marker to the ftrace rings of a running daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.cli import EXIT_OK
from collectord.cli.output import print_json, say
from collectord.cli.parser import Parser
from collectord.control import client
from collectord.errors import UsageError
from collectord.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence


def parser() -> Parser:
    """Return the parser of `mark`."""
    made = Parser(
        "mark",
        ("[--session NAME]", "[--socket PATH]", "[--json]", "TEXT"),
        (
            "collectord mark 'deploy 17 begins'",
            "collectord mark --session SESSION 'the page was slow here'",
        ),
    )
    made.add_argument(
        "text",
        metavar="TEXT",
        help="the text of the marker; trace-cmd report shows it as a print event",
    )
    made.add_argument(
        "--session",
        metavar="NAME",
        help="mark only this session (default: all sessions that record ftrace)",
    )
    add_common(made)
    return made


def add_common(made: Parser) -> None:
    """Add the options of each verb that contacts a running daemon."""
    made.add_socket()
    made.add_json("print the answer as JSON (default: text)")


def run(arguments: Sequence[str]) -> int:
    """Write the marker, and print how many sessions have it."""
    args = parser().parse_args(arguments)
    if not args.text:
        raise UsageError("the marker has no text")
    answer = client.post(args.socket, "/v1/mark", {"text": args.text, "session": args.session})
    if args.json:
        print_json(answer)
    else:
        say(f"marked {counted(answer['marked'], 'session')}")
    return EXIT_OK
