# SPDX-License-Identifier: Apache-2.0
"""Values of options on the command line: what argparse calls for one, and what it refuses."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collectord.config.scheduling import FIFO, FIFO_RANGE, DrainPriority
from collectord.errors import UsageError
from collectord.text import cpu_list
from collectord.text.units import Nanoseconds, RingSize

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class RingSizes:
    """The sizes of -m: of data rings, and of their AUX areas."""

    data: RingSize = field(default_factory=RingSize)
    aux: RingSize = field(default_factory=RingSize)


def checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a parser of values so that argparse puts the option before its error message."""

    def parse_checked(text: str) -> Any:  # noqa: ANN401  # what the parser gives
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_checked


def not_empty(what: str) -> Callable[[str], str]:
    """Return a parser that refuses "": an unset variable must not select the default."""

    def parse(text: str) -> str:
        if not text:
            raise argparse.ArgumentTypeError(f"its {what} is empty")
        return text

    return parse


def positive(text: str) -> int:
    """Return a number above 0."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def realtime(text: str) -> DrainPriority:
    """Return a priority of SCHED_FIFO."""
    priority = positive(text)
    if priority > FIFO_RANGE[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is above {FIFO_RANGE[1]}")
    return DrainPriority(FIFO, priority)


def ids(text: str) -> tuple[int, ...]:
    """Return the ids of processes or threads, each once."""
    return tuple(dict.fromkeys(positive(part) for part in text.split(",")))


def ids_or_glob(text: str) -> tuple[int, ...] | str:
    """Return process ids, or a pattern for names if it has a character that ids do not have."""
    if not text or all(letter in "0123456789,-" for letter in text):
        return ids(text)
    return text


_CPUS = checked(cpu_list.parse)
_RING_SIZE = checked(RingSize.parse)
_DURATION = checked(Nanoseconds.parse)


def cpus(text: str) -> Any:  # noqa: ANN401  # CPUs, through checked
    """Return CPUs, refusing an empty list, which would mean all CPUs."""
    found = _CPUS(text)
    if not found:
        raise argparse.ArgumentTypeError("its list of CPUs is empty")
    return found


def ring_sizes(text: str) -> RingSizes:
    """Return ring sizes as perf reads them: either may be left out, but not both."""
    data, comma, area = text.partition(",")
    if comma and not area:
        raise argparse.ArgumentTypeError(f"there is no AUX size after the comma of {text!r}")
    return RingSizes(
        _ring_size(data) if data or not comma else RingSize(),
        _ring_size(area) if comma else RingSize(),
    )


def _ring_size(text: str) -> Any:  # noqa: ANN401  # RingSize, through checked
    """Return a ring size as perf reads it: a bare number counts pages."""
    return _RING_SIZE(f"{text}pages" if text.isdigit() else text)


def duration(text: str) -> Any:  # noqa: ANN401  # Nanoseconds, through checked
    """Return a duration, refusing 0: an unset variable must not start an endless recording."""
    duration_ns = _DURATION(f"{text}s" if text.replace(".", "", 1).isdigit() else text)
    if not duration_ns:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return duration_ns
