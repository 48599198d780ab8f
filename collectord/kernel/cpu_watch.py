# SPDX-License-Identifier: Apache-2.0
"""CPU hotplug: the kernel's uevents say when to look, sysfs says which CPUs are online.

Facts: uevents reach the initial network namespace only, and a socket that overflows loses
some. So the list is also looked at every `poll_s`, which is all there is where no uevent comes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyroute2.netlink.uevent import MONITOR_GROUP_KERNEL, AsyncUeventSocket

from collectord.kernel import cpus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType
    from typing import Self

_POLL_S: Final = 30.0


class CpuWatch:
    """Yields the CPUs that are online each time that the set has changed.

    Args:
        sys: root of sysfs.
        poll_s: seconds between two looks without a uevent.
    """

    def __init__(self, sys: Path = Path("/sys"), *, poll_s: float = _POLL_S) -> None:
        self._sys = sys
        self._poll_s = poll_s
        self._look = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._online = cpus.online(sys)

    async def __aenter__(self) -> Self:
        self._listener = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener

    async def __aiter__(self) -> AsyncIterator[tuple[int, ...]]:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), self._poll_s)
            self._look.clear()
            online = cpus.online(self._sys)
            if online != self._online:
                self._online = online
                yield online

    async def _listen(self) -> None:
        socket = AsyncUeventSocket()  # type: ignore[no-untyped-call]
        try:
            await socket.bind(groups=MONITOR_GROUP_KERNEL)
            while True:
                async for message in socket.get():  # type: ignore[no-untyped-call]
                    if message.get("SUBSYSTEM") == "cpu":
                        self._look.set()
        except OSError:
            # No socket, or it overflowed: look at once, and from now on by time alone.
            self._look.set()
        finally:
            socket.close()  # type: ignore[no-untyped-call]
