# SPDX-License-Identifier: Apache-2.0
"""Sections about BPF programs and their types."""

from __future__ import annotations

import struct

from collectord.codec.perf_bpf import BpfArray, BpfImage, Btf, LoadedBpf, encode_bpf
from collectord.codec.perf_section import Feature


def test_arrays_follow_the_struct_and_are_found_by_offset() -> None:
    """The kernel's pointers become offsets, those of arrays that are absent 0."""
    info = bytearray(struct.pack("<II", 6, 109).ljust(240, b"\xee"))
    arrays = {BpfArray.PROG_TAGS: b"t" * 8, BpfArray.JITED_FUNC_LENS: b"l" * 4}
    sections = dict(encode_bpf(LoadedBpf((BpfImage(bytes(info), arrays),))))
    section = sections[Feature.BPF_PROG_INFO]
    assert section[:20] == struct.pack("<IIIQ", 1, 232, 16, 1 << 8 | 1 << 4)
    told = section[20:252]
    assert told[:24] == info[:24]
    assert [struct.unpack_from("<Q", told, at)[0] for at in (24, 112, 120, 184)] == [0, 0, 0, 8]
    assert section[252:] == b"llll" + bytes(4) + b"t" * 8


def test_a_short_struct_is_filled_up() -> None:
    """A kernel that tells less of a program leaves the rest 0."""
    image = BpfImage(struct.pack("<II", 6, 109), {})
    (_, section), _ = encode_bpf(LoadedBpf((image,)))
    assert section == struct.pack("<IIIQII", 1, 232, 0, 0, 6, 109) + bytes(224)


def test_types_and_none_at_all() -> None:
    """Types have their number and size ahead; without programs both sections say so."""
    sections = dict(encode_bpf(LoadedBpf((), (Btf(15, b"raw"),))))
    assert sections[Feature.BPF_BTF] == struct.pack("<III3s", 1, 15, 3, b"raw")
    assert list(encode_bpf(LoadedBpf())) == [
        (Feature.BPF_PROG_INFO, bytes(4)),
        (Feature.BPF_BTF, bytes(4)),
    ]
