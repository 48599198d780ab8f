# SPDX-License-Identifier: Apache-2.0
"""Open stage, before the first ring: claim what only one daemon can have.

A refusal here leaves nothing behind, and says what to change.
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import SinkError
from collectord.folders.walk import remove_made
from collectord.sink.output_dir import open_output_dir
from collectord.sink.segment import lock, sink_errors
from collectord.source.tracefs import instance_session

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from collectord.folders.folder import Folder
    from collectord.kernel.port import Kernel
    from collectord.plan.session_plan import Plan

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


def claim_places(
    plan: Plan, kernel: Kernel, stack: AsyncExitStack, *, shared: bool
) -> dict[str, int]:
    """Check the names of ftrace instances, and make and lock the directories of segments.

    Args:
        plan: of the sessions.
        kernel: has the instances, and tells who holds a directory.
        stack: unlocks the directories, and removes those that stayed empty.
        shared: others may write to the same directories.

    Returns:
        the file system (st_dev) that each session's segments go to, by the session's name.

    Raises:
        KernelError: a process has an instance of that name.
        SinkError: a directory cannot be made or written, or another daemon writes to it.
    """
    for session in plan.sessions:
        if session.payload.has_instance:
            kernel.check_instance(instance_session(session))
    locked = set()
    devices = {}
    for session in plan.sessions:
        if session.sink.single_file is not None:
            continue
        folder = open_output_dir(Path(session.sink.directory))
        stack.callback(remove_made, folder.made)
        stack.enter_context(folder)
        status = os.fstat(folder.fd)
        devices[session.name] = status.st_dev
        place = (status.st_dev, status.st_ino)
        if not shared and place not in locked:
            _lock(kernel, folder, session.name)
            locked.add(place)
    return devices


def _lock(kernel: Kernel, folder: Folder, session: str) -> None:
    with sink_errors("cannot lock the directory", folder.path):
        if lock(folder.fd):
            return
    owner = kernel.lock_owner(folder.fd) or "another process"
    raise SinkError(
        f"session {session} is already being written by {owner}",
        path=str(folder.path),
        errno=errno.EBUSY,
        hint="rename the session, or set another [daemon] state_dir",
    )
