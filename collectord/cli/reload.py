# SPDX-License-Identifier: Apache-2.0
"""`collectord reload`: let a running daemon read its configuration anew, without a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.cli import EXIT_OK
from collectord.cli.mark import add_common
from collectord.cli.output import print_json, say
from collectord.cli.parser import Parser
from collectord.control import client
from collectord.plan.difference import Difference
from collectord.text.foreign import convert

if TYPE_CHECKING:
    from collections.abc import Sequence


def parser() -> Parser:
    """Return the parser of `reload`."""
    made = Parser(
        "reload",
        ("[--socket PATH]", "[--json]"),
        (
            "collectord reload",
            "collectord check --diff && collectord reload",
        ),
    )
    add_common(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Reload, and print what was changed and what needs a restart."""
    args = parser().parse_args(arguments)
    answer = client.post(args.socket, "/v1/reload", {})
    if args.json:
        print_json(answer)
        return EXIT_OK
    found = convert(answer, Difference)
    lines = ["nothing differs"] if found.is_empty else [*found.describe()]
    lines += (f"session {name} begins when its disk answers" for name in answer["beginning"])
    lines += (f"session {name} is still ending, as its disk is slow" for name in answer["ending"])
    lines += (f"warning: {warning}" for warning in answer["warnings"])
    for line in lines:
        say(line)
    return EXIT_OK
