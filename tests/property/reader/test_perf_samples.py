# SPDX-License-Identifier: Apache-2.0
"""Samples with any set of fields: the core finds each value where the kernel puts it."""

from __future__ import annotations

import struct
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import duckdb
from hypothesis import given, settings
from hypothesis import strategies as st

from collectord.codec.perf_attr import (
    EventType,
    PerfEventAttr,
    ReadFormat,
    RecordType,
    SampleType,
    SoftwareId,
)
from collectord.codec.perf_data import AttrSection, build_head, build_tail
from collectord.codec.perf_record import frame
from collectord.reader.any_events import open_tables
from collectord.reader.event_file import Window
from collectord.reader.event_tables import tables_of
from tests.support import event_lines
from tests.support.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


_ID = 77
_FIRST = SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.ADDR | SampleType.ID
_PARTS = SampleType.READ | SampleType.CALLCHAIN | SampleType.RAW | SampleType.IDENTIFIER
_FIELDS = _FIRST | SampleType.STREAM_ID | SampleType.CPU | SampleType.PERIOD | _PARTS
_U63 = st.integers(1, (1 << 63) - 1)
_U31 = st.integers(0, (1 << 31) - 1)


def _encoded(attr: PerfEventAttr, values: dict[str, Any]) -> bytes:
    """Write a sample in the order of perf_output_sample()."""
    wide = struct.Struct("<Q").pack
    members = values["read"] if attr.read_format & ReadFormat.GROUP else values["read"][:1]
    reads = b""
    if attr.read_format & ReadFormat.GROUP:
        reads += wide(len(members))
    else:
        reads += wide(members[0])
    for bit in (ReadFormat.TOTAL_TIME_ENABLED, ReadFormat.TOTAL_TIME_RUNNING):
        reads += wide(1) if attr.read_format & bit else b""
    for member in members:
        reads += wide(member) if attr.read_format & ReadFormat.GROUP else b""
        reads += wide(_ID) if attr.read_format & ReadFormat.ID else b""
        reads += wide(0) if attr.read_format & ReadFormat.LOST else b""
    raw = values["raw"]
    raw += bytes(-(len(raw) + 4) % 8)
    parts = (
        (SampleType.IDENTIFIER, wide(_ID)),
        (SampleType.IP, wide(values["ip"])),
        (SampleType.TID, struct.pack("<II", values["pid"], values["tid"])),
        (SampleType.TIME, wide(values["mono_ns"])),
        (SampleType.ADDR, wide(values["addr"])),
        (SampleType.ID, wide(_ID)),
        (SampleType.STREAM_ID, wide(5)),
        (SampleType.CPU, struct.pack("<II", values["cpu"], 0)),
        (SampleType.PERIOD, wide(values["period"])),
        (SampleType.READ, reads),
        (SampleType.CALLCHAIN, b"".join(map(wide, (len(values["chain"]), *values["chain"])))),
        (SampleType.RAW, struct.pack("<I", len(raw)) + raw),
    )
    body = b"".join(data for bit, data in parts if attr.sample_type & bit)
    return frame(RecordType.SAMPLE, 0, body)


@settings(max_examples=examples(60), deadline=None)
@given(
    sample_type=st.integers(0, (1 << 17) - 1).map(lambda bits: bits & _FIELDS),
    read_format=st.integers(0, 31),
    samples=st.lists(
        st.fixed_dictionaries(
            {
                "ip": _U63, "mono_ns": _U63, "addr": _U63, "period": _U63,
                "pid": _U31, "tid": _U31, "cpu": _U31,
                "chain": st.lists(_U63, max_size=6),
                "read": st.lists(_U63, min_size=1, max_size=4),
                "raw": st.binary(max_size=40),
            }
        ),
        min_size=1,
        max_size=5,
    ),
)  # fmt: skip
def test_values_are_found_whatever_else_a_sample_has(
    tmp_path_factory: pytest.TempPathFactory,
    sample_type: int,
    read_format: int,
    samples: list[dict[str, Any]],
) -> None:
    """A field that the event does not carry is null."""
    attr = PerfEventAttr(
        type=EventType.SOFTWARE,
        config=SoftwareId.BPF_OUTPUT,
        sample_type=sample_type,
        read_format=read_format,
        sample_id_all=True,
    )
    path: Path = tmp_path_factory.mktemp("perf") / "perf.data"
    head = build_head([AttrSection(attr, (_ID,), "made")])
    data = b"".join(_encoded(attr, values) for values in samples)
    tail = build_tail(head, len(head.first_records) + len(data))
    path.write_bytes(tail.header + head.image[len(tail.header) :] + data + tail.tail)
    bits = {
        "mono_ns": SampleType.TIME, "cpu": SampleType.CPU, "pid": SampleType.TID,
        "tid": SampleType.TID, "ip": SampleType.IP, "addr": SampleType.ADDR,
        "period": SampleType.PERIOD,
    }  # fmt: skip
    with ExitStack() as stack, duckdb.connect() as connection:
        file = open_tables(path, stack)
        assert file is not None
        tables = tables_of([file])
        for table in ("samples", "made"):
            connection.register(table, tables[table].scan(tables[table].columns, Window()))
        names = ", ".join(bits)
        found = connection.execute(f"SELECT {names}, callchain FROM samples").fetchall()  # noqa: S608
        raws = connection.execute("SELECT data FROM made").fetchall()
    expected = [
        (
            *(values[name] if attr.sample_type & bit else None for name, bit in bits.items()),
            values["chain"] if attr.sample_type & SampleType.CALLCHAIN else None,
        )
        for values in samples
    ]
    assert found == expected
    for (raw,), values in zip(raws, samples, strict=True):
        told = values["raw"] if attr.sample_type & SampleType.RAW else b""
        assert raw.startswith(told)
        assert len(raw) - len(told) < 8
    _check_lines(path, attr, samples)


def _check_lines(path: Path, attr: PerfEventAttr, samples: list[dict[str, Any]]) -> None:
    """Compare what `events` shows: the same values, in the order of time."""
    has_time = bool(attr.sample_type & SampleType.TIME)
    in_order = sorted(samples, key=lambda values: values["mono_ns"] if has_time else 0)
    shown, lines = event_lines.read(path)
    assert lines.problems == []
    for one, values in zip(shown, in_order, strict=True):
        numbers = {"cpu": SampleType.CPU, "pid": SampleType.TID, "tid": SampleType.TID}
        for name, bit in numbers.items():
            assert one[name] == (values[name] if attr.sample_type & bit else None)
        has_chain = attr.sample_type & SampleType.CALLCHAIN
        assert one.get("callchain") == (values["chain"] if has_chain else None)
        told = values["raw"] if attr.sample_type & SampleType.RAW else b""
        assert one["fields"]["data"].startswith(told.hex())
