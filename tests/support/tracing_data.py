# SPDX-License-Identifier: Apache-2.0
"""A reader of TRACING_DATA sections, which the program only writes."""

from __future__ import annotations

from collectord.codec.cursor import U32, U64, Cursor
from collectord.codec.tracing_data import (
    MAGIC,
    TracingData,
    read_formats,
    read_header_files,
    read_systems,
)
from collectord.errors import CodecError


def parse(data: bytes) -> TracingData:
    """Read the section, of any version of perf's.

    Raises:
        CodecError: the data have another format or byte order, or end too early.
    """
    cursor = Cursor(data)
    cursor.expect(MAGIC)
    version = cursor.string()
    if cursor.take(1) != b"\0":
        raise CodecError("big-endian data", offset=cursor.at - 1, reason="byte_order")
    long_size = cursor.take(1)[0]
    page_size = cursor.number(U32)
    header_page, header_event = read_header_files(cursor)
    ftrace_events = read_formats(cursor)
    events = read_systems(cursor)
    cursor.take(cursor.number(U32))
    printk_formats = cursor.take(cursor.number(U32))
    saved_cmdlines = cursor.take(cursor.number(U64)) if version >= b"0.6" else b""
    return TracingData(
        header_page=header_page,
        header_event=header_event,
        page_size_bytes=page_size,
        events=events,
        ftrace_events=ftrace_events,
        long_size_bytes=long_size,
        printk_formats=printk_formats,
        saved_cmdlines=saved_cmdlines,
    )
