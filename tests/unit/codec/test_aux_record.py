# SPDX-License-Identifier: Apache-2.0
"""Records of AUX areas, and the trace in both framings."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from collectord._native import _core
from collectord.codec.aux_record import HIDDEN_MAGIC, auxtrace_index, iter_pieces, piece_at
from collectord.codec.perf_attr import PerfEventAttr, RecordType, SampleType
from collectord.codec.perf_record import (
    RECORD_MAX_BYTES,
    RecordHeader,
    SampleId,
    frame,
    iter_records,
)
from collectord.errors import CodecError
from tests.support.aux_pieces import HIDDEN_PAYLOAD_MAX_BYTES, encode_piece
from tests.support.aux_records import (
    Aux,
    AuxOutputHwId,
    AuxRecord,
    ItraceStart,
    SwitchCpuWide,
    decode,
    encode,
)
from tests.support.perf_ids import decode_sample_id, header_at

ATTR: Final = PerfEventAttr(
    sample_id_all=True,
    sample_type=SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME | SampleType.CPU,
)
IDS: Final = SampleId(pid=7, tid=8, time_ns=900, id=3, cpu=1)
TRACE: Final = bytes(range(256)) * 40


@pytest.mark.parametrize(
    ("record", "kind", "body"),
    [
        (Aux(1 << 40, 4096, 5), RecordType.AUX, struct.pack("<QQQ", 1 << 40, 4096, 5)),
        (ItraceStart(7, 8), RecordType.ITRACE_START, struct.pack("<II", 7, 8)),
        (AuxOutputHwId(0x31), RecordType.AUX_OUTPUT_HW_ID, struct.pack("<Q", 0x31)),
        (SwitchCpuWide(9, 10), RecordType.SWITCH_CPU_WIDE, struct.pack("<II", 9, 10)),
        (SwitchCpuWide(9, 10, is_out=True), RecordType.SWITCH_CPU_WIDE, b""),
    ],
)
def test_records_of_the_kernel(record: AuxRecord, kind: RecordType, body: bytes) -> None:
    """Each is framed as the kernel frames it, and is read back."""
    raw = encode(record, ATTR, IDS)
    (header,) = iter_records(raw)
    assert header.type == kind
    assert raw[8:].startswith(body)
    assert decode(raw, header, ATTR) == record
    assert decode_sample_id(raw, header, ATTR) == IDS


def test_other_records() -> None:
    """A record without a class here is nobody's; one that is too short is an error."""
    lost = frame(RecordType.LOST, 0, bytes(48))
    assert decode(lost, header_at(lost, 0), ATTR) is None
    short = frame(RecordType.AUX, 0, bytes(40))
    with pytest.raises(CodecError, match="AUX too short"):
        decode(short, header_at(short, 0), ATTR)
    with pytest.raises(CodecError, match="ItraceStart"):
        encode(ItraceStart(-1, 0), ATTR, IDS)


def test_shown_piece() -> None:
    """The record has 48 bytes whatever follows it; the payload is padded to whole words."""
    raw = encode_piece(TRACE[:21], offset=1 << 33, cpu=2, idx=5, reference=77)
    assert raw[:8] == struct.pack("<IHH", 71, 0, 48)
    assert struct.unpack_from("<QQQIiiI", raw, 8) == (24, 1 << 33, 77, 5, -1, 2, 3)
    assert raw[48:] == TRACE[:21] + bytes(3)
    (piece,) = iter_pieces(raw)
    assert (piece.offset, piece.cpu, piece.tid, piece.idx) == (1 << 33, 2, -1, 5)
    assert (piece.at, piece.size, piece.record, piece.hidden) == (48, 21, 0, False)


def test_hidden_piece() -> None:
    """A long trace is in several records, each as FINISHED_INIT that says its size itself."""
    trace = TRACE * 20
    raw = encode_piece(trace, offset=96, tid=1234, cpu=-1, hidden=True)
    headers = list(iter_records(raw))
    assert {header.type for header in headers} == {RecordType.FINISHED_INIT}
    assert max(header.size for header in headers) == RECORD_MAX_BYTES
    pieces = list(iter_pieces(raw))
    assert len(pieces) == -(-len(trace) // HIDDEN_PAYLOAD_MAX_BYTES) > 3
    assert b"".join(raw[p.at : p.at + p.size] for p in pieces) == trace
    assert [p.offset for p in pieces] == [
        96 + n * HIDDEN_PAYLOAD_MAX_BYTES for n in range(len(pieces))
    ]
    assert all(p.hidden and p.tid == 1234 and p.cpu == -1 for p in pieces)


def test_padding_is_no_piece() -> None:
    """FINISHED_INIT is a chunk's padding as well: only the magic tells."""
    padding = frame(RecordType.FINISHED_INIT, 0, bytes(120)) + frame(
        RecordType.FINISHED_INIT, 0, b""
    )
    assert not list(iter_pieces(padding))
    hidden = bytearray(encode_piece(TRACE[:8], offset=0, hidden=True))
    hidden[8] ^= 1
    assert not list(iter_pieces(bytes(hidden)))


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(("size", "pad"), [(1 << 40, 0), (4104, 0), (12, 0), (64, 8), (0, 1)])
def test_sizes_are_not_trusted(hidden: bool, size: int, pad: int) -> None:
    """A piece that does not fit, or is padded by more than a word, is an error."""
    raw = bytearray(encode_piece(TRACE[:4096], offset=0, hidden=hidden))
    at = 16 if hidden else 8
    struct.pack_into("<Q", raw, at, size)
    struct.pack_into("<I", raw, at + 36, pad)
    with pytest.raises(CodecError):
        list(iter_pieces(bytes(raw)))


def test_auxtrace_of_other_writers() -> None:
    """A piece is read where its record is known to be one, cut data or not."""
    raw = encode_piece(TRACE[:64], offset=0)
    header = RecordHeader(RecordType.AUXTRACE, 0, 48, 0)
    assert piece_at(raw, header) is not None
    with pytest.raises(CodecError, match="64 bytes"):
        piece_at(raw[:100], header)


def test_index_ends_at_damage() -> None:
    """The offsets are those of the AUXTRACE records before the first that is no record."""
    shown, hidden = encode_piece(TRACE[:8], offset=0), encode_piece(TRACE, offset=8, hidden=True)
    data = shown + hidden + shown
    assert list(auxtrace_index(data)) == [0, len(shown) + len(hidden)]
    assert list(auxtrace_index(data[:-1])) == [0]
    assert list(auxtrace_index(shown + bytes(8) + shown)) == [0]


def test_native_core_has_the_same_magic() -> None:
    """The writer and this reader agree on what a hidden piece is."""
    assert HIDDEN_MAGIC == _core.AUX_HIDDEN_MAGIC == int.from_bytes(b"COTDAUX1", "little")
