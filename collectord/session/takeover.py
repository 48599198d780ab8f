# SPDX-License-Identifier: Apache-2.0
"""The way from rings that an earlier process has drained to a session that goes on with them.

Sealing what that process has left, and reading the names of tasks there, takes as long as the disk
takes to read it. So the rings are drained before, into staging, and nothing is written until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import SinkError

if TYPE_CHECKING:
    from collectord.session.rotation import Rotation
    from collectord.session.session_parts import SessionParts

_LOG: Final = structlog.get_logger()


class Takeover:
    """The part of a session's begin that is due to earlier processes.

    Args:
        parts: the stream, the sink, the accounts, and what seals the folder's segments.
        rotation: of the stream's segments.
    """

    def __init__(self, parts: SessionParts, rotation: Rotation) -> None:
        self._session = parts.plan.name
        self._accounts = parts.lasting
        self._stream = parts.stream
        self._sink = parts.sink
        self._tasks = parts.tasks
        self._recover = parts.recover
        self._rotation = rotation
        self._left_ns: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether the rings may be drained before all else is done."""
        return any(account.drains_first for account in self._accounts)

    @property
    def is_done(self) -> bool:
        """Whether a segment is reserved, and the rings are drained."""
        return self._left_ns is not None

    async def reserve(self) -> bool:
        """Reserve the first segment, before the rings are drained; return whether that was done.

        A successor finds by it what was drained. Without room for it they wait.
        """
        try:
            await self._rotation.reserve()
        except SinkError as error:
            _LOG.warning("rings_not_taken_over", session=self._session, error=str(error))
        else:
            self._left_ns = self._stream.left_ns()
        return self.is_done

    async def settle(self) -> None:
        """Seal what earlier processes left, and count what they lost.

        Raises:
            SinkError: the folder cannot be read.
            KernelError: the account cannot be noted.
        """
        if not self._accounts:
            return
        await self._recover()
        await self._tasks.in_worker(self._sink.catch_up)
        for account in self._accounts:
            await self._tasks.in_worker(account.settle)

    async def load_names(self) -> None:
        """Load the names as of the oldest record that was unread; over what runs now.

        Raises:
            SinkError: the folder cannot be read.
        """
        left_ns = self._stream.left_ns() if self._left_ns is None else self._left_ns
        for account in self._accounts:
            await self._tasks.in_worker(account.load_names, self._stream, left_ns)
