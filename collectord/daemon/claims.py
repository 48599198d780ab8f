# SPDX-License-Identifier: Apache-2.0
"""Open stage, before the first ring: claim what only one daemon can have.

A refusal here leaves nothing behind, and says what to change.
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import SinkError
from collectord.folders.walk import remove_made
from collectord.sink.output_dir import open_output_dir
from collectord.sink.segment import lock, sink_errors
from collectord.source.tracefs import instance_session

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from collectord.folders.folder import Folder
    from collectord.kernel.port import Kernel
    from collectord.plan.session_plan import Plan, SessionPlan

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
        self._held: dict[tuple[int, int], ExitStack] = {}  # by file system and inode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for held in self._held.values():
                stack.push(held)
        self._held.clear()

    def claim(self, plan: Plan) -> dict[str, int]:
        """Check the names of ftrace instances, and make and lock the directories of segments.

        What this process has already is not touched.

        Returns:
            the file system (st_dev) that each session's segments go to, by the session's name.

        Raises:
            KernelError: a process has an instance of that name.
            SinkError: a directory cannot be made or written, or another daemon writes to it.
        """
        for session in plan.sessions:
            if session.payload.has_instance:
                self._kernel.check_instance(instance_session(session))
        devices = {}
        for session in plan.sessions:
            if session.sink.single_file is None:
                place = self._claim(Path(session.sink.directory), session.name)
                devices[session.name] = place[0]
        return devices

    def _claim(self, directory: Path, session: str) -> tuple[int, int]:
        with ExitStack() as own:
            folder = open_output_dir(directory)
            own.callback(remove_made, folder.made)
            own.enter_context(folder)
            status = os.fstat(folder.fd)
            place = (status.st_dev, status.st_ino)
            if place not in self._held:
                if not self._shared:
                    self._lock(folder, session)
                self._held[place] = own.pop_all()
        return place

    def keep(self, plans: Iterable[SessionPlan]) -> None:
        """Leave the directories that no session of these plans writes to."""
        kept = set()
        for session in plans:
            with suppress(OSError):  # one that somebody has removed is not kept either
                status = Path(session.sink.directory).stat()
                kept.add((status.st_dev, status.st_ino))
        for place in self._held.keys() - kept:
            self._held.pop(place).close()

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
