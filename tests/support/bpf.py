# SPDX-License-Identifier: Apache-2.0
"""BPF programs and maps, made without any compiler."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from collectord.kernel.bpf import bpf_calls

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

HASH: Final = 1
ARRAY: Final = 2
PERCPU_HASH: Final = 5
PERCPU_ARRAY: Final = 6
LRU_HASH: Final = 9
DEVMAP: Final = 14

_PERF_SET_BPF: Final = 0x40042408  # PERF_EVENT_IOC_SET_BPF
_BPF: Final = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE: Final = 0
_MAP_UPDATE: Final = 2
_MAP_DELETE: Final = 3
_MAP_OF_ID: Final = 14
_PROG_LOAD: Final = 5
_PROG_RUN: Final = 10
_RAW_TRACEPOINT_OPEN: Final = 17
_TYPE_SOCKET_FILTER: Final = 1
_TYPE_TRACEPOINT: Final = 5
_TYPE_RAW_TRACEPOINT: Final = 17
_PROBE_READ_USER: Final = 112
_TRACE_PRINTK: Final = 6
_EXIT: Final = b"\x95" + bytes(7)
_NAME_AT: Final = 48
_MAP_NAME_AT: Final = 28
_PACKET_BYTES: Final = 64


def _call(command: int, attr: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attr, 128)
    result: int = libc.syscall(_BPF[os.uname().machine], command, buffer, 128)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "bpf")
    return result


def attach(event_fd: int, program_fd: int) -> None:
    """Attach a program to the tracepoint of an event, as long as that is open."""
    fcntl.ioctl(event_fd, _PERF_SET_BPF, program_fd)


@contextmanager
def map_named(name: str, known: Collection[int]) -> Iterator[int]:
    """Provide the one map of this name that is new: its id is not among those that are known."""
    with ExitStack() as stack:
        found = []
        for number in {*bpf_calls.ids("map")}.difference(known):
            fd = _call(_MAP_OF_ID, struct.pack("<I", number))
            stack.callback(os.close, fd)
            if bpf_calls.map_info(fd).name == name:
                found.append(fd)
        (one,) = found
        yield one


@contextmanager
def _loaded(kind: int, name: bytes, *code: bytes) -> Iterator[int]:
    text = ctypes.create_string_buffer(b"".join(code))
    licence = ctypes.create_string_buffer(b"GPL")
    fields = struct.pack(
        "<IIQQ", kind, len(code), ctypes.addressof(text), ctypes.addressof(licence)
    )
    fd = _call(_PROG_LOAD, fields.ljust(_NAME_AT, b"\0") + name)
    try:
        yield fd
    finally:
        os.close(fd)


def _set(register: int, value: int) -> bytes:
    return struct.pack("<BBhi", 0xB7, register, 0, value)


@contextmanager
def program(returns: int, name: bytes, *, kind: int = _TYPE_TRACEPOINT) -> Iterator[int]:
    """Provide a program `return N` (r0 = N; exit): 0 hides the event from perf, 1 lets it pass."""
    with _loaded(kind, name, _set(0, returns), _EXIT) as fd:
        yield fd


@contextmanager
def harmless_program() -> Iterator[int]:
    """Provide a program that lets every event pass."""
    with program(1, b"passes") as fd:
        yield fd


@contextmanager
def printing_program(name: bytes) -> Iterator[int]:
    """A program that `run_once` can run, and that calls the kernel's bpf_trace_printk()."""
    with _loaded(
        _TYPE_RAW_TRACEPOINT,
        name,
        struct.pack("<BBhi", 0x7A, 10, -8, ord("x")),  # *(u64 *)(r10 - 8) = "x"
        struct.pack("<BBhi", 0xBF, 0xA1, 0, 0),  # r1 = r10
        struct.pack("<BBhi", 0x07, 1, 0, -8),  # r1 -= 8
        _set(2, 2),
        struct.pack("<BBhi", 0x85, 0, 0, _TRACE_PRINTK),
        _set(0, 0),
        _EXIT,
    ) as fd:
        yield fd


@contextmanager
def filter_program(name: bytes) -> Iterator[int]:
    """Provide a program that `run` can run: a socket filter that no socket has."""
    with program(0, name, kind=_TYPE_SOCKET_FILTER) as fd:
        yield fd


@contextmanager
def faulting_program(name: bytes) -> Iterator[int]:
    """Provide a program that runs on page faults in the kernel, and makes one itself each time.

    It reads from the first page of the user's memory, which nobody has. The fault that this is
    finds it running already: each run is one run that the kernel leaves out.
    """
    with _loaded(
        _TYPE_RAW_TRACEPOINT,
        name,
        struct.pack("<BBhi", 0xBF, 0xA1, 0, 0),  # r1 = r10
        struct.pack("<BBhi", 0x07, 1, 0, -8),  # r1 -= 8
        _set(2, 8),
        _set(3, 0),
        struct.pack("<BBhi", 0x85, 0, 0, _PROBE_READ_USER),
        _set(0, 0),
        _EXIT,
    ) as fd:
        where = ctypes.create_string_buffer(b"page_fault_kernel")
        link = _call(_RAW_TRACEPOINT_OPEN, struct.pack("<QI", ctypes.addressof(where), fd))
        try:
            yield fd
        finally:
            os.close(link)


def run(fd: int, times: int) -> None:
    """Have the kernel run a program so many times."""
    packet = ctypes.create_string_buffer(_PACKET_BYTES)
    _call(
        _PROG_RUN,
        struct.pack("<IIIIQQII", fd, 0, _PACKET_BYTES, 0, ctypes.addressof(packet), 0, times, 0),
    )


def run_once(fd: int) -> None:
    """Have the kernel run a program of a raw tracepoint."""
    _call(_PROG_RUN, struct.pack("<I60x", fd))


@contextmanager
def create_map(
    kind: int, key_bytes: int, value_bytes: int, entries: int, *, name: bytes = b"", flags: int = 0
) -> Iterator[int]:
    """Provide an empty map."""
    sizes = struct.pack("<IIIII", kind, key_bytes, value_bytes, entries, flags)
    fd = _call(_MAP_CREATE, sizes.ljust(_MAP_NAME_AT, b"\0") + name)
    try:
        yield fd
    finally:
        os.close(fd)


def update(fd: int, key: bytes, value: bytes) -> None:
    """Set an entry; the value is that of all CPUs, each rounded up to 8 bytes."""
    _element(_MAP_UPDATE, fd, key, value)


def delete(fd: int, key: bytes) -> None:
    """Delete an entry."""
    _element(_MAP_DELETE, fd, key, b"")


def _element(command: int, fd: int, key: bytes, value: bytes) -> None:
    keys, values = ctypes.create_string_buffer(key), ctypes.create_string_buffer(value)
    attr = struct.pack(
        "<IIQQQ", fd, 0, ctypes.addressof(keys), ctypes.addressof(values) if value else 0, 0
    )
    _call(command, attr)


def map_ids() -> tuple[int, ...]:
    """Return ids of all maps of the host. Raises MissingPrivilege without CAP_SYS_ADMIN."""
    return tuple(bpf_calls.ids("map"))


def link_ids() -> tuple[int, ...]:
    """Return ids of all links of the host. Raises MissingPrivilege without CAP_SYS_ADMIN."""
    return tuple(bpf_calls.ids("link"))
