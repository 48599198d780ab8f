# SPDX-License-Identifier: Apache-2.0
"""Records of AUX areas: the trace in a file.

It has two framings. AUXTRACE is perf's: a header of 48 bytes, followed by the
payload, which is not included in the record's size. Perf passes it to the decoder that
AUXTRACE_INFO names, and rejects a file that has one without the other. A trace for which perf has
no decoder is hidden from it, in FINISHED_INIT records that every reader skips by their size:

- AUXTRACE: header | u64 size, offset, reference; u32 idx, tid, cpu, pad | payload
- FINISHED_INIT: header | u64 magic | the same 40 bytes | payload

`size` is a multiple of 8, and `pad` is the number of its bytes that are not trace: perf calls that
field reserved. A piece is as long as the unread bytes; one longer than a record can hold is hidden
in several.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import AUXTRACE_BYTES, HEADER_BYTES, iter_records
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.codec.perf_record import RecordHeader

# "COTDAUX1" in the file's byte order; tells a hidden piece from a chunk's padding.
HIDDEN_MAGIC: Final = 0x3158554144544F43
HIDDEN_BYTES: Final = 56

_PIECE: Final = struct.Struct("<QQQIiiI")
_MAGIC: Final = struct.Struct("<Q")


class AuxPiece(NamedTuple):
    """A run of trace in a data section.

    Attributes:
        idx: number of the queue, as perf counts them.
        cpu: -1 if the area belongs to a thread.
        tid: -1 if it belongs to a CPU.
        offset: position of the first byte in the trace, which continues from segment to segment.
        reference: value set by its recorder.
        record: offset of the record in the data.
        at: offset of the payload in the data.
        size: bytes of trace, without padding.
        hidden: framed so that perf skips it.
    """

    idx: int
    cpu: int
    tid: int
    offset: int
    reference: int
    record: int
    at: int
    size: int
    hidden: bool


def piece_at(data: bytes | memoryview, header: RecordHeader) -> AuxPiece | None:
    """Read the piece of trace in a record, or right behind it; None for other records.

    Raises:
        CodecError: its sizes contradict each other, or reach past the end of the data.
    """
    at = header.offset + HEADER_BYTES
    if header.type == RecordType.AUXTRACE:
        start, hidden = header.offset + AUXTRACE_BYTES, False
    elif header.type == RecordType.FINISHED_INIT and _is_hidden(data, header):
        start, hidden = header.offset + HIDDEN_BYTES, True
        at += _MAGIC.size
    else:
        return None
    size, offset, reference, idx, tid, cpu, pad = _PIECE.unpack_from(data, at)
    room = header.offset + header.size - start if hidden else len(data) - start
    if size > room or size % 8 or pad >= 8 or pad > size:  # noqa: PLR2004 - pads to whole words
        message = f"AUX piece of {size} bytes, {pad} of them to pad"
        raise CodecError(message, offset=header.offset, reason="aux_size")
    return AuxPiece(
        idx=idx,
        cpu=cpu,
        tid=tid,
        offset=offset,
        reference=reference,
        record=header.offset,
        at=start,
        size=size - pad,
        hidden=hidden,
    )


def _is_hidden(data: bytes | memoryview, header: RecordHeader) -> bool:
    if header.size < HIDDEN_BYTES:
        return False
    (magic,) = _MAGIC.unpack_from(data, header.offset + HEADER_BYTES)
    return bool(magic == HIDDEN_MAGIC)


def iter_pieces(data: bytes | memoryview, start: int = 0) -> Iterator[AuxPiece]:
    """Yield the pieces of trace of a data section, in its order.

    Raises:
        CodecError: as `iter_records` and `piece_at`.
    """
    for header in iter_records(data, start):
        piece = piece_at(data, header)
        if piece is not None:
            yield piece


def auxtrace_index(data: bytes | memoryview) -> Iterator[int]:
    """Yield the offsets of the AUXTRACE records of a data section, as far as it is whole."""
    try:
        for header in iter_records(data):
            if header.type == RecordType.AUXTRACE:
                yield header.offset
    except CodecError:
        return
