# SPDX-License-Identifier: Apache-2.0
"""Pieces of AUX traces with their framing, as the core writes them."""

from __future__ import annotations

import struct
from typing import Final

from collectord.codec.aux_record import HIDDEN_BYTES, HIDDEN_MAGIC
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import HEADER_BYTES, frame
from collectord.errors import CodecError

# The bytes that one hidden record holds: its size field has 16 bits.
HIDDEN_PAYLOAD_MAX_BYTES: Final = 65528 - HIDDEN_BYTES
_PIECE: Final = struct.Struct("<QQQIiiI")
_MAGIC: Final = struct.Struct("<Q")


def encode_piece(
    payload: bytes,
    *,
    offset: int,
    cpu: int = -1,
    tid: int = -1,
    idx: int = 0,
    reference: int = 0,
    hidden: bool = False,
) -> bytes:
    """Return a piece of trace with its framing; a long one is hidden in several records.

    Raises:
        CodecError: a value does not fit its field.
    """
    step = HIDDEN_PAYLOAD_MAX_BYTES if hidden else max(len(payload), 1)
    parts = []
    for at in range(0, len(payload), step):
        part = payload[at : at + step]
        pad = -len(part) % 8
        numbers = (len(part) + pad, offset + at, reference, idx, tid, cpu, pad)
        try:
            body = _PIECE.pack(*numbers)
        except struct.error as error:
            message = f"AUX piece: {error}"
            raise CodecError(message, offset=HEADER_BYTES, reason="record_value") from error
        whole = part + bytes(pad)
        if hidden:
            body = _MAGIC.pack(HIDDEN_MAGIC) + body + whole
            parts.append(frame(RecordType.FINISHED_INIT, 0, body))
        else:
            parts += [frame(RecordType.AUXTRACE, 0, body), whole]
    return b"".join(parts)
