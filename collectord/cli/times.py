# SPDX-License-Identifier: Apache-2.0
"""Times on the command line: RFC 3339, HH:MM[:SS] of today, or a time before now such as -10m."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from collectord.errors import UsageError
from collectord.text.units import NS_DIGITS, NS_PER_SECOND, Nanoseconds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_OF_TODAY: Final = re.compile(r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?", re.ASCII)
_FRACTION: Final = re.compile(r"\.(\d{1,9})")
_HINT: Final = "2026-11-26T12:00:00Z, 12:00 or 12:00:30 of today, or -10m"
# Options whose value may begin with a dash.
TIMES: Final = ("--since", "--until")


def parse_time(text: str) -> int:
    """Return UTC in ns; a time without a zone is of this host's zone. Raises UsageError."""
    word = text.strip()
    if word.startswith("-"):
        return time.time_ns() - Nanoseconds.parse(word[1:])
    if _OF_TODAY.fullmatch(word):
        clock = word if word[1:2].isdigit() else f"0{word}"
        word = f"{datetime.now().astimezone():%Y-%m-%d}T{clock}"
    fraction = _FRACTION.search(word)
    try:
        whole = datetime.fromisoformat(_FRACTION.sub("", word, count=1)).astimezone()
        seconds = int(whole.timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{text!r} is not a valid time", hint=_HINT) from error
    return seconds * NS_PER_SECOND + int(fraction[1].ljust(NS_DIGITS, "0") if fraction else 0)


def check_order(since_ns: int | None, until_ns: int | None) -> None:
    """Raise UsageError for a time that ends before it begins; None is without an end."""
    if since_ns is not None and until_ns is not None and since_ns >= until_ns:
        raise UsageError("--since must be before --until")


def time_text(ns: int) -> str:
    """Return a time in UTC as `parse_time` reads it, without loss."""
    whole = datetime.fromtimestamp(ns // NS_PER_SECOND, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{ns % NS_PER_SECOND:0{NS_DIGITS}}Z"


def joined(arguments: Sequence[str], options: Collection[str]) -> list[str]:
    """Join a time to its option: `-10m` would be taken for an option of its own."""
    made: list[str] = []
    for word in arguments:
        if made and made[-1] in options:
            made[-1] += f"={word}"
        else:
            made.append(word)
    return made
