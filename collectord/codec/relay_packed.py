# SPDX-License-Identifier: Apache-2.0
"""The compressed form of files without a head, such as those of blktrace: a file for zstd(1).

It begins with a frame that zstd skips, which tells it from anything that a relay channel may hold.
Another one before each frame has the size of that.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from collectord.codec.packed import MARK, Compressor, Decompressor, Piece, Pieces
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SKIPPED_MAGIC: Final = 0x184D2A5C
_SKIPPED: Final = struct.Struct("<II")  # magic, size of what follows
_FIRST: Final = struct.Struct("<8sQ")  # mark, size of the file
_BEGIN: Final = _SKIPPED.pack(_SKIPPED_MAGIC, _FIRST.size) + MARK
_SIZE: Final = struct.Struct("<III")  # magic, size of what follows, size of the frame
_PIECE_BYTES: Final = 1 << 19


def is_packed(first: bytes) -> bool:
    """Whether a file that begins so has the compressed form."""
    return first.startswith(_BEGIN)


def pack(plain: memoryview) -> Pieces:
    """Yield the pieces of the compressed form. Raises CodecError if there is none."""
    if not len(plain):
        raise CodecError("there is nothing to compress", offset=0, reason="empty")
    compressor = Compressor()
    first = _SKIPPED.pack(_SKIPPED_MAGIC, _FIRST.size) + _FIRST.pack(MARK, len(plain))
    yield Piece(0, first)
    to = len(first)
    for at in range(0, len(plain), _PIECE_BYTES):
        with plain[at : at + _PIECE_BYTES] as piece:
            frame = compressor.frame(piece)
        part = _SIZE.pack(_SKIPPED_MAGIC, _SIZE.size - _SKIPPED.size, len(frame)) + frame
        yield Piece(to, part)
        to += len(part)


def unpack(packed: memoryview, *, lenient: bool = False) -> Pieces:
    """Yield the pieces of the file as it was. Raises CodecError."""
    yield from _pieces(packed, None, lenient=lenient)


def unpack_sound(packed: memoryview, errors: list[CodecError]) -> Pieces:
    """Yield the pieces of the file as it was, without those whose frames are damaged.

    Args:
        packed: the compressed form.
        errors: gets what is wrong with it.
    """
    try:
        yield from _pieces(packed, errors, lenient=False)
    except CodecError as error:
        errors.append(error)


def _pieces(packed: memoryview, errors: list[CodecError] | None, *, lenient: bool) -> Pieces:
    """Yield the pieces of the file as it was. Raises CodecError.

    Args:
        packed: the compressed form.
        errors: gets those of damaged frames, which are left out; None: they are raised.
        lenient: see `Packing.unpack`.
    """
    decompressor = Decompressor(_PIECE_BYTES, lenient=lenient)
    to = 0
    for at, end in _frames(packed):
        try:
            with packed[at:end] as frame:
                contents = decompressor.contents(frame, at)
        except CodecError as error:
            if errors is None:
                raise
            errors.append(error)
            to += _PIECE_BYTES  # as all but the last have
            continue
        yield Piece(to, contents)
        to += len(contents)
    if not errors:
        _check_size(packed, to)


def _frames(packed: memoryview) -> Iterator[tuple[int, int]]:
    """Yield where each frame begins and ends. Raises CodecError."""
    at = _SKIPPED.size + _FIRST.size
    if len(packed) < at:
        raise CodecError("cut short", offset=len(packed), reason="short")
    while at < len(packed):
        if len(packed) - at < _SIZE.size:
            raise CodecError("a frame is cut short", offset=at, reason="short")
        *_, length = _SIZE.unpack_from(packed, at)
        at += _SIZE.size
        if length > len(packed) - at:
            raise CodecError("a frame is cut short", offset=at, reason="short")
        yield at, at + length
        at += length


def _check_size(packed: memoryview, found: int) -> None:
    _, size = _FIRST.unpack_from(packed, _SKIPPED.size)
    if found != size:
        raise CodecError(f"{found} bytes of {size}", offset=len(packed), reason="size")
