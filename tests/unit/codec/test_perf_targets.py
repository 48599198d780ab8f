# SPDX-License-Identifier: Apache-2.0
"""Records that say which ids, threads and CPUs a file is about."""

from __future__ import annotations

import struct

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import iter_records
from collectord.codec.perf_targets import IdPlace, encode_targets


def test_each_record_is_laid_out_as_perf_lays_it_out() -> None:
    """Ids with ring, CPU and thread; threads without names; CPUs as a list."""
    data = encode_targets([IdPlace(7, 0, 0, 42), IdPlace(8, 1, 1, 42)])
    assert data == b"".join(
        (
            struct.pack("<IHHQ", 69, 0, 80, 2),
            struct.pack("<QQqqQQqq", 7, 0, 0, 42, 8, 1, 1, 42),
            struct.pack("<IHHQq16s", 73, 0, 40, 1, 42, b""),
            struct.pack("<IHHHHhh", 74, 0, 16, 0, 2, 0, 1),
        )
    )


def test_all_threads_and_cpus_are_minus_one() -> None:
    """A file of one thread on whatever CPU, and one of all threads, say so."""
    data = encode_targets([IdPlace(7, 0, -1, -1)])
    assert data.endswith(struct.pack("<qq16sIHHHHhh", 1, -1, b"", 74, 0, 16, 0, 1, -1, 0))


def test_many_ids_take_several_records() -> None:
    """No record is longer than its size field can say."""
    places = [IdPlace(number, 0, number % 40_000, number) for number in range(40_000)]
    records = list(iter_records(encode_targets(places)))
    types = [header.type for header in records]
    assert types == [RecordType.ID_INDEX] * 20 + [RecordType.THREAD_MAP, RecordType.CPU_MAP]
    assert max(header.size for header in records) <= 65528
