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

import ctypes
import mmap
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from collectord.codec.ftrace_page import EVENTS_LOST, LENGTH_MASK, LOST_STORED, PAGE_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

_META: Final = struct.Struct("<IIIIQII")
_HEADER: Final = struct.Struct("<QQ")
_COUNT_BYTES: Final = 8
_FAILED: Final = ctypes.c_void_p(-1).value


def handed_out(raw_fd: int) -> bytes | None:
    """The reader's sub-buffer as far as a reader got it, in its full size.

    Args:
        raw_fd: `trace_pipe_raw` of a ring that nobody else has mapped.

    Returns:
        None if nothing was handed out of it, or if this kernel cannot map the ring.
    """
    try:
        with _mapped(raw_fd, mmap.PAGESIZE) as meta_at:
            meta = ctypes.string_at(meta_at, _META.size)
            meta_bytes, _, subbuf_bytes, _, _, number, read_bytes = _META.unpack(meta)
            if not read_bytes or read_bytes > subbuf_bytes - PAGE_HEADER_BYTES:
                return None
            page_at = meta_bytes + number * subbuf_bytes
            with _mapped(raw_fd, page_at + subbuf_bytes) as start:
                page = ctypes.string_at(start + page_at, subbuf_bytes)
    except OSError:
        return None
    return cut(page, read_bytes)


def cut(page: bytes, data_bytes: int) -> bytes:
    """The first bytes of a sub-buffer's data as a sub-buffer; what was lost before it is kept.

    Args:
        page: a sub-buffer.
        data_bytes: up to an event's end.
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


@contextmanager
def _mapped(fd: int, length: int) -> Iterator[int]:
    """Map the beginning of a file; the file's size is 0, so that the mmap module refuses it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        yield address
    finally:
        libc.munmap(address, length)
