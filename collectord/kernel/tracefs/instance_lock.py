# SPDX-License-Identifier: Apache-2.0
"""The lock on a tracefs instance's directory: it shows that its holder lives, and ends with it.

An instance outlives the process that made it, so its name alone does not tell whether a daemon
still drains it. The maker therefore holds an flock on the instance's directory: the kernel drops
it when the last descriptor closes, after a SIGKILL too, and a descriptor of the directory does not
prevent rmdir. A lock on `instances` itself, held for a moment, makes "create and lock" and "look
and lock" one step each.

A process that salvages what a killed one left holds a shared lock, as only one does at a time:
others see that it ends soon, and are kept from the instance as by its maker.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from collectord.errors import KernelError, MissingFeature, NoSuchTarget
from collectord.folders.folder import opened
from collectord.folders.trust import PROC
from collectord.kernel.host.fd_holders import lock_owner
from collectord.kernel.tracefs.control_files import ControlFolder
from collectord.kernel.values.instance_settings import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WAITS: Final = (
    "left by a crash: its rings hold records that could not be salvaged, for the reason that "
    "instance_not_salvaged in the log has; free some space, and start again"
)
_RENAME: Final = "rename the session: the instance has its name"
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def make_locked(root: Path, name: str, *, proc: Path = PROC) -> int:
    """Make an instance and return a descriptor of its directory that holds its lock.

    Raises:
        KernelError: EEXIST; a running daemon has it, or a crash left it.
        MissingPrivilege, MissingFeature: instances cannot be made.
    """
    path = root / "instances" / name
    with _changing(root, proc):
        try:
            path.mkdir()
        except FileExistsError as error:
            raise _exists(path, proc) from error
        except OSError as error:
            raise ControlFolder(path, proc=proc).refused(error, path, name) from error
        with ExitStack() as undo:
            undo.callback(path.rmdir)
            fd = os.open(path, _FOLDER_FLAGS)
            undo.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            undo.pop_all()
        return fd


def check_unheld(root: Path, name: str, *, proc: Path = PROC) -> None:
    """Raise KernelError, EEXIST, if a process holds an instance, and not if a crash left it."""
    path = root / "instances" / name
    if _is_there(path) and name in find_live(root, name, proc=proc):
        raise _exists(path, proc)


def is_being_salvaged(root: Path, name: str, *, proc: Path = PROC) -> bool:
    """Whether a process holds an instance that a crash left, until it has removed it."""
    path = root / "instances" / name
    if not _is_there(path):
        return False
    with _changing(root, proc):
        try:
            fd = os.open(path, _FOLDER_FLAGS)
        except FileNotFoundError:
            return False
        with opened(fd):
            return not _locked(fd) and _locked(fd, fcntl.LOCK_SH)


def _is_there(path: Path) -> bool:
    try:
        return path.is_dir()
    except PermissionError:  # making the instance is refused for that reason too
        return False


def take_over(root: Path, name: str, *, proc: Path = PROC) -> int:
    """Lock an instance that nobody holds, to salvage it, and return its directory's descriptor.

    Raises:
        NoSuchTarget: there is no such instance, or another process salvages it.
        KernelError: EBUSY; a process holds its lock.
    """
    with _changing(root, proc):
        fd = _open_existing(root, name)
        if _locked(fd):
            fcntl.flock(fd, fcntl.LOCK_SH)
            return fd
        owner = lock_owner(fd, proc)
        salvaged = _locked(fd, fcntl.LOCK_SH)
        os.close(fd)
    if salvaged:
        raise NoSuchTarget(f"{owner or 'another process'} is salvaging {name}")
    raise KernelError(
        f"tracefs instance {name} is in use",
        errno=errno.EBUSY,
        hint=f"held by {owner or 'another process'}",
    )


def resume_locked(root: Path, name: str, *, proc: Path = PROC) -> int:
    """Lock an instance that its process has left, as its maker does; return its descriptor.

    Raises:
        NoSuchTarget: there is no such instance, or a process holds its lock.
    """
    with _changing(root, proc):
        fd = _open_existing(root, name)
        if not _locked(fd):
            os.close(fd)
            raise NoSuchTarget(f"tracefs instance {name} is in use")
    return fd


def remove_locked(root: Path, name: str, *, proc: Path = PROC) -> None:
    """Remove an instance whose lock the caller holds; one that is gone already is fine.

    This takes about 50 ms, in which the kernel waits for all CPUs.

    Raises:
        KernelError: EBUSY; a process that the message names has a file of it open or mapped. Then
            only its memory is kept, and the next start finds it.
    """
    path = root / "instances" / name
    with _changing(root, proc):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            folder = ControlFolder(path, proc=proc)
            raise KernelError(
                f"cannot remove tracefs instance {name}",
                syscall="rmdir",
                errno=error.errno or 0,
                hint=folder.kept_by() if error.errno == errno.EBUSY else "",
            ) from error


def find_leftovers(root: Path, prefix: str = PREFIX, *, proc: Path = PROC) -> tuple[str, ...]:
    """Return names of instances that nobody holds, which a crash left.

    Raises:
        MissingPrivilege, MissingFeature: instances cannot be listed.
    """
    return tuple(name for name, held in _survey(root, prefix, proc) if not held)


def find_live(root: Path, prefix: str = PREFIX, *, proc: Path = PROC) -> tuple[str, ...]:
    """Return names of instances whose lock a process holds. Raises as `find_leftovers`."""
    return tuple(name for name, held in _survey(root, prefix, proc) if held)


def _survey(root: Path, prefix: str, proc: Path) -> list[tuple[str, bool]]:
    found = []
    with _changing(root, proc):
        for path in sorted((root / "instances").iterdir()):
            if not path.name.startswith(prefix):
                continue
            try:
                fd = os.open(path, _FOLDER_FLAGS)
            except FileNotFoundError:
                continue  # removed by hand since it was listed
            with opened(fd):
                found.append((path.name, not _locked(fd)))
    return found


def _open_existing(root: Path, name: str) -> int:
    """Open an instance's directory. Raises NoSuchTarget."""
    try:
        return os.open(root / "instances" / name, _FOLDER_FLAGS)
    except FileNotFoundError as error:
        raise NoSuchTarget(f"no tracefs instance {name}") from error


def _locked(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Whether the lock could be acquired; it ends with the descriptor."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _changing(root: Path, proc: Path) -> Iterator[None]:
    """Keep other collectords from making or taking over instances meanwhile."""
    path = root / "instances"
    try:
        fd = os.open(path, _FOLDER_FLAGS)
    except FileNotFoundError as error:
        raise MissingFeature(
            f"no {path}",
            feature="tracefs instances",
            hint="mount tracefs; kernel lockdown at confidentiality leaves it empty",
        ) from error
    except OSError as error:
        raise ControlFolder(path, proc=proc).refused(error, path) from error
    with opened(fd):
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def _exists(path: Path, proc: Path) -> KernelError:
    with opened(os.open(path, _FOLDER_FLAGS)) as fd:
        owner = None if _locked(fd) else lock_owner(fd, proc) or "another process"
    return KernelError(
        f"tracefs instance {path.name} exists already",
        syscall="mkdir",
        errno=errno.EEXIST,
        hint=f"held by {owner}: {_RENAME}"
        if owner
        else f"{_WAITS}; rmdir {path} deletes its records",
    )
