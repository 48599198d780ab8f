# SPDX-License-Identifier: Apache-2.0
"""Names of functions in BTF, the types that a BPF program was loaded with.

Layout: include/uapi/linux/btf.h. Types follow one another, each with the length of its kind, and
are numbered from 1.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_MAGIC: Final = 0xEB9F
# struct btf_header: magic, version, flags, length; types, strings: offset and length behind it.
_HEADER: Final = struct.Struct("<HBBIIIII")
_TYPE: Final = struct.Struct("<III")  # name, kind and count of members, size or type
_KIND_AT: Final = 24
_KIND_MASK: Final = 0x1F
_COUNT_MASK: Final = 0xFFFF
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


def type_names(data: bytes, wanted: AbstractSet[int]) -> dict[int, bytes]:
    """Return names of types by number, as far as the data are whole and the kinds are known."""
    found: dict[int, bytes] = {}
    if len(data) < _HEADER.size:
        return found
    magic, _, _, length, types_at, types_bytes, strings_at, strings_bytes = _HEADER.unpack_from(
        data
    )
    if magic != _MAGIC:
        return found
    types = memoryview(data)[length + types_at :][:types_bytes]
    strings = data[length + strings_at :][:strings_bytes]
    at = 0
    for number in range(1, max(wanted, default=0) + 1):
        if at + _TYPE.size > len(types):
            break
        name_at, info, _ = _TYPE.unpack_from(types, at)
        behind = _BEHIND.get(info >> _KIND_AT & _KIND_MASK)
        if behind is None:
            break
        if number in wanted:
            found[number] = strings[name_at:].partition(b"\0")[0]
        at += _TYPE.size + behind[0] + behind[1] * (info & _COUNT_MASK)
    return found
