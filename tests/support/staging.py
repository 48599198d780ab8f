# SPDX-License-Identifier: Apache-2.0
"""Staging memory as a killed daemon leaves it to its successor."""

from __future__ import annotations

import os
import struct
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from collectord.kernel.values.kept_rings import NOTE_BYTES, STATE_BYTES
from collectord.kernel.values.kept_staging import LeftStaging, staging_bytes
from tests.support import segments
from tests.support.samples import Sample, encode_sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

CHUNKS: Final = 8
CHUNK_BYTES: Final = 65536 + 4096
RINGS: Final = 2
NOTES_BYTES: Final = STATE_BYTES + NOTE_BYTES * RINGS
SAMPLE: Final = encode_sample(
    Sample(id=11, pid=1, tid=1, time_ns=segments.TIME_NS, period=1, raw=b"\xee" * 12),
    segments.ATTR,
)


@contextmanager
def memory(size_bytes: int) -> Iterator[int]:
    """Provide memory that processes share."""
    fd = os.memfd_create("shared")
    try:
        os.ftruncate(fd, size_bytes)
        yield fd
    finally:
        os.close(fd)


def left_memory(stack: ExitStack, notes: bytes, rings: bytes = b"") -> LeftStaging:
    """Return memory whose chunks are full of samples, with these notes."""
    size = staging_bytes(CHUNKS, CHUNK_BYTES)
    chunks = stack.enter_context(memory(size))
    whole = SAMPLE * (CHUNK_BYTES // len(SAMPLE))
    for number in range(CHUNKS):
        os.pwrite(chunks, whole, number * CHUNK_BYTES)
    os.pwrite(chunks, notes[: size - CHUNKS * CHUNK_BYTES], CHUNKS * CHUNK_BYTES)
    kept = stack.enter_context(memory(NOTES_BYTES))
    os.pwrite(kept, rings[: NOTE_BYTES * RINGS], STATE_BYTES)
    return LeftStaging(chunks, CHUNKS, CHUNK_BYTES, (kept,))


def left_chunks(
    stack: ExitStack,
    samples: Sequence[int],
    segment: Path,
    *,
    aims: Mapping[int, int] = MappingProxyType({}),
    taken: Mapping[int, int] = MappingProxyType({}),
) -> LeftStaging:
    """Return chunks with so many samples each, of a stream whose segment this is.

    Args:
        stack: frees them.
        samples: by the notes of the chunks.
        segment: to which they have not got yet.
        aims: where chunks were to be written, by their number; and 1 where a round ends.
        taken: by the notes of two rings: samples that each has put into a chunk, by its number.
    """
    status = segment.stat()
    notes = b""
    for number, count in enumerate(samples):
        file = status.st_ino if number in aims else 0
        used = count * len(SAMPLE)
        notes += struct.pack("=5Q24x", number + 1, 0, used, file, aims.get(number, 0))
    stream = struct.pack("=3Q8x", 1, status.st_dev, status.st_ino)
    rings = b""
    for turn, (number, count) in enumerate(taken.items()):
        place = (number + 1) << 22 | count * len(SAMPLE) // 8
        rings += struct.pack("=5Q", turn, 0, 0, 0, 0)
        rings += struct.pack("=2Q8x", *((0, place) if turn & 1 else (place, 0)))
    return left_memory(stack, notes.ljust(CHUNKS * 64, b"\0") + stream, rings)
