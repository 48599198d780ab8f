# SPDX-License-Identifier: Apache-2.0
"""The staging memory that the opener keeps: of the daemon before, and of this one."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from mmap import MADV_HUGEPAGE, MADV_REMOVE, mmap
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AsyncExitStack

    from collectord.kernel.port import Kernel
    from collectord.kernel.values.kept_staging import LeftStaging
    from collectord.plan.plan import CorePlan
    from collectord.session.drain_loop import Drain

_LOG: Final = structlog.get_logger()


class StagingMemory:
    """The opener's memory; none without an opener.

    Args:
        kernel: asks it.
        opener: its socket, "" if there is none.
        plan: the size of staging.
    """

    def __init__(self, kernel: Kernel, opener: str, plan: CorePlan) -> None:
        self._kernel = kernel
        self._opener = opener
        self._plan = plan

    @contextmanager
    def left(self) -> Iterator[LeftStaging | None]:
        """Yield the staging memory that the daemon before this one has left."""
        with ExitStack() as stack:
            left = None
            try:
                left = self._kernel.left_staging(self._opener) if self._opener else None
            except KernelError as error:
                _LOG.warning("left_staging_not_given", error=str(error))
            for fd in left.descriptors if left is not None else ():
                stack.callback(self._kernel.close, fd)
            yield left

    def use(self, drain: Drain, stack: AsyncExitStack) -> None:
        """Let the drain stage in memory that the opener keeps, until the stack is left."""
        if not self._opener:
            return
        chunks, chunk_bytes = self._plan.chunks, self._plan.chunk_bytes
        try:
            kept = self._kernel.kept_staging(self._opener, chunks, chunk_bytes)
        except KernelError as error:
            _LOG.warning("staging_not_kept", error=str(error))
            return
        stack.callback(self._kernel.close, kept.connection)
        stack.callback(self._kernel.close, kept.memory)
        memory = mmap(kept.memory, 0)
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(MADV_HUGEPAGE)
        drain.core.keep_staging(memory)
        stack.callback(_give_back, drain, memory)


def _give_back(drain: Drain, memory: mmap) -> None:
    """Free the pages, which the opener would keep until the next start, if nothing is in them."""
    now = drain.core.counters()
    if now.chunks_free == now.chunks:
        memory.madvise(MADV_REMOVE)
