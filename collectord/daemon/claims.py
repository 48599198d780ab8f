# SPDX-License-Identifier: Apache-2.0
"""Open stage, before the first ring: claim what only one daemon can have.

A refusal here leaves nothing behind, and says what to change.
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import SinkError
from collectord.folders.walk import remove_made
from collectord.session.lone_call import lone_call
from collectord.sink.output_dir import open_output_dir
from collectord.sink.segment import sink_errors
from collectord.sink.segment_lock import lock
from collectord.source.tracefs import instance_session

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from collectord.folders.folder import Folder
    from collectord.kernel.port import Kernel
    from collectord.plan.plan import Plan
    from collectord.plan.session_plan import SessionPlan

    Place = tuple[int, int]  # file system and inode

_LOG: Final = structlog.get_logger()
_SALVAGE_S: Final = 30.0
_LOOK_S: Final = 0.05


async def await_salvages(plan: Plan, kernel: Kernel, stop: asyncio.Event) -> None:
    """Wait while another process salvages the sessions' ftrace instances after a crash.

    It takes as long as writing the rings' contents. A process that still has an instance after
    half a minute is treated as any other holder.

    Args:
        plan: of the sessions.
        kernel: has the instances.
        stop: ends the wait.
    """
    names = [instance_session(s) for s in plan.sessions if s.payload.has_instance]
    awaited = False
    with suppress(TimeoutError):
        async with asyncio.timeout(_SALVAGE_S):
            while not stop.is_set() and any(map(kernel.is_being_salvaged, names)):
                if not awaited:
                    _LOG.info("salvage_awaited", sessions=names)
                awaited = True
                await asyncio.sleep(_LOOK_S)


class Places:
    """The directories of segments that this process has; all are left on leaving it.

    Args:
        kernel: has the instances, and tells who holds a directory.
        shared: others may write to the same directories.
    """

    def __init__(self, kernel: Kernel, *, shared: bool) -> None:
        self._kernel = kernel
        self._shared = shared
        self._held: dict[Place, ExitStack] = {}
        self._place_of: dict[str, Place] = {}  # by path
        self._claims: dict[str, asyncio.Future[Place]] = {}  # under way, by path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for held in self._held.values():
                stack.push(held)
        self._held.clear()

    async def claim(self, session: SessionPlan) -> int | None:
        """Check the name of an ftrace instance, and make and lock the directory of segments.

        What this process has already is not touched. While the disk does not answer only the
        caller waits; if it is cancelled the claim goes on, and the next one gets its result.

        Returns:
            the file system (st_dev) that the segments go to; None for a single file.

        Raises:
            KernelError: a process has an instance of that name.
            SinkError: a directory cannot be made or written, or another daemon writes to it.
        """
        if session.payload.has_instance:
            self._kernel.check_instance(instance_session(session))
        if session.sink.single_file is not None:
            return None
        path = session.sink.directory
        claim = self._claims.get(path)
        if claim is None:
            claim = asyncio.ensure_future(self._claim(path, session.name))
            self._claims[path] = claim
            claim.add_done_callback(partial(self._on_claimed, path))
        return (await asyncio.shield(claim))[0]

    def _on_claimed(self, path: str, claim: asyncio.Future[Place]) -> None:
        del self._claims[path]
        if not claim.cancelled():
            claim.exception()  # whoever waited for it may have left

    async def _claim(self, path: str, session: str) -> Place:
        folder = await lone_call(partial(open_output_dir, Path(path)))
        with ExitStack() as own:
            own.callback(remove_made, folder.made)
            own.enter_context(folder)
            status = os.fstat(folder.fd)
            place = (status.st_dev, status.st_ino)
            if place not in self._held:
                if not self._shared:
                    self._lock(folder, session)
                self._held[place] = own.pop_all()
        self._place_of[path] = place
        return place

    def start(self, plans: Iterable[SessionPlan]) -> list[asyncio.Task[int | None]]:
        """Begin to claim for several sessions; nobody need wait for the claims."""
        claims = [asyncio.create_task(self.claim(plan)) for plan in plans]
        for claim in claims:
            claim.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return claims

    def keep(self, plans: Iterable[SessionPlan]) -> None:
        """Leave the directories that no session of these plans writes to."""
        wanted = {plan.sink.directory for plan in plans}
        self._place_of = {p: place for p, place in self._place_of.items() if p in wanted}
        for place in self._held.keys() - set(self._place_of.values()):
            self._held.pop(place).close()

    def abandon(self, plans: Iterable[SessionPlan]) -> None:
        """Leave the directories of these plans to the end of the process: no call can be made."""
        for plan in plans:
            place = self._place_of.pop(plan.sink.directory, None)
            if place in self._held:
                self._held.pop(place).pop_all()

    def _lock(self, folder: Folder, session: str) -> None:
        with sink_errors("cannot lock the directory", folder.path):
            if lock(folder.fd):
                return
        owner = self._kernel.lock_owner(folder.fd) or "another process"
        raise _taken(folder, session, owner)


def _taken(folder: Folder, session: str, owner: object) -> SinkError:
    return SinkError(
        f"session {session} is already being written by {owner}",
        path=str(folder.path),
        errno=errno.EBUSY,
        hint="rename the session, or set another [daemon] state_dir",
    )
