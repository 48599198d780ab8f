# SPDX-License-Identifier: Apache-2.0
"""A ring whose read hangs, and the drain thread with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import ExitStack
    from typing import BinaryIO

    from collectord._native import _core
    from collectord.session.drain_loop import Drain


def hanging_ring(drain: Drain, stack: ExitStack) -> tuple[_core.Stream, _core.Ring, BinaryIO]:
    """Return a stream, its ring, and a file: until that is closed, who reads the ring waits."""
    source, sink = os.pipe2(os.O_CLOEXEC)
    stack.callback(os.close, source)
    stream = drain.core.add_stream(subbuf_bytes=4096)
    ring = drain.core.add_page_ring(
        0, stream, source, subbuf_bytes=4096, subbufs=8, transport="read"
    )
    return stream, ring, os.fdopen(sink, "wb")
