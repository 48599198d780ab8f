# SPDX-License-Identifier: Apache-2.0
"""Resources that a test must restore: fds, threads, processes, tracefs instances, mounts."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Iterable

_PR_SET_CHILD_SUBREAPER: Final = 36
_CLONE_NEWNS: Final = 0x20000
_MS_REC_PRIVATE: Final = 0x4000 | 0x40000
_MOUNTINFO: Final = "/proc/self/mountinfo"
# A joined thread and a killed child are seen in /proc for a moment after the join.
_GRACE_S: Final = patient(2)
# Where a service manager mounts at logins and at starts of units, whatever tests do meanwhile, and
# what is mounted when somebody looks at it.
_OF_THE_HOST: Final = ("/run/credentials/", "/run/user/", "/proc/sys/fs/binfmt_misc")
# The threads of a pool, which a library keeps for the process, and ends and begins as it likes.
_OF_LIBRARIES: Final = "(tokio-rt-worker)"
# Processes that are no descendants of this one, and so never become children of it.
_strangers: Final = {"0"}
_TRACEFS_ROOTS: Final = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans, so that they are seen."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hide_mounts() -> None:
    """Give this thread a mount namespace of its own, apart from other processes under test.

    Raises:
        OSError: the kernel refuses it, as to anybody but root.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "mounts of its own")


# They run before and after each of some ten thousand tests: paths take twice as long as texts.
def _listed(folder: str) -> list[str]:
    return os.listdir(folder)  # noqa: PTH208


def _read(file: str) -> bytes:
    with open(file, "rb", buffering=0) as opened:  # noqa: PTH123
        return opened.read()


def _fds() -> frozenset[str]:
    found = set()
    for fd in _listed("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own fd
            found.add(f"fd {fd} -> {os.readlink(f'/proc/self/fd/{fd}')}")  # noqa: PTH115
    return frozenset(found)


def _threads() -> frozenset[str]:
    found = set()
    for task in _listed("/proc/self/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.add(f"thread {task} ({_read(f'/proc/self/task/{task}/comm').decode().strip()})")
    return frozenset(one for one in found if not one.endswith(_OF_LIBRARIES))


def _children() -> dict[int, str]:
    """Return living children by pid. Ended orphans are reaped as well.

    The server of forks is one (tests/support/fork_server.py), and so this is in haste: a process
    whose parent is a stranger is one too, and is not read again as long as it lives.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there is none, as after most tests: all of /proc need not be read
        return {}
    own = str(os.getpid())
    found = {}
    listed = _listed("/proc")
    _strangers.intersection_update((*listed, "0"))
    for pid in filter(str.isdigit, listed):
        if pid == own or pid in _strangers:
            continue
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = _read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")
            state, parent = rest.split(maxsplit=2)[:2]
            if parent != own:
                if parent in _strangers:
                    _strangers.add(pid)
                continue
            if state in {"Z", "X"}:
                with suppress(ChildProcessError):
                    os.waitpid(int(pid), os.WNOHANG)
                continue
            found[int(pid)] = name.partition("(")[2]
    return found


def _locked() -> frozenset[str]:
    """Return device and inode of each file that has a lock: a try to have it would disturb."""
    return frozenset(line.split()[-3] for line in _read("/proc/locks").decode().splitlines())


def _instances(roots: Iterable[Path]) -> dict[str, bool]:
    """Return the instances, and whether a process holds each one's lock.

    That process may be of another lane: if it is left behind, it or its descriptor is named.
    """
    files = {}
    for root in roots:
        with suppress(FileNotFoundError):
            for path in (root / "instances").iterdir():
                with suppress(FileNotFoundError):  # removed since it was listed
                    at = path.stat()
                    file = f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}"
                    files[f"tracefs instance {path.name}"] = file
    locked = _locked() if files else frozenset()  # later: one that was just made may have its lock
    return {name: file in locked for name, file in files.items()}


def mounts(mountinfo: str) -> frozenset[str]:
    """Return the mounts that a test may have made, from the text of /proc/PID/mountinfo."""
    places = [line.split()[4] for line in mountinfo.splitlines()]
    return frozenset(f"mount on {at}" for at in places if not at.startswith(_OF_THE_HOST))


@dataclass(frozen=True, slots=True)
class Holdings:
    """The resources that this process holds now. A child's name is no part of what it is.

    Instances are those of all processes, and whether one has the lock.
    """

    fds: frozenset[str]
    threads: frozenset[str]
    processes: dict[int, str]
    instances: dict[str, bool]
    mounts: frozenset[str]

    @staticmethod
    def now(*, instances: bool = True, roots: Iterable[Path] = _TRACEFS_ROOTS) -> Holdings:
        """Return the present resources; tracefs instances, in `roots`, only with `instances`."""
        return Holdings(
            fds=_fds(),
            threads=_threads(),
            processes=_children(),
            instances=_instances(roots) if instances else {},
            mounts=mounts(_read(_MOUNTINFO).decode()),
        )

    def beyond(self, earlier: Holdings) -> list[str]:
        """Return the resources held now and not earlier."""
        return [
            *sorted(self.fds - earlier.fds),
            *sorted(
                name
                for name, is_held in self.instances.items()
                if not is_held and name not in earlier.instances
            ),
            *sorted(self.mounts - earlier.mounts),
            *(
                f"process {pid} ({name})"  # it has another one soon after it was started
                for pid, name in self.processes.items()
                if pid not in earlier.processes
            ),
            *sorted(self.threads - earlier.threads),
        ]


def leaked_since(earlier: Holdings, *, instances: bool = True) -> list[str]:
    """Return the leaks since `earlier`, which was taken with the same `instances`.

    Leaked processes are killed, so that they do not count for the next test too.
    """
    left = Holdings.now(instances=instances).beyond(earlier)
    if not left:
        return []
    gc.collect()
    deadline = time.monotonic() + _GRACE_S
    while (
        left := Holdings.now(instances=instances).beyond(earlier)
    ) and time.monotonic() < deadline:
        time.sleep(0.01)
    for item in left:
        if item.startswith("process "):
            with suppress(ProcessLookupError):
                os.kill(int(item.split()[1]), signal.SIGKILL)
    return left
