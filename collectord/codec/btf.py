# SPDX-License-Identifier: Apache-2.0
"""Names and numbers of types in BTF, a program's own or the kernel's.

Layout: include/uapi/linux/btf.h. Types follow one another, each with the length of its kind, and
are numbered from 1.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

_MAGIC: Final = b"\x9f\xeb"
# struct btf_header: magic, version, flags, length; types, strings: offset and length behind it.
_HEADER: Final = struct.Struct("<HBBIIIII")
_TYPE: Final = struct.Struct("<III")  # name, kind and count of members, size or type
_KIND_AT: Final = 24
_KIND_MASK: Final = 0x1F
_COUNT_MASK: Final = 0xFFFF
_FUNCTION: Final = 12
# Bytes behind a type, by kind: once, and for each member.
_BEHIND: Final = {
    1: (4, 0),  # INT
    2: (0, 0),  # PTR
    3: (12, 0),  # ARRAY
    4: (0, 12),  # STRUCT
    5: (0, 12),  # UNION
    6: (0, 8),  # ENUM
    7: (0, 0),  # FWD
    8: (0, 0),  # TYPEDEF
    9: (0, 0),  # VOLATILE
    10: (0, 0),  # CONST
    11: (0, 0),  # RESTRICT
    12: (0, 0),  # FUNC
    13: (0, 8),  # FUNC_PROTO
    14: (4, 0),  # VAR
    15: (0, 12),  # DATASEC
    16: (0, 0),  # FLOAT
    17: (4, 0),  # DECL_TAG
    18: (0, 0),  # TYPE_TAG
    19: (0, 12),  # ENUM64
}


class _Types:
    """The types of BTF and their names. Data without its mark or too short for it have none."""

    def __init__(self, data: bytes) -> None:
        self._types, self._names = memoryview(b""), b""
        if len(data) >= _HEADER.size and data.startswith(_MAGIC):
            _, _, _, head, types_at, types_bytes, names_at, names_bytes = _HEADER.unpack_from(data)
            self._types = memoryview(data)[head + types_at :][:types_bytes]
            self._names = data[head + names_at :][:names_bytes]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield place of the name and kind, as far as data are whole and kinds are known."""
        at = 0
        while at + _TYPE.size <= len(self._types):
            name_at, info, _ = _TYPE.unpack_from(self._types, at)
            kind = info >> _KIND_AT & _KIND_MASK
            behind = _BEHIND.get(kind)
            if behind is None:
                return
            yield name_at, kind
            at += _TYPE.size + behind[0] + behind[1] * (info & _COUNT_MASK)

    def name(self, at: int) -> bytes:
        """Return the name at a place."""
        return self._names[at:].partition(b"\0")[0]

    def place(self, name: bytes) -> int:
        """Return the place of a name, -1 if it is absent."""
        found = self._names.find(b"\0" + name + b"\0")
        return found + 1 if found >= 0 else -1


def type_names(data: bytes, wanted: AbstractSet[int]) -> dict[int, bytes]:
    """Return names of types by number."""
    types = _Types(data)
    numbered = islice(enumerate(types, start=1), max(wanted, default=0))
    return {number: types.name(at) for number, (at, _) in numbered if number in wanted}


def function_id(data: bytes, name: bytes) -> int:
    """Return the number of a function, 0 if it is absent."""
    types = _Types(data)
    wanted = (types.place(name), _FUNCTION)
    return next((number for number, found in enumerate(types, start=1) if found == wanted), 0)
