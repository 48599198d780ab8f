# SPDX-License-Identifier: Apache-2.0
"""`collectord snapshot`: what a running daemon's flight recorders hold, as segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.cli import EXIT_OK, VERBS
from collectord.cli.mark import add_common
from collectord.cli.output import print_json, say, snapshot_text
from collectord.cli.parser import Parser
from collectord.control import client

if TYPE_CHECKING:
    from collections.abc import Sequence


def parser() -> Parser:
    """Options of `snapshot`."""
    made = Parser(
        "collectord snapshot",
        ("[--socket PATH]", "[--json]", "[SESSION...]"),
        VERBS["snapshot"],
        (
            "collectord snapshot",
            "collectord snapshot blackbox && trace-cmd report -i FILE",
        ),
    )
    made.add_argument(
        "sessions",
        metavar="SESSION",
        nargs="*",
        help="flight recorders to store (default: all)",
    )
    add_common(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Store, and print where to."""
    args = parser().parse_intermixed_args(arguments)
    answer = client.post(args.socket, "/v1/snapshot", {"sessions": args.sessions})
    if args.json:
        print_json(answer)
        return EXIT_OK
    for snapshot in answer["snapshots"]:
        for path in snapshot["segments"]:
            say(f"wrote {path}")
        if snapshot["segments"]:
            say(snapshot_text(snapshot))
    if not answer["segments"]:
        say("the flight recorders hold no event")
    return EXIT_OK
