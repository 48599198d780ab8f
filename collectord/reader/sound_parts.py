# SPDX-License-Identifier: Apache-2.0
"""Read stage: the sound parts of a file of a set, compressed or not."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from collectord.codec import relay_packed
from collectord.codec.packed import FIRST_BYTES
from collectord.errors import CodecError
from collectord.reader.event_file import nameless
from collectord.sink.packing import contents_max_bytes, write_pieces
from collectord.sink.scan import mapped

if TYPE_CHECKING:
    from contextlib import ExitStack

    from collectord.codec.packed import Pieces


class Sound(NamedTuple):
    """The parts of a file, compressed or not, that can be read.

    Attributes:
        fd: of the file itself, or of a copy as it was before its compression.
        spans: {offset, size in bytes} of the sound parts, the first one first.
        damage: what is wrong with the compressed form, "" if nothing is.
    """

    fd: int
    spans: tuple[tuple[int, int], ...]
    damage: str = ""


def sound_parts(fd: int, stack: ExitStack) -> Sound:
    """Return the sound parts of one file of a set; a copy of them is closed with the stack.

    Raises:
        OSError: there is no room for a copy in the folder for temporary files.
    """
    size = os.fstat(fd).st_size
    if not relay_packed.is_packed(os.pread(fd, FIRST_BYTES, 0)):
        return Sound(fd, ((0, size),))
    copy = nameless(stack)
    errors: list[CodecError] = []
    spans: list[tuple[int, int]] = []

    def noted(pieces: Pieces) -> Pieces:
        with closing(pieces):
            for piece in pieces:
                yield piece
                end = piece.offset + len(piece.data)
                start = (
                    spans.pop()[0] if spans and sum(spans[-1]) == piece.offset else piece.offset
                )
                spans.append((start, end - start))

    try:
        with mapped(fd, size) as view:
            pieces = noted(relay_packed.unpack_sound(view, errors))
            write_pieces(copy, pieces, contents_max_bytes(size))
    except CodecError as error:  # of `write_pieces`
        errors.append(error)
    damage = f"its compressed form: {errors[0].message}" if errors else ""
    return Sound(copy, tuple(spans), damage)
