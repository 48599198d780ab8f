# SPDX-License-Identifier: Apache-2.0
"""Chunks of perf.data as the core writes them, and their contents for a reader."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import xxhash

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import HEADER_BYTES, frame
from tests.support import segments as support

if TYPE_CHECKING:
    from collectord.sink.base import OpenSegment

FOOTER: Final = 24


def footed(records: bytes, offset: int, table: bytes = bytes(HEADER_BYTES)) -> bytes:
    """Return a chunk as the core writes it, which begins at this place of the file.

    Its padding begins with the table, but for the first word, which is the record's header.
    """
    gap = -(len(records) + len(table) + FOOTER) % support.PAGE_BYTES
    body = table[HEADER_BYTES:] + bytes(gap) + b"CHNKEND1" + offset.to_bytes(8, "little")
    whole = records + frame(RecordType.FINISHED_INIT, 0, body + bytes(8))[:-8]
    return whole + xxhash.xxh3_64_intdigest(whole).to_bytes(8, "little")


def show(segment: OpenSegment, end: int) -> None:
    """Show a running file's records before the padding at `end`, as the core does at a flush."""
    at, base = segment.size_word
    os.pwrite(segment.meta_fd, (end - base).to_bytes(8, "little"), at)


def samples_in(data: bytes) -> list[bytes]:
    """Return the samples of a data section."""
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 6 : at + 8], "little")
        assert size >= HEADER_BYTES
        if data[at] == RecordType.SAMPLE:
            found.append(data[at : at + size])
        at += size
    return found
