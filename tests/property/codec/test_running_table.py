# SPDX-License-Identifier: Apache-2.0
"""A running perf.data is a whole file, whatever is written and whatever its header shows."""

from __future__ import annotations

import struct
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from collectord.codec.perf_attr import PerfEventAttr, RecordType, SampleType
from collectord.codec.perf_data import (
    AttrSection,
    build_head,
    build_tail,
    parse_feature_table,
    parse_head,
    parse_header,
)
from collectord.codec.perf_features import Features
from collectord.codec.perf_record import frame, iter_records
from tests.support.chunks import footed

EVENTS: Final = (AttrSection(PerfEventAttr(sample_type=SampleType.IDENTIFIER), (1, 2), "a"),)
RECORDS: Final = st.lists(
    st.integers(1, 600).map(lambda words: frame(RecordType.SAMPLE, 0, bytes(8 * words))),
    max_size=8,
).map(b"".join)


@given(
    st.lists(RECORDS.filter(bool), max_size=5),
    RECORDS,
    st.sampled_from((None, b"formats", b"x" * 5000)),
    st.data(),
)
def test_any_copy_of_a_running_file(
    chunks: list[bytes], first_records: bytes, tracing_data: bytes | None, data: st.DataObject
) -> None:
    """The records up to the shown end are whole, the table is behind them; the seal fits too."""
    features = Features(hostname="host", nrcpus=(1, 2))
    head = build_head(EVENTS, tracing_data, features=features, first_records=first_records)
    file = bytearray(head.image)
    ends = [head.header.data.offset + head.header.data.size]
    for records in chunks:
        at = len(file)
        file += footed(records, at, head.table)
        ends.append(at + len(records))
    shown = data.draw(st.integers(0, len(chunks)))
    at, base = head.size_word
    struct.pack_into("<Q", file, at, ends[shown] - base)
    # The bytes behind the chunk of that padding may be there in part, or as anything.
    written = -(-ends[shown] // 4096) * 4096 if shown else head.write_offset
    written = max(written, ends[shown] + len(head.table))
    copy = bytes(file[: data.draw(st.integers(written, max(written, len(file))))])
    copy += data.draw(st.binary(max_size=20))

    header = parse_header(copy)
    assert not header.sealed
    section = copy[header.data.offset : header.data.offset + header.data.size]
    found = list(iter_records(section))
    samples = b"".join(
        section[one.offset : one.offset + one.size]
        for one in found
        if one.type == RecordType.SAMPLE
    )
    assert samples == first_records + b"".join(chunks[:shown])
    table = parse_feature_table(copy[ends[shown] :], header, len(copy))
    assert table == head.sections
    again = parse_head(copy)
    assert (again.attrs, again.sections) == (head.attrs, head.sections)
    assert again.write_offset == head.write_offset

    tail = build_tail(again, len(file) - head.data_offset)
    sealed = tail.header + bytes(file[len(tail.header) :]) + tail.tail
    header = parse_header(sealed)
    assert header.sealed
    assert parse_feature_table(sealed[len(file) :], header, len(sealed)).keys() == table.keys()
