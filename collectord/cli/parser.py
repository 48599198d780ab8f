# SPDX-License-Identifier: Apache-2.0
"""The verbs' argument parser: perf's style, one-line errors, help of a fixed width."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from collectord.cli import VERBS
from collectord.cli.output import emit, flush
from collectord.errors import UsageError
from collectord.model import CONTROL_SOCKET

if TYPE_CHECKING:
    from collections.abc import Sequence

HELP_WIDTH: Final = 79


# textwrap breaks lines at ASCII white space only.
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help that does not depend on the terminal's width or on the Python version."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=HELP_WIDTH)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrap(" ".join(text.split()), width).splitlines()

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `UsageError`.

    Args:
        verb: one of `VERBS`.
        usage: parts of the synopsis behind it; lines break between them only.
        examples: command lines to copy.
    """

    def __init__(self, verb: str, usage: tuple[str, ...], examples: tuple[str, ...]) -> None:
        prog = f"collectord {verb}"
        parts = " ".join(part.replace(" ", _NO_BREAK) for part in usage)
        synopsis = _wrap(parts, HELP_WIDTH - len(f"usage: {prog} "))
        indent = " " * len(f"usage: {prog} ")
        super().__init__(
            prog=prog,
            usage=f"{prog} " + f"\n{indent}".join(synopsis.splitlines()),
            description=VERBS[verb],
            epilog="\n  ".join(("examples:", *examples)),
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )

    def add_socket(self, purpose: str = "") -> None:
        """Add --socket; `purpose` begins its help."""
        text = f"{purpose}the daemon's control socket (default: {CONTROL_SOCKET})"
        self.add_argument(
            "--socket", metavar="PATH", type=Path, default=Path(CONTROL_SOCKET), help=text
        )

    def add_json(self, text: str) -> None:
        """Add --json."""
        self.add_argument("--json", action="store_true", help=text)

    def print_help(self, file: Any = None) -> None:  # noqa: ANN401, ARG002 - argparse's
        """Print the help to stdout. argparse would ignore a failure to write it."""
        emit(self.format_help())
        flush()

    def error(self, message: str) -> NoReturn:
        """Report an error in one line.

        Raises:
            UsageError: always.
        """
        raise UsageError(message, hint=f"see `{self.prog} --help`")


def named_values(option: str, words: Sequence[str]) -> dict[str, str]:
    """Return the values of an option that takes NAME=VALUE several times. Raises UsageError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {word!r} is not NAME=VALUE")
        if name in found:
            raise UsageError(f"{option} {name} is given twice")
        found[name] = value
    return found


def _wrap(text: str, width: int) -> str:
    """Break lines between words: an option or an event's name is never split at its hyphens."""
    filled = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    return filled.replace(_NO_BREAK, " ")
