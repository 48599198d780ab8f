# SPDX-License-Identifier: Apache-2.0
"""Servers of debug files, for the verbs that name functions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from collectord.cli.output import complain
from collectord.errors import UsageError
from collectord.text.foreign import visible

if TYPE_CHECKING:
    import argparse

    from collectord.cli.parser import Parser
    from collectord.reader.symbols.debuginfod import Debuginfod

USAGE: Final = "[--debuginfod]"
_OPTION: Final = "--debuginfod"
_URLS: Final = "DEBUGINFOD_URLS"


def add_debug_servers(made: Parser) -> None:
    """Add the option that allows servers to be asked."""
    made.add_argument(
        _OPTION,
        action="store_true",
        help="fetch debug files that are not here by their build-ids from the servers in the "
        f"variable {_URLS} (default: ask no server)",
    )


def debug_servers(args: argparse.Namespace, verb: str, nameless: str = "") -> Debuginfod | None:
    """Return the servers that may be asked; None: none may.

    Args:
        args: with the option of `add_debug_servers`.
        verb: of the command line.
        nameless: words of the command line whose output names no functions, "" if there are none.

    Raises:
        UsageError: no server is known, or nothing would be asked for.
    """
    if not args.debuginfod:
        return None
    if nameless:
        raise UsageError(f"{nameless} names no functions", hint=f"leave {_OPTION} out")
    from collectord.reader.symbols.debuginfod import Debuginfod  # noqa: PLC0415  # what few need

    servers = Debuginfod(os.environ.get(_URLS, ""))
    if not servers.urls:
        raise UsageError(
            f"{_URLS} has no server",
            hint=f"{_URLS}=https://debuginfod.example.com collectord {verb} {_OPTION}",
        )
    return servers


def complain_of_servers(servers: Debuginfod | None, *, is_needed: bool = True) -> None:
    """Say which debug files did not come; that a server does not have one is usual.

    Args:
        servers: that may be asked.
        is_needed: functions were to be named.
    """
    if servers is None:
        return
    if not is_needed:
        complain(f"{_OPTION} was not needed: nothing in this output names functions")
    if servers.failures:
        url, reason = next(iter(servers.failures.items()))
        complain(
            f"{len(servers.failures)} debug files were not fetched; the first is {visible(url)}: "
            f"{visible(reason)}"
        )
