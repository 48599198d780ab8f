# SPDX-License-Identifier: Apache-2.0
"""A BPF program for tracepoints, loaded without any compiler."""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_BPF: Final = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD: Final = 5
_TYPE_TRACEPOINT: Final = 5
_NAME_AT: Final = 48


@contextmanager
def program(returns: int, name: bytes) -> Iterator[int]:
    """A program `return N` (r0 = N; exit): 0 hides the event from perf, 1 lets it pass."""
    libc = ctypes.CDLL(None, use_errno=True)
    move = struct.pack("<BBhi", 0xB7, 0, 0, returns)
    code = ctypes.create_string_buffer(move + b"\x95" + bytes(7))
    licence = ctypes.create_string_buffer(b"GPL")
    fields = struct.pack(
        "<IIQQ", _TYPE_TRACEPOINT, 2, ctypes.addressof(code), ctypes.addressof(licence)
    )
    attr = ctypes.create_string_buffer(fields.ljust(_NAME_AT, b"\0") + name, 128)
    fd = libc.syscall(_BPF[os.uname().machine], _PROG_LOAD, attr, 128)
    if fd < 0:
        code_number = ctypes.get_errno()
        raise OSError(code_number, os.strerror(code_number), "bpf")
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def harmless_program() -> Iterator[int]:
    """A program that lets every event pass."""
    with program(1, b"passes") as fd:
        yield fd
