# SPDX-License-Identifier: Apache-2.0
"""The feature sections of perf.data, and their common encodings."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from collectord.codec.cursor import U32
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAGIC: Final = b"PERFILE2"
# perf pads strings to this size, including a NUL.
_STRING_ALIGN_BYTES: Final = 64
_U32_MASK: Final = (1 << 32) - 1


class Feature(IntEnum):
    """Bits of the header's feature bitmap, HEADER_*; only those that are written or read.

    RESERVED has no section: it is set while a file is written (perf_table).
    """

    RESERVED = 0
    TRACING_DATA = 1
    BUILD_ID = 2
    HOSTNAME = 3
    OSRELEASE = 4
    VERSION = 5
    ARCH = 6
    NRCPUS = 7
    CPUDESC = 8
    CPUID = 9
    TOTAL_MEM = 10
    CMDLINE = 11
    EVENT_DESC = 12
    CPU_TOPOLOGY = 13
    NUMA_TOPOLOGY = 14
    PMU_MAPPINGS = 16
    GROUP_DESC = 17
    AUXTRACE = 18
    CACHE = 20
    SAMPLE_TIME = 21
    MEM_TOPOLOGY = 22
    CLOCKID = 23
    BPF_PROG_INFO = 25
    BPF_BTF = 26
    COMPRESSED = 27
    CPU_PMU_CAPS = 28
    CLOCK_DATA = 29
    PMU_CAPS = 31


def encode_string(text: str) -> bytes:
    """Return perf's string: u32 padded length, then the text padded with NUL, at least one."""
    data = padded(text)
    return U32.pack(len(data)) + data


def padded(text: str) -> bytes:
    """Return the text with NULs behind it, at least one, up to a multiple of 64 bytes.

    Raises:
        CodecError: the text itself has a NUL.
    """
    data = text.encode(errors="surrogateescape")
    if b"\0" in data:
        raise CodecError(f"NUL in {text!r}", offset=data.index(b"\0"), reason="string")
    return data + bytes(_STRING_ALIGN_BYTES - len(data) % _STRING_ALIGN_BYTES)


def counted(rows: Iterable[bytes]) -> bytes:
    """Return the rows, preceded by their number as a u32."""
    parts = list(rows)
    return U32.pack(len(parts)) + b"".join(parts)


def encode_signed(value: int) -> bytes:
    """Return a u32 in which -1 stands for an unknown number."""
    return U32.pack(value & _U32_MASK)
