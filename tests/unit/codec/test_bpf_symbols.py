# SPDX-License-Identifier: Apache-2.0
"""Names of BPF programs' functions, from what the kernel tells of them."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from collectord.codec.bpf_symbols import BpfFunction, symbols_of, type_names
from collectord.codec.perf_bpf import BpfArray, BpfImage, Btf
from collectord.codec.perf_sideband import BpfEvent, Ksymbol

TAG: Final = bytes(range(8))
STRINGS: Final = b"\0main\0helper\0"
MAIN, HELPER = 1, 6
INT, STRUCT, FUNC, FUNC_PROTO = 1, 4, 12, 13


def _type(name: int, kind: int, members: int = 0, behind: int = 0) -> bytes:
    return struct.pack("<III", name, kind << 24 | members, 0) + bytes(behind)


TYPES: Final = (
    _type(0, INT, behind=4)
    + _type(0, STRUCT, 3, 36)
    + _type(0, FUNC_PROTO, 2, 16)
    + _type(MAIN, FUNC)
    + _type(HELPER, FUNC)
)


def _btf(types: bytes = TYPES) -> bytes:
    sizes = (0, len(types), len(types), len(STRINGS))
    return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, *sizes) + types + STRINGS


def _image(count: int, *, name: bytes = b"whole", types: tuple[int, ...] = ()) -> BpfImage:
    info = bytearray(232)
    struct.pack_into("<I", info, 4, 9)
    info[8:16] = TAG
    struct.pack_into("<Q16s", info, 40, 77, b"")
    info[64 : 64 + len(name)] = name
    struct.pack_into("<I", info, 132, 8)
    arrays = {
        BpfArray.JITED_KSYMS: struct.pack(f"<{count}Q", *(0x1000 * (i + 1) for i in range(count))),
        BpfArray.JITED_FUNC_LENS: struct.pack(f"<{count}I", *(8 * (i + 1) for i in range(count))),
        BpfArray.PROG_TAGS: b"".join(bytes([i]) * 8 for i in range(count)),
        BpfArray.FUNC_INFO: b"".join(struct.pack("<II", 0, number) for number in types),
    }
    return BpfImage(bytes(info), arrays)


def test_functions_have_the_names_of_their_types() -> None:
    """Each function has its own tag, place and length."""
    found = symbols_of(_image(2, types=(4, 5)), Btf(1, _btf()))
    assert (found.id, found.tag, found.loaded_ns) == (9, TAG, 77)
    assert found.functions == (
        BpfFunction(b"bpf_prog_0000000000000000_main", 0x1000, 8),
        BpfFunction(b"bpf_prog_0101010101010101_helper", 0x2000, 16),
    )
    *symbols, event = found.records()
    assert [r.addr for r in symbols if isinstance(r, Ksymbol)] == [0x1000, 0x2000]
    assert event == BpfEvent(1, 0, 9, TAG)


def test_without_types_a_program_has_its_own_name() -> None:
    """If it is one function; of several perf calls each F."""
    (one,) = symbols_of(_image(1), None).functions
    assert one.name == b"bpf_prog_0000000000000000_whole"
    (nameless,) = symbols_of(_image(1, name=b""), None).functions
    assert nameless.name == b"bpf_prog_0000000000000000"
    several = symbols_of(_image(2), None).functions
    assert [f.name[-2:] for f in several] == [b"_F", b"_F"]


@pytest.mark.parametrize(
    "data",
    [b"", _btf()[:20], b"\0" * 24, _btf(_type(0, 31) + TYPES), _btf()[:30], _btf(TYPES[:20])],
)
def test_damaged_types_name_nothing(data: bytes) -> None:
    """Unknown kinds and short data end the walk."""
    assert not any(type_names(data, {4, 5}).values())
    (one,) = symbols_of(_image(1, types=(4,)), Btf(1, data)).functions
    assert one.name == b"bpf_prog_0000000000000000"


def test_lists_of_different_length_are_cut() -> None:
    """The kernel may tell of fewer types than functions."""
    functions = symbols_of(_image(2, types=(4,)), Btf(1, _btf())).functions
    assert [f.name.split(b"_", 3)[3:] for f in functions] == [[b"main"], []]
