# SPDX-License-Identifier: Apache-2.0
"""`collectord events` for relay channels whose format is unknown: their bytes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from collectord.cli.event_choice import Choosable
from collectord.cli.event_view import Found
from collectord.cli.output import print_line, say
from collectord.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collectord.cli.event_count import EventCount
    from collectord.codec.record_filter import Term
    from collectord.reader.relay_events import Piece, RelaySegment

_BYTES: Final = "bytes"


def choosables() -> list[Choosable]:
    """Return the only event of a relay channel of unknown format: its bytes."""
    return [Choosable("", (_BYTES,), frozenset(), _refuse)]


def print_relay(segment: RelaySegment, form: str, left: int | None) -> Found:
    """Print the bytes of a segment, and return what there was to say."""
    if form == "csv":
        raise UsageError(f"{segment.path} has no CSV", hint="-o json is for programs")
    printed = 0
    for piece in islice(segment.pieces(), left):
        if form == "json":
            print_line({"file": piece.number, "offset": piece.offset, "data": piece.data.hex()})
        else:
            say(_dump(piece))
        printed += 1
    return Found(printed, damaged=False)


def count_relay(segment: RelaySegment, into: EventCount) -> None:
    """Add up the bytes of a segment."""
    for number, size in segment.sizes.items():
        into.add(_BYTES, number, size)


def _refuse(terms: Sequence[Term]) -> Callable[[Any], bool]:
    if terms:
        raise UsageError("the bytes of a relay channel have no fields")
    return lambda _: True


def _dump(piece: Piece) -> str:
    shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece.data)  # noqa: PLR2004
    return f"[{piece.number:03}] {piece.offset:08x}  {piece.data.hex(' '):<47}  {shown}"
