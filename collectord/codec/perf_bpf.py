# SPDX-License-Identifier: Apache-2.0
"""Feature sections of perf.data about BPF programs: the loaded programs, their code and types.

Encodings are those of write_bpf_prog_info() and write_bpf_btf() in tools/perf/util/header.c; a
program's encoding is `struct perf_bpil` (tools/perf/util/bpf-utils.h): the kernel's struct
bpf_prog_info, with offsets instead of pointers, and the arrays that they point to.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.cursor import U32, U64
from collectord.codec.perf_section import Feature, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Up to attach_btf_id inclusive, as in perf 6.1 and 6.12: they refuse a longer one.
INFO_BYTES: Final = 232
_ID: Final = struct.Struct("<4xI")
_BTF_ID: Final = struct.Struct("<128xI")


class BpfArray(IntEnum):
    """Arrays of a program, enum perf_bpil_array_types."""

    JITED_INSNS = 0
    XLATED_INSNS = 1
    MAP_IDS = 2
    JITED_KSYMS = 3
    JITED_FUNC_LENS = 4
    FUNC_INFO = 5
    LINE_INFO = 6
    JITED_LINE_INFO = 7
    PROG_TAGS = 8


class ArrayPlace(NamedTuple):
    """The fields of struct bpf_prog_info that describe an array; offsets in bytes.

    Attributes:
        at: of the u64 that points to it.
        count_at: of the u32 that counts its entries.
        entry_bytes: size of an entry, 0 if a u32 of the struct holds the size.
        size_at: of that u32.
    """

    at: int
    count_at: int
    entry_bytes: int
    size_at: int = 0


# include/uapi/linux/bpf.h, struct bpf_prog_info.
ARRAY_PLACES: Final[Mapping[BpfArray, ArrayPlace]] = {
    BpfArray.JITED_INSNS: ArrayPlace(24, 16, 1),
    BpfArray.XLATED_INSNS: ArrayPlace(32, 20, 1),
    BpfArray.MAP_IDS: ArrayPlace(56, 52, 4),
    BpfArray.JITED_KSYMS: ArrayPlace(112, 104, 8),
    BpfArray.JITED_FUNC_LENS: ArrayPlace(120, 108, 4),
    BpfArray.FUNC_INFO: ArrayPlace(136, 144, 0, 132),
    BpfArray.LINE_INFO: ArrayPlace(152, 148, 0, 172),
    BpfArray.JITED_LINE_INFO: ArrayPlace(160, 168, 0, 176),
    BpfArray.PROG_TAGS: ArrayPlace(184, 180, 8),
}


@dataclass(frozen=True, slots=True, weakref_slot=True)
class BpfImage:
    """A loaded program.

    Attributes:
        info: struct bpf_prog_info from the kernel, with pointers that have no meaning.
        arrays: the arrays that it describes, of the sizes in the struct.
    """

    info: bytes
    arrays: Mapping[BpfArray, bytes]

    @property
    def id(self) -> int:
        """The kernel's number of the program."""
        number: int = _ID.unpack_from(self.info)[0]
        return number

    @property
    def btf_id(self) -> int:
        """The kernel's number of the program's types, 0 for none."""
        number: int = _BTF_ID.unpack_from(self.info)[0]
        return number

    @property
    def size_bytes(self) -> int:
        """The approximate size of the program's part of a section."""
        return len(self.info) + sum(map(len, self.arrays.values()))


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Btf:
    """The types of programs: the kernel's number for them, and the raw BTF."""

    id: int
    data: bytes


class LoadedBpf(NamedTuple):
    """Programs, and the types of those that have any; readers look both up by number."""

    programs: tuple[BpfImage, ...] = ()
    types: tuple[Btf, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The approximate size of both sections."""
        types = sum(len(btf.data) for btf in self.types)
        return types + sum(image.size_bytes for image in self.programs)


def encode_bpf(loaded: LoadedBpf) -> Iterator[tuple[Feature, bytes]]:
    """Yield the sections, even if no program is loaded: perf writes empty ones too."""
    yield Feature.BPF_PROG_INFO, counted(map(_image, loaded.programs))
    types = (U32.pack(btf.id) + U32.pack(len(btf.data)) + btf.data for btf in loaded.types)
    yield Feature.BPF_BTF, counted(types)


def _image(program: BpfImage) -> bytes:
    """Return sizes, the set of arrays, the struct, and the arrays at multiples of 8 bytes."""
    info = bytearray(program.info[:INFO_BYTES].ljust(INFO_BYTES, b"\0"))
    data = b""
    for array, place in ARRAY_PLACES.items():
        if array in program.arrays:
            U64.pack_into(info, place.at, len(data))
            data += program.arrays[array] + bytes(-len(program.arrays[array]) % 8)
        else:
            U64.pack_into(info, place.at, 0)
    present = sum(1 << array for array in program.arrays)
    return U32.pack(len(info)) + U32.pack(len(data)) + U64.pack(present) + bytes(info) + data
