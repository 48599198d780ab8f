# SPDX-License-Identifier: Apache-2.0
"""The feature table of perf.data, behind the data section: of a complete and of a running file.

It has a {u64 offset, u64 size} for each set bit of the header's bitmap, ascending. Bit 0 is
HEADER_RESERVED: perf has no section of it, and passes its entry by, wherever that points
(tools/perf/util/header.c, perf_header__process_sections()).

While a file is written, bit 0 is set, and each chunk of records ends with a padding record that
begins with the table: the record's header is the offset in the entry of bit 0. Thus the data
section may end before any padding, and readers find the table there; once more data are shown, the
padding is a record that they skip. Neither the data nor the table ever change, so one word of the
header, the size, shows more of the file, and a copy is sound whenever it is taken.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import HEADER_BYTES, frame
from collectord.codec.perf_section import Feature
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENTRY: Final = struct.Struct("<QQ")
DATA_SIZE_AT: Final = 48  # of the size of the data section, in the header
# The core takes a table of this size: CHUNK_TABLE_BYTES in chunk.h.
TABLE_MAX_BYTES: Final = 512


def feature_table(sections: Mapping[int, tuple[int, int]]) -> bytes:
    """Return the table of a complete file; `sections`: offset and size by feature."""
    return b"".join(_ENTRY.pack(*sections[bit]) for bit in sorted(sections))


def running_table(sections: Mapping[int, tuple[int, int]]) -> bytes:
    """Return the table of a running file, in whose first word the header of a padding goes.

    Raises:
        CodecError: there are more sections than a chunk keeps room for.
    """
    table = feature_table({**sections, Feature.RESERVED: (0, 0)})
    if len(table) > TABLE_MAX_BYTES:
        raise CodecError(f"table of {len(table)} bytes", offset=0, reason="table")
    return table


def padding(table: bytes, at: int, align: int) -> bytes:
    """Return a padding record that begins with a running table and ends at a multiple of `align`.

    `at` is its offset, a multiple of 8.
    """
    size = len(table) + -(at + len(table)) % align
    body = table[HEADER_BYTES:].ljust(size - HEADER_BYTES, b"\0")
    return frame(RecordType.FINISHED_INIT, 0, body)
