# SPDX-License-Identifier: Apache-2.0
"""The interval at which events are stopped and started whose trace arrives only when they stop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError
from collectord.source.aux import flush, flush_interval_ns
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectord.kernel.port import Kernel
    from collectord.session.health import Health
    from collectord.source.ring import RingHandle

_LOG: Final = structlog.get_logger()


class AuxFlush:
    """Flushes the AUX areas of a session that need it (`source.aux`).

    Args:
        kernel: stops and starts the events.
        rings: returns the session's rings, which come and go with their CPUs.
        health: gets a failure.
    """

    def __init__(
        self, kernel: Kernel, rings: Callable[[], Iterable[RingHandle]], health: Health
    ) -> None:
        self._kernel = kernel
        self._rings = rings
        self._health = health
        self._interval_s = flush_interval_ns(rings()) / NS_PER_SECOND

    async def run(self, stopping: asyncio.Event) -> None:
        """Flush until `stopping` is set; return at once where no area needs it."""
        while self._interval_s and not stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), self._interval_s)
                return
            try:
                flush(self._kernel, self._rings())
            except KernelError as error:
                if self._health.note("flush", f"AUX not flushed: {error}"):
                    _LOG.error("aux_not_flushed", error=str(error))
            else:
                self._health.note("flush", "")
