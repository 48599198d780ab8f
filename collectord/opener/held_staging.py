# SPDX-License-Identifier: Apache-2.0
"""The staging memory of a daemon, which outlives it."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from collectord.kernel.values.kept_staging import staging_bytes

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def sealed_memory(name: str, size_bytes: int) -> int:
    """Return the descriptor of memory that nobody can take away. Raises OSError."""
    with ExitStack() as undo:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        undo.callback(os.close, fd)
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        undo.pop_all()
        return fd


@dataclass(frozen=True, slots=True)
class HeldStaging:
    """Memory for so many chunks; the opener does not map it.

    Attributes:
        memory: its descriptor.
    """

    chunks: int
    chunk_bytes: int
    memory: int


def make_staging(chunks: int, chunk_bytes: int) -> HeldStaging:
    """Make new memory, which has no pages before it is written. Raises OSError."""
    size_bytes = staging_bytes(chunks, chunk_bytes)
    return HeldStaging(chunks, chunk_bytes, sealed_memory("collectord-staging", size_bytes))
