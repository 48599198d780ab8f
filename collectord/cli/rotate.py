# SPDX-License-Identifier: Apache-2.0
"""`collectord rotate`: let a running daemon seal its segments and continue in new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.cli import EXIT_OK
from collectord.cli.mark import add_common
from collectord.cli.output import print_json, say
from collectord.cli.parser import Parser
from collectord.control import client

if TYPE_CHECKING:
    from collections.abc import Sequence


def parser() -> Parser:
    """Return the parser of `rotate`."""
    made = Parser(
        "rotate",
        ("[--socket PATH]", "[--json]", "[SESSION...]"),
        (
            "collectord rotate",
            "collectord rotate exec && perf report -i FILE",
        ),
    )
    made.add_argument(
        "sessions",
        metavar="SESSION",
        nargs="*",
        help="sessions to rotate (default: all that are not flight recorders)",
    )
    add_common(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Rotate, and print the paths of the sealed segments."""
    args = parser().parse_intermixed_args(arguments)
    answer = client.post(args.socket, "/v1/rotate", {"sessions": args.sessions})
    if args.json:
        print_json(answer)
        return EXIT_OK
    for path in answer["segments"]:
        say(f"sealed {path}")
    for one in answer["rotated"]:
        say(f"{one['session']}: {one['samples']:,} events")
    if not answer["segments"]:
        say("nothing was written since the last rotation")
    return EXIT_OK
