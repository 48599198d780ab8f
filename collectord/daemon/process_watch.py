# SPDX-License-Identifier: Apache-2.0
"""The kernel's news of processes, for all sessions that follow some.

One socket of the process connector serves them all. Messages that its buffer could not take are
lost (ENOBUFS); then each session looks at all processes. Where the kernel gives no news they do so
all the time, once per flush interval.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Final

import structlog

from collectord.codec.process_event import MESSAGE_BYTES, Exited, Forked, Renamed, decode
from collectord.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from collectord.kernel.port import Kernel
    from collectord.session.follower import Follower

_LOG: Final = structlog.get_logger()
# Handled in one go; other work of the daemon comes between.
_MESSAGES_MAX: Final = 256


class ProcessWatch:
    """Passes news on to the followers, until the block ends.

    Args:
        kernel: opens the socket, as soon as there are followers.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._followers: Sequence[Follower] = ()
        self._socket: socket.socket | None = None  # without one, polls look at all processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def follow(self, followers: Sequence[Follower]) -> None:
        """Pass news on to these from now on; those that are new attach what runs already."""
        before, self._followers = self._followers, followers
        if followers and self._socket is None:
            self._listen()  # first: what begins meanwhile is in the news
        for follower in followers:
            if follower not in before:
                follower.begin()
        for follower in before:
            if follower not in followers:
                follower.end()

    def _listen(self) -> None:
        try:
            fd = self._kernel.open_process_news()
        except KernelError as error:
            _LOG.warning("process_news_refused", error=str(error))
            return
        self._socket = socket.socket(fileno=fd)
        self._socket.settimeout(0)
        asyncio.get_running_loop().add_reader(fd, self._read)

    def end(self) -> None:
        """Stop attaching and releasing processes."""
        self.follow(())
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._kernel.close(self._socket.detach())
            self._socket = None

    def poll(self) -> None:
        """List all processes, if the kernel does not report new ones."""
        if self._socket is None:
            self._rescan()

    def _rescan(self) -> None:
        for follower in self._followers:
            follower.rescan()

    def _read(self) -> None:
        if self._socket is None:
            return
        for _ in range(_MESSAGES_MAX):
            try:
                message, (sender, _group) = self._socket.recvfrom(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._rescan()
                continue
            if sender == 0:
                self._pass_on(message)

    def _pass_on(self, message: bytes) -> None:
        match decode(message):
            case Forked() as news:
                for follower in self._followers:
                    follower.forked(news)
            case Renamed(pid):
                for follower in self._followers:
                    follower.renamed(pid)
            case Exited(pid):
                for follower in self._followers:
                    follower.exited(pid)
            case None:
                pass
