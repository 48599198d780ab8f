# SPDX-License-Identifier: Apache-2.0
"""Records at the beginning that describe a file's ids, threads and CPUs.

Bodies are those of tools/lib/perf/include/perf/event.h; the kernel writes none of them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.cursor import U64
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import HEADER_BYTES, RECORD_MAX_BYTES, frame

if TYPE_CHECKING:
    from collections.abc import Sequence

_ID_ENTRY: Final = struct.Struct("<QQqq")
_THREAD_ENTRY: Final = struct.Struct("<q16s")
_CPU_LIST: Final = struct.Struct("<HH")  # PERF_CPU_MAP__CPUS, and the number of CPUs
_CPU: Final = struct.Struct("<h")
_BODY_MAX_BYTES: Final = RECORD_MAX_BYTES - HEADER_BYTES - U64.size
_IDS_MAX: Final = _BODY_MAX_BYTES // _ID_ENTRY.size
_THREADS_MAX: Final = _BODY_MAX_BYTES // _THREAD_ENTRY.size
_CPUS_MAX: Final = _BODY_MAX_BYTES // _CPU.size


class IdPlace(NamedTuple):
    """The ring, CPU and thread that an id's samples come from.

    Attributes:
        id: of an event, on one CPU or of one thread.
        ring: number of its ring among the session's.
        cpu: the counted CPU, -1 for all.
        tid: the counted thread, -1 for all.
    """

    id: int
    ring: int
    cpu: int
    tid: int


def encode_targets(ids: Sequence[IdPlace]) -> bytes:
    """Return the necessary number of ID_INDEX records, THREAD_MAP and CPU_MAP.

    Threads and CPUs are those of the ids, as many as fit into a record; -1 means all.
    """
    tids = sorted({place.tid for place in ids})[:_THREADS_MAX]
    cpus = sorted({place.cpu for place in ids})[:_CPUS_MAX]
    parts = [_id_index(ids[at : at + _IDS_MAX]) for at in range(0, len(ids), _IDS_MAX)]
    threads = b"".join(_THREAD_ENTRY.pack(tid, b"") for tid in tids)
    parts.append(frame(RecordType.THREAD_MAP, 0, U64.pack(len(tids)) + threads))
    numbers = _CPU_LIST.pack(0, len(cpus)) + b"".join(map(_CPU.pack, cpus))
    parts.append(frame(RecordType.CPU_MAP, 0, numbers + bytes(-len(numbers) % 8)))
    return b"".join(parts)


def _id_index(ids: Sequence[IdPlace]) -> bytes:
    body = U64.pack(len(ids)) + b"".join(_ID_ENTRY.pack(*place) for place in ids)
    return frame(RecordType.ID_INDEX, 0, body)
