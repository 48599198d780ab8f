# SPDX-License-Identifier: Apache-2.0
"""Sink stage: checksums of a file's data, one for each chunk, as the core computes them.

A chunk is what was written in one piece, about 1 MiB; small pieces share one with their
neighbours. Manifests list the chunks of a span in their order, each by its length and its XXH3-64:

- 1048576:0123456789abcdef 40960:fedcba9876543210

The checksum of the span is the XXH3-64 of the chunks' checksums, of 8 bytes each, in that order.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
import xxhash

from collectord._native._core import Sum
from collectord.sink.manifest import COUNT_MAX, Span
from collectord.sink.scan import xxh3
from collectord.sink.stored_file import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# The same values as in sums.h of the core.
_PART_BYTES: Final = 1 << 20
_PART_STEP: Final = 16384
_SUM: Final = re.compile(r"([1-9][0-9]{0,18}):([0-9a-f]{16})")
# The size of one chunk in a manifest, with its separator.
SUM_TEXT_BYTES: Final = 26


class Sums:
    """The checksums of bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._ended: list[Sum] = []
        self._open = xxhash.xxh3_64()
        self._open_bytes = 0
        self._part_bytes = _PART_BYTES

    def take(self, data: memoryview) -> None:
        """Add these bytes."""
        at = 0
        while at < len(data):
            if self._open_bytes == self._part_bytes:
                self._end()
            with data[at : at + self._part_bytes - self._open_bytes] as piece:
                self._open.update(piece)
                self._open_bytes += len(piece)
                at += len(piece)

    def _end(self) -> None:
        self._ended.append(Sum(self._open_bytes, self._open.intdigest()))
        self._open.reset()
        self._open_bytes = 0
        if len(self._ended) % _PART_STEP == 0:
            self._part_bytes *= 2

    @property
    def all(self) -> tuple[Sum, ...]:
        """The checksums of the bytes so far."""
        if not self._open_bytes:
            return tuple(self._ended)
        return (*self._ended, Sum(self._open_bytes, self._open.intdigest()))


def sums_of(data: memoryview) -> tuple[Sum, ...]:
    """Return the checksums of all these bytes."""
    sums = Sums()
    sums.take(data)
    return sums.all


def fold(sums: Iterable[Sum]) -> str:
    """Return one checksum of all checksums."""
    return xxh3(b"".join(one.xxh3.to_bytes(8, "big") for one in sums))


def data_span(offset: int, sums: Sequence[Sum]) -> Span:
    """Return the span of data that begin at `offset` of a file."""
    return Span(
        part="data",
        offset=offset,
        bytes=sum(one.bytes for one in sums),
        xxh3=fold(sums),
        chunks=" ".join(f"{one.bytes}:{one.xxh3:016x}" for one in sums),
    )


def chunks_of(span: Span) -> tuple[Sum, ...] | None:
    """Return the chunks of a span; None if it lists invalid chunks, or not all."""
    found = [_SUM.fullmatch(text) for text in span.chunks.split(" ")]
    sums = tuple(Sum(int(one[1]), int(one[2], 16)) for one in found if one is not None)
    whole = len(sums) == len(found) and sum(one.bytes for one in sums) == span.bytes <= COUNT_MAX
    return sums if whole and fold(sums) == span.xxh3 else None


def listed(span: Span) -> Span:
    """Return a span that matches its checksum, without its list of chunks if that is invalid."""
    return span if chunks_of(span) is not None else msgspec.structs.replace(span, chunks="")


def unsound(view: memoryview, span: Span) -> Iterator[Part]:
    """Yield the parts of a span that do not match their checksums.

    The part is the whole span if it lists no chunks (as in schema 1), or invalid ones.
    """
    chunks = chunks_of(span)
    told = [(span.bytes, span.xxh3)]
    if chunks is not None:
        told = [(one.bytes, f"{one.xxh3:016x}") for one in chunks]
    at = span.offset
    for size, expected in told:
        with view[at : at + size] as part:
            if xxh3(part) != expected:
                yield Part(at, size)
        at += size
