# SPDX-License-Identifier: Apache-2.0
"""`collectord top`: the sessions and rings of a running daemon, while they change."""

from __future__ import annotations

import shutil
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_OK, top_figures
from collectord.cli.output import say
from collectord.cli.parser import Parser
from collectord.cli.top_figures import Reading
from collectord.control import client
from collectord.errors import MissingFeature, UsageError, install_command
from collectord.text.units import NS_PER_SECOND, Nanoseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_INTERVAL: Final = "1s"
_SHORTEST_NS: Final = 100_000_000


def parser() -> Parser:
    """Return the parser of `top`."""
    made = Parser(
        "top",
        ("[--session NAME]", "[--interval TIME]", "[--once]", "[--socket PATH]"),
        (
            "collectord top",
            "collectord top --session blackbox",
            "collectord top --once --interval 5s",
        ),
    )
    made.add_argument(
        "--session", metavar="NAME", default="", help="show only this session (default: all)"
    )
    made.add_argument(
        "--interval",
        metavar="TIME",
        type=Nanoseconds.parse,
        default=Nanoseconds.parse(_INTERVAL),
        help=f"time between two readings, at least 100ms (default: {_INTERVAL})",
    )
    made.add_argument(
        "--once",
        action="store_true",
        help="print the figures of one interval as text, and end (default: a screen that is drawn "
        "anew; keys: q quit, p pause, s sort, Enter one session, Escape all, r rings, b busiest)",
    )
    made.add_socket()
    return made


def run(arguments: Sequence[str]) -> int:
    """Show a daemon's figures until the user ends it, or once."""
    args = parser().parse_args(arguments)
    if args.interval < _SHORTEST_NS:
        raise UsageError("--interval is too short", hint="100ms at least")
    read = partial(read_status, args.socket)
    first = read()
    _check_session(first, args.session)
    if args.once:
        _print_once(first, args.interval, read, args.session)
        return EXIT_OK
    try:
        from collectord.cli.top_screen import Screen  # noqa: PLC0415  # textual, when it is needed
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("textual"):
            raise
        raise MissingFeature(
            "the screen needs the package textual, which is not installed",
            feature="textual",
            hint=f"{install_command('top')}; or use --once",
        ) from error
    Screen(read, first, args.interval / NS_PER_SECOND, args.session).run()
    return EXIT_OK


def read_status(socket: Path) -> Reading:
    """Read a daemon's status. Raises as `client.get`."""
    status = client.get(socket, "/v1/status")
    return Reading(time.monotonic_ns(), status)


def _check_session(reading: Reading, session: str) -> None:
    names = {one["name"] for one in reading.status["sessions"]}
    if session and session not in names:
        raise UsageError(f"no session {session}", hint=f"one of {', '.join(sorted(names))}")


def _print_once(
    before: Reading, interval_ns: int, read: Callable[[], Reading], session: str
) -> None:
    time.sleep(interval_ns / NS_PER_SECOND)
    now = read()
    width = shutil.get_terminal_size().columns
    order = top_figures.ORDERS[0]
    for line in top_figures.heading(now, before):
        say(line)
    for table in (
        top_figures.sessions(now, before, order),
        top_figures.rings(now, before, order, session),
    ):
        say("")
        for line in table.fitted(width, top_figures.DISPENSABLE).lines():
            say(line)
    for line in top_figures.troubles(now, session):
        say(line)
