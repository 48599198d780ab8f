# SPDX-License-Identifier: Apache-2.0
"""The sub-buffer of an ftrace ring that its reader holds, with what was handed out of it.

A reader that is killed has taken events out of the kernel which it may not have stored. Those of
the last sub-buffer are still there: the reader's sub-buffer is not given back before the next one
is asked for. Only a mapping shows it, whichever way it was read. Mapping the ring and looking at
it takes nothing out of it: that is what TRACE_MMAP_IOCTL_GET_READER would do.

    meta page: struct trace_buffer_meta (include/uapi/linux/trace_mmap.h, since 6.10)
        u32 meta_page_size, meta_struct_len, subbuf_size, nr_subbufs
        u64 reader.lost_events, u32 reader.id, u32 reader.read, u64 flags, entries, overrun, read
    sub-buffers, by id

The kernel brings the meta page up to date when a ring is mapped for the first time.
"""

from __future__ import annotations

import struct
from typing import Final

from collectord._native import _syscalls
from collectord.codec.ftrace_page import EVENTS_LOST, LENGTH_MASK, LOST_STORED, PAGE_HEADER_BYTES

_META: Final = struct.Struct("<IIIIQII")
_HEADER: Final = struct.Struct("<QQ")
_COUNT_BYTES: Final = 8


def handed_out(raw_fd: int) -> bytes | None:
    """Return the reader's sub-buffer as far as a reader got it, in its full size.

    Args:
        raw_fd: `trace_pipe_raw` of a ring that nobody else has mapped.

    Returns:
        None if nothing was handed out of it, or if this kernel cannot map the ring.
    """
    try:
        meta = _syscalls.copy_mapped(raw_fd, 0, _META.size)
        meta_bytes, _, subbuf_bytes, _, _, number, read_bytes = _META.unpack(meta)
        if not read_bytes or read_bytes > subbuf_bytes - PAGE_HEADER_BYTES:
            return None
        page_at = meta_bytes + number * subbuf_bytes
        page = _syscalls.copy_mapped(raw_fd, page_at, subbuf_bytes)
    except OSError:
        return None
    return cut(page, read_bytes)


def cut(page: bytes, data_bytes: int) -> bytes:
    """Return the start of a sub-buffer's data as a sub-buffer, with its count of lost events.

    Args:
        page: a sub-buffer.
        data_bytes: length to keep, which ends with an event.
    """
    timestamp_ns, commit = _HEADER.unpack_from(page)
    flags = commit & (EVENTS_LOST | LOST_STORED)
    count = b""
    if flags & LOST_STORED:
        at = PAGE_HEADER_BYTES + (commit & LENGTH_MASK)
        count = page[at : at + _COUNT_BYTES]
    end = PAGE_HEADER_BYTES + data_bytes
    if end + len(count) > len(page):
        flags, count = flags & ~LOST_STORED, b""
    kept = _HEADER.pack(timestamp_ns, data_bytes | flags) + page[PAGE_HEADER_BYTES:end] + count
    return kept.ljust(len(page), b"\0")
