# SPDX-License-Identifier: Apache-2.0
"""GNU build-ids and the parts of ELF files that are loaded. No length is trusted."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

# Returns at most so many bytes from an offset on.
Read = Callable[[int, int], bytes]

_NT_GNU_BUILD_ID: Final = 3
_PT_LOAD: Final = 1
_PT_NOTE: Final = 4
_MAGIC_64_LSB: Final = b"\x7fELF\x02\x01"
_MAGIC_32_LSB: Final = b"\x7fELF\x01\x01"
_NOTE: Final = struct.Struct("<III")
# The first page holds the program headers, and in practice the notes too.
_FIRST_READ_BYTES: Final = 4096
_NOTES_MAX_BYTES: Final = 65536
BUILD_ID_MAX_BYTES: Final = 20


class Part(NamedTuple):
    """A part of a file that a program header describes; offsets and lengths in bytes."""

    kind: int
    offset: int
    address: int
    length: int


class _Layout(NamedTuple):
    """The place of the program headers in a header, and of the fields in each of them."""

    header_bytes: int
    word: struct.Struct
    table_at: int
    sizes_at: int
    offset_at: int
    address_at: int
    length_at: int


_LAYOUTS: Final = {
    _MAGIC_64_LSB: _Layout(64, struct.Struct("<Q"), 32, 54, 8, 16, 32),
    _MAGIC_32_LSB: _Layout(52, struct.Struct("<I"), 28, 42, 4, 8, 16),
}
_KIND: Final = struct.Struct("<I")
_SIZES: Final = struct.Struct("<HH")


def from_notes(notes: bytes) -> bytes:
    """Return the build-id in a note section such as /sys/kernel/notes; empty if there is none."""
    at = 0
    while at + _NOTE.size <= len(notes):
        name_bytes, value_bytes, kind = _NOTE.unpack_from(notes, at)
        name_at = at + _NOTE.size
        value_at = name_at + (name_bytes + 3 & ~3)
        if kind == _NT_GNU_BUILD_ID and notes[name_at : name_at + name_bytes] == b"GNU\0":
            value = notes[value_at : value_at + value_bytes]
            return value if len(value) == value_bytes <= BUILD_ID_MAX_BYTES else b""
        at = value_at + (value_bytes + 3 & ~3)
    return b""


def build_id(read: Read) -> bytes:
    """Return the build-id of an ELF file; empty if it has none, or where the file is not ELF.

    Raises what `read` raises.
    """
    head = read(_FIRST_READ_BYTES, 0)
    for part in _parts(head):
        if part.kind != _PT_NOTE or part.offset >= 1 << 63:
            continue
        if part.offset + part.length <= len(head):
            notes = head[part.offset : part.offset + part.length]
        else:
            notes = read(min(part.length, _NOTES_MAX_BYTES), part.offset)
        found = from_notes(notes)
        if found:
            return found
    return b""


def loaded(read: Read) -> tuple[Part, ...]:
    """Return the parts of an ELF file that are mapped; none if the file is not ELF.

    Raises what `read` raises.
    """
    return tuple(part for part in _parts(read(_FIRST_READ_BYTES, 0)) if part.kind == _PT_LOAD)


def _parts(head: bytes) -> list[Part]:
    """Return the parts whose program headers lie within `head`."""
    layout = _LAYOUTS.get(head[: len(_MAGIC_64_LSB)])
    if layout is None or len(head) < layout.header_bytes:
        return []
    (table_at,) = layout.word.unpack_from(head, layout.table_at)
    entry_bytes, count = _SIZES.unpack_from(head, layout.sizes_at)
    found = []
    for at in range(table_at, table_at + entry_bytes * count, entry_bytes or 1):
        if at + layout.length_at + layout.word.size > len(head):
            break
        (kind,) = _KIND.unpack_from(head, at)
        places = (layout.offset_at, layout.address_at, layout.length_at)
        words = (layout.word.unpack_from(head, at + place)[0] for place in places)
        found.append(Part(kind, *words))
    return found
