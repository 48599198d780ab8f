# SPDX-License-Identifier: Apache-2.0
"""Symbols that may be gone later, kept beside each segment of a session after its seal."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import SinkError
from collectord.session.lone_call import lone_call
from collectord.sink.kept_symbols import KeptSymbols

if TYPE_CHECKING:
    from collections.abc import Collection

    from collectord._native import _core
    from collectord.plan.session_plan import SessionPlan
    from collectord.sink.perf_map_copies import Kept

_LOG: Final = structlog.get_logger()
# Segments whose symbols wait for those of another one, a few kilobytes each; the oldest of more
# are left out. The first one takes a second on a busy machine, in which many may be closed.
_WAITING_MAX: Final = 64
# The end of a session waits so long for the last symbols.
_LAST_S: Final = 5.0


class SymbolKeeping:
    """Keeps maps of code that processes made, and lists of the functions of kernel modules.

    It does so for one segment at a time, in a thread of its own: a process may show a file as its
    map that hangs whoever reads it, and the threads of the disk have segments to seal meanwhile.

    Args:
        plan: of the session.
        stream: knows the processes that made code.
    """

    def __init__(self, plan: SessionPlan, stream: _core.Stream) -> None:
        self._is_on = plan.sink.single_file is None and plan.has_chains
        self._keeps_maps = plan.sink.keeps_maps
        self._stream = stream
        self._log = _LOG.bind(session=plan.name)
        self._kept = KeptSymbols(Path(plan.sink.directory))
        self._makers: dict[int, Collection[int]] = {}  # of segments that wait for their seals
        self._waiting: deque[tuple[str, Collection[int]]] = deque()
        self._running: asyncio.Future[Kept] | None = None
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def note(self, token: int) -> None:
        """Note the processes that made code in a segment that has ended."""
        if self._is_on:
            self._makers[token] = self._stream.code_makers() if self._keeps_maps else ()

    def forget(self, token: int) -> None:
        """Forget a segment that is not sealed."""
        self._makers.pop(token, None)

    def begin(self, token: int, segment: str) -> None:
        """Begin to keep what a segment needs that was sealed; nobody waits for that."""
        makers = self._makers.pop(token, None)
        if makers is None:
            return
        if len(self._waiting) == _WAITING_MAX:
            late, _ = self._waiting.popleft()
            self._log.warning("symbols_not_kept", segment=late, error="others take too long")
        self._waiting.append((segment, makers))
        self._go_on()

    def _go_on(self) -> None:
        if self._running is None and self._waiting:
            segment, makers = self._waiting.popleft()
            self._is_idle.clear()
            self._running = lone_call(partial(self._kept.keep, segment, makers))
            self._running.add_done_callback(partial(self._done, segment))

    def _done(self, segment: str, done: asyncio.Future[Kept]) -> None:
        self._running = None
        self._is_idle.set()
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, SinkError):
            self._log.warning("symbols_not_kept", segment=segment, error=str(error))
        elif error is not None:
            raise error
        elif done.result().left_out:
            self._log.warning(
                "perf_maps_left_out", segment=segment, left_out=done.result().left_out
            )
        self._go_on()

    async def finish(self) -> None:
        """Wait for the copies that are being made, but not for long."""
        try:
            async with asyncio.timeout(_LAST_S):
                while not self._is_idle.is_set():
                    await self._is_idle.wait()
        except TimeoutError:
            self._waiting.clear()
            self._log.warning("symbols_not_kept", error="a map is not read in time")
