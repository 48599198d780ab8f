# SPDX-License-Identifier: Apache-2.0
"""The threads of a scope of processes or of a user, as they are at one moment."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from collectord.errors import NoSuchTarget
from collectord.model import ScopeKind

if TYPE_CHECKING:
    from collectord.kernel.port import Kernel
    from collectord.model import Scope


def threads_of(kernel: Kernel, scope: Scope) -> list[int]:
    """Return the kernel ids of the threads that run now. Raises NoSuchTarget for a pid."""
    if scope.kind is ScopeKind.PROCESS:
        return [tid for pid in scope.pids for tid in kernel.threads_of(pid)]
    found: list[int] = []
    for pid in kernel.processes_of(scope.uid):
        try:
            found += kernel.threads_of(pid)
        except NoSuchTarget:
            continue  # it exited since it was listed
    return found


def no_such_target(scope: Scope) -> NoSuchTarget:
    """Return the error for a scope without threads."""
    if scope.kind is ScopeKind.USER:
        return NoSuchTarget(f"user {scope.uid} has no running process")
    who = "pid " + ",".join(map(str, scope.pids))
    return NoSuchTarget(f"{who} has no running thread", errno=errno.ESRCH)
