# SPDX-License-Identifier: Apache-2.0
"""A folder of tracefs with control files: reading and writing them, and errors of refusals.

Access is plain file permission. The files have mode 640 and belong to root, those of an instance
to the owner of the folder `instances`, so that writing takes their owner or CAP_DAC_OVERRIDE; a
group (`gid=` of the mount) may read, and CAP_SYS_ADMIN does not help.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from collectord.errors import KernelError
from collectord.folders.folder import opened
from collectord.folders.trust import PROC
from collectord.kernel.host import errno_mapping
from collectord.kernel.host.errno_mapping import Meaning
from collectord.kernel.host.fd_holders import holders_below
from collectord.kernel.values.host import kept_by

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.kernel.values.host import Holder

# The unit gives `instances` and `dynamic_events` to the service's user.
NEED: Final = "CAP_DAC_OVERRIDE, or to own the file (as a service: collectord-tracefs.service)"


class ControlFolder:
    """A folder of control files.

    Args:
        path: tracefs's root, or an instance.
        proc: root of procfs, to name who keeps a busy file.
    """

    def __init__(self, path: Path, *, proc: Path = PROC) -> None:
        self.path = path
        self.proc = proc

    def has(self, leaf: str) -> bool:
        """Whether this kernel has the file."""
        return (self.path / leaf).exists()

    def open(self, leaf: str, flags: int) -> int:
        """Open a file, close-on-exec. Raises as `write`."""
        path = self.path / leaf
        try:
            return os.open(path, flags | os.O_CLOEXEC)
        except OSError as error:
            raise self.refused(error, path) from error

    def read(self, leaf: str) -> bytes:
        """Return the file's content. Raises as `write`."""
        path = self.path / leaf
        try:
            return path.read_bytes()
        except OSError as error:
            raise self.refused(error, path) from error

    def read_text(self, leaf: str) -> str:
        """Return the file's content without white space around it. Raises as `write`."""
        return self.read(leaf).decode(errors="replace").strip()

    def write(self, leaf: str, text: str) -> None:
        """Write a value in one call, without truncation, which several files would act on.

        Raises:
            MissingPrivilege: EACCES, or EPERM under lockdown.
            MissingFeature: this kernel has no such file.
            KernelError: EBUSY with the holder of the file's instance, ENOMEM, and anything else.
        """
        path = self.path / leaf
        try:
            self.put(leaf, text)
        except OSError as error:
            raise self.refused(error, path, text) from error

    def put(self, leaf: str, text: str) -> None:
        """Write as `write`, for callers that know what an errno means here.

        Raises:
            OSError: the kernel's error, unchanged.
        """
        data = os.fsencode(text)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        with opened(os.open(self.path / leaf, flags)) as fd:
            if os.write(fd, data) != len(data):
                raise OSError(errno.EIO, "only a part was taken")

    def users(self, but: int = 0) -> tuple[Holder, ...]:
        """Return processes that have files below this folder open or mapped, without `but`."""
        found = holders_below(f"/{self.path.parent.name}/{self.path.name}/", self.proc)
        return tuple(holder for holder in found if holder.pid != but)

    def kept_by(self) -> str:
        """Return in words who keeps files below this folder."""
        return kept_by(self.users())

    def refused(self, error: OSError, path: Path, text: str = "") -> KernelError:
        """Return the error for a file that could not be opened, read or written.

        Args:
            error: the exception of the call.
            path: the file.
            text: the value of a write.
        """
        code = error.errno or 0
        if code == errno.EPERM:
            return errno_mapping.path_refused(error, str(path), root=None)
        syscall = "write" if text else "open"
        if code == errno.EBUSY:
            return KernelError(f"{path} is busy", syscall=syscall, errno=code, hint=self.kept_by())
        return errno_mapping.refused(
            code,
            f"the kernel refuses {text!r} for {path}" if text else f"cannot open {path}",
            syscall,
            Meaning(
                (errno.EACCES,),
                NEED,
                message=f"cannot {syscall} {path}",
            ),
            Meaning(
                (errno.ENOENT,),
                feature=path.name,
                message=f"no {path}",
                hint="this kernel does not have it",
            ),
            Meaning(
                (errno.ENOMEM,), message=f"no memory for {text!r} in {path}", hint="ask for less"
            ),
        )
