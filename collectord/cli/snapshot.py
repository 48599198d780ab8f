# SPDX-License-Identifier: Apache-2.0
"""`collectord snapshot`: store the contents of a running daemon's flight recorders as segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectord.cli import EXIT_OK
from collectord.cli.mark import add_common
from collectord.cli.output import print_json, say, snapshot_text
from collectord.cli.parser import Parser
from collectord.control import client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def parser() -> Parser:
    """Return the parser of `snapshot`."""
    made = Parser(
        "snapshot",
        ("[--socket PATH]", "[--json]", "[SESSION...]"),
        (
            "collectord snapshot",
            "collectord snapshot blackbox && collectord events FILE",
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
    """Store the contents, and print the paths."""
    args = parser().parse_intermixed_args(arguments)
    answer = client.post(args.socket, "/v1/snapshot", {"sessions": args.sessions})
    if args.json:
        print_json(answer)
        return EXIT_OK
    lines = [line for snapshot in answer["snapshots"] for line in _lines(snapshot)]
    for line in lines or ["the flight recorders hold no event"]:
        say(line)
    return EXIT_OK  # loss does not change the status


def _lines(snapshot: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about a snapshot; none if it found nothing."""
    lost = (*snapshot["lost"].values(), *snapshot["lost_aux_bytes"].values())
    if snapshot["segments"] or any(lost):
        yield from (f"wrote {path}" for path in snapshot["segments"])
        yield snapshot_text(snapshot)
    elif snapshot["repeated"]:
        # The text is not "are in": the snapshot before may have lost them.
        taken = f"{snapshot['repeated']:,} events were taken with the snapshot before"
        yield f"{snapshot['session']}: nothing new: {taken}"
