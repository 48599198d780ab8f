# SPDX-License-Identifier: Apache-2.0
"""Compression of whole files: the pieces that a file is made of, and zstd frames.

A frame stands for itself and has a checksum: damage in one leaves the others readable.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple, Protocol

import zstandard

from collectord.errors import CodecError

LEVEL: Final = 1
# Files that this program compressed have it, where their own format has no mark of that.
MARK: Final = b"cltrpack"
ZSTD_NAME: Final = "zstd"
ZSTD_VERSION: Final = ".".join(map(str, zstandard.ZSTD_VERSION))


class Piece(NamedTuple):
    """Some bytes of a file, at their offset. What no piece has is a hole."""

    offset: int
    data: bytes


Pieces = Generator[Piece, None, None]


class Packing(Protocol):
    """The compressed form of a file format."""

    def is_packed(self, first: bytes) -> bool:
        """Whether a file that begins with these FIRST_BYTES has the compressed form."""

    def pack(self, plain: memoryview) -> Pieces:
        """Yield the pieces of the compressed form.

        Raises:
            CodecError: this file has no compressed form.
        """

    def unpack(self, packed: memoryview, *, lenient: bool = False) -> Pieces:
        """Yield the pieces of the file as it was, up to its end.

        Args:
            packed: the compressed form.
            lenient: zeros replace the contents of a damaged frame.

        Raises:
            CodecError: it is damaged, or another program compressed it.
        """


# Perf's highest level needs this much.
_WINDOW_MAX_BYTES: Final = 128 << 20
# Contents have 32,768 times as many bytes at most.
_SLICE_BYTES: Final = 1 << 10
# `is_packed` needs to see this much of a file.
FIRST_BYTES: Final = 128


class Compressor:
    """Makes frames."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)

    def frame(self, data: memoryview) -> bytes:
        """Return the frame of these bytes."""
        return self._zstd.compress(data)


class Stream:
    """Reads a stream that goes on from part to part, each flushed at its end."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor(max_window_size=_WINDOW_MAX_BYTES)
        self._frame = self._zstd.decompressobj()

    def contents(self, part: memoryview, at: int) -> Iterator[bytes]:
        """Yield the contents of a part, the one at an offset, in bounded pieces.

        Behind a damaged part the stream can only begin anew.

        Raises:
            CodecError: it is damaged, or begins before what this has seen.
        """
        try:
            for first in range(0, len(part), _SLICE_BYTES):
                rest = bytes(part[first : first + _SLICE_BYTES])
                while rest:
                    if self._frame.eof:
                        self._frame = self._zstd.decompressobj()
                    yield self._frame.decompress(rest)
                    rest = self._frame.unused_data
        except zstandard.ZstdError as error:
            self._frame = self._zstd.decompressobj()
            raise CodecError(f"compressed data: {error}", offset=at, reason="zstd") from error


class Decompressor:
    """Reads frames of a bounded size; `lenient` as in `Packing.unpack`."""

    def __init__(self, max_bytes: int, *, lenient: bool) -> None:
        self._zstd = zstandard.ZstdDecompressor()
        self._max_bytes = max_bytes
        self._lenient = lenient

    def contents(self, frame: memoryview, at: int, size: int = -1) -> bytes:
        """Return the contents of the frame at an offset. Raises CodecError.

        Args:
            frame: all of it.
            at: its offset.
            size: of the contents, for a frame that does not say it.
        """
        try:
            told = zstandard.frame_content_size(frame)
            size = size if told < 0 else told
            if 0 <= size <= self._max_bytes:
                return self._zstd.decompress(frame, max(size, 1), allow_extra_data=False)
        except zstandard.ZstdError as error:
            if self._lenient and 0 <= size <= self._max_bytes:
                return bytes(size)
            raise CodecError(f"compressed data: {error}", offset=at, reason="zstd") from error
        raise CodecError(f"frame of {size} bytes", offset=at, reason="zstd")
