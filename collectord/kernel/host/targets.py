# SPDX-License-Identifier: Apache-2.0
"""Targets of observation, found and opened: threads, processes of a user, a cgroup."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from collectord.errors import MissingFeature, NoSuchTarget
from collectord.kernel.host import cgroups, errno_mapping, process_traits

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Flag for a pidfd of one thread (PIDFD_THREAD, 6.9).
_PIDFD_THREAD: Final = os.O_EXCL


def threads_of(pid: int, proc: Path) -> tuple[int, ...]:
    """See `Kernel.threads_of`."""
    try:
        tasks = list((proc / str(pid) / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError) as error:
        raise _no_process(pid) from error
    return tuple(sorted(int(task.name) for task in tasks))


def threads_of_all(pids: Iterable[int], proc: Path) -> list[int]:
    """Return the threads of these processes, as far as they have not exited."""
    found: list[int] = []
    for pid in pids:
        with suppress(NoSuchTarget):
            found += threads_of(pid, proc)
    return found


def processes_of(uid: int, proc: Path) -> tuple[int, ...]:
    """See `Kernel.processes_of`."""
    found = []
    for pid in process_traits.running(proc):
        try:
            status = (proc / str(pid) / "status").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it exited since it was listed
        # Uid: real, effective, saved, file system. Not the directory's owner, which is
        # root for a process that is not dumpable.
        if int(status.split(b"\nUid:", 1)[1].split(maxsplit=2)[1]) == uid:
            found.append(pid)
    return tuple(found)


def open_cgroup(path: str, proc: Path) -> int:
    """See `Kernel.open_cgroup`."""
    root = cgroups.cgroup_root((proc / "self/mountinfo").read_bytes())
    if root is None:
        raise MissingFeature(
            "no cgroup hierarchy with perf_event is mounted",
            feature="cgroups",
            hint="as root: mount -t cgroup2 cgroup2 /sys/fs/cgroup",
        )
    directory = cgroups.place(root, path)
    # perf_event_open would take a directory of another file system for a bad descriptor.
    code = 0 if cgroups.within(root, directory) else errno.ENOENT
    try:
        if not code:
            return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        code = error.errno or 0
    raise NoSuchTarget(
        f"no cgroup {path}",
        errno=code,
        hint=f"give its path below {root}, where the hierarchy of perf_event is",
    )


def open_pid(pid: int) -> int:
    """See `Kernel.open_pid`."""
    # A process comes first: its pidfd reports the end of all its threads, a thread's only its own.
    code = 0
    for flags in (0, _PIDFD_THREAD):
        try:
            return os.pidfd_open(pid, flags)
        except ProcessLookupError as error:
            raise _no_process(pid) from error
        except OSError as error:  # EINVAL, later ENOENT: a thread that does not lead its process
            code = error.errno or 0
    raise errno_mapping.call_refused(code, "pidfd_open", f"cannot watch pid {pid}")


def _no_process(pid: int) -> NoSuchTarget:
    return NoSuchTarget(f"pid {pid} does not exist", errno=errno.ESRCH)
