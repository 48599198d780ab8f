# SPDX-License-Identifier: Apache-2.0
"""Results on stdout, as lines or as JSON, and problems on stderr.

Lines may hold text of the traced system or of a file: control characters are made visible.
"""

from __future__ import annotations

import math
import os
import sys
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from collectord.errors import CollectordError
from collectord.text.foreign import encode_json, visible
from collectord.text.units import KIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ENCODER: Final = msgspec.json.Encoder()
_COLUMNS: Final = 80
_STDOUT: Final = 1
_STDERR: Final = 2
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_LOSS_CAUSES: Final = {"sink/disk_full": "the disk is full", "sink/dropped": "writing failed"}
_THOUSAND: Final = 1000
_COUNT_UNITS: Final = ("", "k", "M", "G")


def open_standard_streams() -> None:
    """Open the standard descriptors that the caller closed, before another file gets one of them.

    Writing to such a stdout fails, which is reported; such a stderr discards what is written.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if fd == _STDERR else os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = os.fdopen(_STDOUT, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(_STDERR, "w", closefd=False)


def emit(text: str) -> None:
    """Write to stdout.

    Raises:
        BrokenPipeError: its reader has left.
        CollectordError: it cannot be written.
    """
    with _stdout_errors():
        sys.stdout.write(text)


def flush() -> None:
    """Write out what stdout still buffers. Raises as `emit`."""
    with _stdout_errors():
        sys.stdout.flush()


@contextmanager
def _stdout_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        discard(sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise CollectordError(f"cannot write to stdout: {error.strerror}") from error


def discard(fd: int) -> None:
    """Discard all that is written to a file from now on, and what is still buffered.

    The interpreter flushes at its end, and sets the exit status to 120 if that fails.
    """
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, fd)
    os.close(null)


def say(text: str) -> None:
    """Print one line of the result."""
    emit(visible(text) + "\n")


def complain(text: str, *more: str) -> None:
    """Print one line about a problem to stderr, and more lines that help."""
    try:
        sys.stderr.write(f"collectord: {visible(text)}\n")
        sys.stderr.writelines(f"{visible(line)}\n" for line in more)
        sys.stderr.flush()
    except OSError:  # there is no other place to report it
        discard(sys.stderr.fileno())


def print_json(value: Any) -> None:  # noqa: ANN401  # whatever msgspec encodes
    """Print one JSON document and nothing else."""
    emit(msgspec.json.format(encode_json(value), indent=2).decode() + "\n")


def print_line(value: Any) -> None:  # noqa: ANN401  # plain data that UTF-8 can encode
    """Print one JSON document on a line of its own."""
    emit(_ENCODER.encode(value).decode() + "\n")


def wrapped(text: str, *, first: str, rest: str) -> list[str]:
    """Wrap a text to lines of at most 80 columns, between words if possible.

    Args:
        text: any text; control characters are made visible.
        first: prefix of the first line.
        rest: prefix of the other lines.
    """
    lines = textwrap.wrap(
        visible(text),
        _COLUMNS,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]


def snapshot_text(snapshot: Mapping[str, Any]) -> str:
    """Describe a snapshot: how far back it goes, its losses with their causes, and its pause."""
    text = f"{snapshot['session']}: {snapshot['samples']:,} events"
    if snapshot["seconds"] is not None:  # AUX areas have no times
        text += f" of {snapshot['seconds']:.6g} s"
    text += f", {bytes_text(snapshot['bytes'])}"
    if snapshot["repeated"]:
        text += f"; {snapshot['repeated']:,} more were taken with the snapshot before"
    for name, count in snapshot["lost"].items():
        if count:
            text += f"; {count:,} more were lost: {_LOSS_CAUSES[name]}"
    for name, count in snapshot["lost_aux_bytes"].items():
        if count:
            text += f"; {bytes_text(count)} of trace were lost: {_LOSS_CAUSES[name]}"
    if snapshot["paused_ns"]:
        text += f"; the rings were paused for {snapshot['paused_ns'] / 1e6:.3g} ms"
    return text


def bytes_text(count: float) -> str:
    """Return a size with a binary unit: `512 KiB`, `1.5 GiB`."""
    for unit in _BYTE_UNITS:
        if count < KIB or unit == _BYTE_UNITS[-1]:
            break
        count /= KIB
    return f"{_short(count)} {unit}"


def bar(count: float, most: float, width: int) -> str:
    """Return a bar for a count, relative to the largest; any count above 0 has a bar."""
    return "#" * math.ceil(count * width / most) if count > 0 else ""


def figure_text(count: int | None) -> str:
    """Return a whole count, or "-" for one that is not known."""
    return "-" if count is None else f"{count:,}"


def count_text(count: float) -> str:
    """Return a short form of a count: `987`, `12.3k`, `1.2M`."""
    for unit in _COUNT_UNITS:
        if count < _THOUSAND or unit == _COUNT_UNITS[-1]:
            break
        count /= _THOUSAND
    return f"{_short(count)}{unit}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
