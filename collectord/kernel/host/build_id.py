# SPDX-License-Identifier: Apache-2.0
"""GNU build-ids, from ELF files and from bare note sections. No length is trusted."""

from __future__ import annotations

import os
import struct
from typing import Final

_NT_GNU_BUILD_ID: Final = 3
_PT_NOTE: Final = 4
_MAGIC_64_LSB: Final = b"\x7fELF\x02\x01"
_MAGIC_32_LSB: Final = b"\x7fELF\x01\x01"
_NOTE: Final = struct.Struct("<III")
# The first page holds the program headers, and in practice the notes too.
_FIRST_READ_BYTES: Final = 4096
_NOTES_MAX_BYTES: Final = 65536
_BUILD_ID_MAX_BYTES: Final = 20


def from_notes(notes: bytes) -> bytes:
    """Return the build-id in a note section such as /sys/kernel/notes; empty if there is none."""
    at = 0
    while at + _NOTE.size <= len(notes):
        name_bytes, value_bytes, kind = _NOTE.unpack_from(notes, at)
        name_at = at + _NOTE.size
        value_at = name_at + (name_bytes + 3 & ~3)
        if kind == _NT_GNU_BUILD_ID and notes[name_at : name_at + name_bytes] == b"GNU\0":
            value = notes[value_at : value_at + value_bytes]
            return value if len(value) == value_bytes <= _BUILD_ID_MAX_BYTES else b""
        at = value_at + (value_bytes + 3 & ~3)
    return b""


def from_elf(fd: int, begin: int = 0) -> bytes:
    """Return the build-id of an ELF file that begins at a byte of `fd`; empty if it has none.

    It is empty, too, where the file is not ELF.

    Raises:
        OSError: the file cannot be read.
    """
    head = os.pread(fd, _FIRST_READ_BYTES, begin)
    for offset, size in _note_segments(head):
        if offset + size <= len(head):
            notes = head[offset : offset + size]
        else:
            notes = os.pread(fd, min(size, _NOTES_MAX_BYTES), begin + offset)
        found = from_notes(notes)
        if found:
            return found
    return b""


def _note_segments(head: bytes) -> list[tuple[int, int]]:
    """Return offset and size of the PT_NOTE segments whose headers lie within `head`."""
    if head.startswith(_MAGIC_64_LSB) and len(head) >= struct.calcsize("<64x"):
        (table_at,) = struct.unpack_from("<Q", head, 32)
        entry_bytes, count = struct.unpack_from("<HH", head, 54)
        entry, size_at = struct.Struct("<I4xQ"), 32
        size = struct.Struct("<Q")
    elif head.startswith(_MAGIC_32_LSB) and len(head) >= struct.calcsize("<52x"):
        (table_at,) = struct.unpack_from("<I", head, 28)
        entry_bytes, count = struct.unpack_from("<HH", head, 42)
        entry, size_at = struct.Struct("<II"), 16
        size = struct.Struct("<I")
    else:
        return []
    found = []
    for at in range(table_at, table_at + entry_bytes * count, entry_bytes or 1):
        if at + size_at + size.size > len(head):
            break
        kind, offset = entry.unpack_from(head, at)
        if kind == _PT_NOTE and offset < 1 << 63:
            found.append((offset, *size.unpack_from(head, at + size_at)))
    return found
