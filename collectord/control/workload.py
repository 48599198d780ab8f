# SPDX-License-Identifier: Apache-2.0
"""The command of `record -- COMMAND`: its process exists before the rings open, and runs after."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

# The shell waits on fd 3 and then becomes the command, with the pid that the events were opened
# for; its exec is the one that `enable_on_exec` waits for. Without a line (this process died, or
# gave up) the command never runs.
_WAIT_FD: Final = 3
_SCRIPT: Final = 'read -r go <&3 && exec 3<&- && exec "$@"'
_KILL_AFTER_S: Final = 5.0
_RESET_SIGNALS: Final = (signal.SIGPIPE, signal.SIGXFSZ)  # python ignores these


class Workload:
    """A child process that waits to become its command.

    Attributes:
        pid: of the child, which stays the same.
    """

    def __init__(self, command: Sequence[str]) -> None:
        read_fd, self._go_fd = os.pipe()
        try:
            self.pid = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", _SCRIPT, "collectord", *command],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, read_fd, _WAIT_FD)],
                setsigdef=_RESET_SIGNALS,
            )
        except OSError:
            os.close(self._go_fd)
            raise
        finally:
            os.close(read_fd)
        self.status: int | None = None
        self._pidfd = os.pidfd_open(self.pid)
        self._exited = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_exit)

    def go(self) -> None:
        """Start the command, which waits for this."""
        os.write(self._go_fd, b"\n")

    async def wait(self) -> int:
        """Return the command's exit status, negative for a signal."""
        await self._exited.wait()
        if self.status is None:
            raise RuntimeError("the child is gone and left no status")
        return self.status

    async def end(self) -> None:
        """End the command by SIGTERM, then SIGKILL if it still runs; close its descriptors."""
        os.close(self._go_fd)
        if self.status is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
            try:
                await asyncio.wait_for(self._exited.wait(), _KILL_AFTER_S)
            except TimeoutError:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                await self._exited.wait()
        os.close(self._pidfd)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        _, status = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(status)
        self._exited.set()


@asynccontextmanager
async def waiting(command: Sequence[str]) -> AsyncIterator[Workload]:
    """Yield a child process, which does not outlive the block."""
    workload = Workload(command)
    try:
        yield workload
    finally:
        await workload.end()
