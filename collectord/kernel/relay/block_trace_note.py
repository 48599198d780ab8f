# SPDX-License-Identifier: Apache-2.0
"""The note of who set up a device's blktrace, below /run, locked while the trace is ours.

A trace goes on when the process that set it up dies: its buffers fill, and nobody else can trace
the device. The kernel does not tell whose it is. So each trace of ours has a note that names the
trace by the inode of its file `dropped`, which no other trace will have before the next boot, and
that its process keeps locked: a lock ends with its holder, the note does not. It is written before
the trace is set up: if its process was killed in between, the trace is the one that was made since
then and that nobody reads.

Beside the note of a trace that a successor may go on with is a file in which its process notes how
far it has read: see `source.kept_memory`, and struct relay_note of the core.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from collectord.errors import KernelError, UnsafePath
from collectord.folders.trust import PROC
from collectord.folders.walk import open_folder
from collectord.kernel.host.fd_holders import lock_owner
from collectord.kernel.tracefs.instance_note import open_notes
from collectord.model import RUN_DIRECTORY
from collectord.text.foreign import decoded

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTES: Final = Path(RUN_DIRECTORY, "traces")
_NOTE_MAX_BYTES: Final = 1 << 16
_KEPT: Final = ".kept"


class TraceNote(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a note.

    Attributes:
        device: path of the block device.
        session: session that the trace belongs to.
        inode: inode of the trace's `dropped`, 0 until it was read.
        since_ns: CLOCK_REALTIME_COARSE, when the trace was about to be set up; 0 once it is.
        digest: of the plan that goes on with it, see
            `plan.held_resources.block_digest`; "": none does.
    """

    device: str
    session: str
    inode: int = 0
    since_ns: int = 0
    digest: str = ""


class LockedNote:
    """The note of one device, locked by this process.

    Args:
        number: number of the device.
        notes: the directory of notes.
        proc: root of procfs.

    Attributes:
        left: the note of an earlier process, None if none can be read.

    Raises:
        KernelError: EBUSY; another process traces the device. Or the note cannot be written.
    """

    def __init__(self, number: int, *, notes: Path = NOTES, proc: Path = PROC) -> None:
        self._name = f"{os.major(number)}:{os.minor(number)}"
        self._notes = notes
        self._proc = proc
        try:
            self._folder = open_notes(notes)
            self._fd = self._claim()
        except (OSError, UnsafePath) as error:
            raise _unwritable(notes, error) from error
        self.left = decoded(os.pread(self._fd, _NOTE_MAX_BYTES, 0), TraceNote)

    def _claim(self) -> int:
        while True:
            try:
                fd = self._folder.open(self._name, write=True)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    os.close(self._folder.create(self._name, mode=0o600))
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = lock_owner(fd, self._proc)
                note = decoded(os.pread(fd, _NOTE_MAX_BYTES, 0), TraceNote)
                os.close(fd)
                raise _in_use(note, str(owner or "another process")) from None
            if os.fstat(fd).st_nlink:
                return fd
            os.close(fd)  # its holder removed it since it was opened

    def write(self, note: TraceNote) -> None:
        """Replace the note's content. Raises KernelError."""
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, msgspec.json.encode(note), 0)
        except OSError as error:
            raise _unwritable(self._notes, error) from error

    def make_memory(self, size_bytes: int) -> int:
        """Make the file beside the note, of zeros; return its descriptor. Raises KernelError."""
        try:
            self._folder.remove(self._name + _KEPT, missing_ok=True)
            fd = self._folder.create(self._name + _KEPT, mode=0o600)
        except OSError as error:
            raise _unwritable(self._notes, error) from error
        try:
            os.ftruncate(fd, size_bytes)
        except OSError as error:
            os.close(fd)
            raise _unwritable(self._notes, error) from error
        return fd

    def memory(self) -> int:
        """Return the descriptor of the file beside the note. Raises OSError, UnsafePath."""
        return self._folder.open(self._name + _KEPT, write=True)

    def restore(self) -> None:
        """Restore the earlier content, or remove the note if it had none: no trace was made."""
        if self.left is None:
            self.remove()
            return
        with suppress(KernelError):
            self.write(self.left)
        self.release()

    def remove(self) -> None:
        """Remove the note: the trace is gone."""
        with suppress(OSError):
            self._folder.remove(self._name + _KEPT, missing_ok=True)
            self._folder.remove(self._name)
        self.release()

    def release(self) -> None:
        """Release the lock and leave the note as it is; a note that was removed needs nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self._folder.close()


def numbers(notes: Path = NOTES) -> Iterator[int]:
    """Yield the numbers of devices that have a note, locked or not."""
    with suppress(FileNotFoundError, PermissionError), open_folder(notes) as folder:
        for entry in folder.entries():
            major, _, minor = entry.name.partition(":")
            if major.isdigit() and minor.isdigit():
                yield os.makedev(int(major), int(minor))


def _unwritable(notes: Path, error: OSError | UnsafePath) -> KernelError:
    why = "" if isinstance(error, OSError) else f": {error}"
    return KernelError(
        f"cannot write a note in {notes} about the owner of the trace{why}",
        errno=error.errno or 0,
        hint="after a crash its owner would be unknown, and the trace would stay",
    )


def _in_use(note: TraceNote | None, owner: str) -> KernelError:
    what = f"{note.device} is" if note is not None else "the device is"
    session = f", session {note.session}" if note is not None else ""
    return KernelError(
        f"{what} already being traced",
        errno=errno.EBUSY,
        hint=f"by {owner}{session}; a device has one trace at a time",
    )
