# SPDX-License-Identifier: Apache-2.0
"""Trials of BPF: what the kernel lets a program do, found by loading one that does nothing.

Nothing stays: programs end with their descriptors. The attached one is on a function that the
kernel has for such tests and that nobody calls.
"""

from __future__ import annotations

import os
import struct
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from collectord._native import _syscalls
from collectord.codec.btf import function_id
from collectord.errors import KernelError
from collectord.kernel.bpf import bpf_calls

if TYPE_CHECKING:
    from pathlib import Path

_TRACEPOINT: Final = 5  # enum bpf_prog_type
_TRACING: Final = 26
_TRACE_FENTRY: Final = 24  # enum bpf_attach_type
# The program returns 0.
_INSTRUCTIONS: Final = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
_NAME: Final = b"collectord"
_JITED_LENGTH_AT: Final = 16  # in struct bpf_prog_info

# net/bpf/test_run.c
_FUNCTION: Final = b"bpf_fentry_test1"


def try_load() -> bool:
    """Load a tracepoint program.

    Returns:
        whether the kernel compiled it.

    Raises:
        MissingFeature: this kernel has no bpf(2).
        MissingPrivilege, KernelError: the kernel refuses it.
    """
    with ExitStack() as stack:
        fd = _load(_TRACEPOINT, stack)
        info = bpf_calls.object_info(fd, "BPF program")
        return bool(struct.unpack_from("<I", info, _JITED_LENGTH_AT)[0])


def try_fentry(btf: Path) -> bool:
    """Whether a program can be attached to a kernel function by a trampoline.

    Args:
        btf: the kernel's own types.
    """
    try:
        number = function_id(btf.read_bytes(), _FUNCTION)
    except OSError:
        return False
    if not number:
        return False
    with ExitStack() as stack:
        try:
            fd = _load(_TRACING, stack, attach_type=_TRACE_FENTRY, btf_id=number)
            os.close(_syscalls.bpf_attach_tracing(fd))
        except (KernelError, OSError):
            return False
    return True


def _load(kind: int, stack: ExitStack, *, attach_type: int = 0, btf_id: int = 0) -> int:
    """Load the program and return its descriptor, owned by the stack. Raises KernelError."""
    try:
        fd = _syscalls.bpf_load_program(
            kind, _INSTRUCTIONS, name=_NAME, attach_type=attach_type, btf_id=btf_id
        )
    except OSError as error:
        raise bpf_calls.refused(error.errno or 0, "cannot load a BPF program") from error
    stack.callback(os.close, fd)
    return fd
