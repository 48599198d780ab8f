# SPDX-License-Identifier: Apache-2.0
"""Notes of which BPF programs of the host collectord's processes loaded.

The kernel gives the ids of the programs on a tracepoint, and not that one of them hides no event.
So each process that loads such programs notes them below /run, where nobody else can write: in a
folder that belongs to root, or to the user to whom root gave /run/collectord. A note identifies a
program by its id, tag, time of loading and user. A name would prove nothing, since everybody
chooses it.

A program is on its tracepoint a moment before it can be noted. So a process says before that it is
loading, in a file that it keeps locked while it lives; until it is done nobody can tell whose a
new program is. A note is removed after its programs; the note of a killed process is removed by
the next one.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from collectord._native import _syscalls
from collectord.errors import KernelError, UnsafePath
from collectord.folders.folder import opened, write_all
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.kernel.bpf import bpf_calls
from collectord.model import RUN_DIRECTORY
from collectord.text.foreign import decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord.folders.folder import Folder
    from collectord.kernel.values.bpf_objects import ProgramInfo

_LOG: Final = structlog.get_logger()
RUN: Final = Path(RUN_DIRECTORY)
_FOLDER: Final = "programs"
_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o755
_NOTE_BYTES: Final = 64 << 10
_NOTES_MAX: Final = 1000


class _Noted(msgspec.Struct, frozen=True):
    """A program, as the kernel described it to the process that loaded it."""

    id: int
    tag: str
    loaded_ns: int
    user: int


class _Note(msgspec.Struct, frozen=True):
    """The note of a process: its programs, and whether it is loading more."""

    programs: tuple[_Noted, ...] = ()
    loading: bool = False


class ProgramNotes:
    """The notes of all processes of this host, and this one's own.

    Args:
        run: the directory of notes, which lasts until the next boot.
    """

    def __init__(self, run: Path = RUN) -> None:
        self._run = run
        self._name = ""
        self._fd = -1
        self._own: dict[int, _Noted] = {}
        self._batches: dict[int, list[int]] = {}  # ids of programs by batch
        self._loading: set[int] = set()
        self._last = 0

    def begin(self) -> int:
        """Announce that programs are being loaded, and return the number of their batch."""
        self._last += 1
        self._batches[self._last] = []
        self._loading.add(self._last)
        self._publish()
        return self._last

    def end(self, batch: int) -> None:
        """Withdraw the announcement: the programs of the batch are loaded and noted."""
        self._loading.discard(batch)
        self._publish()

    def add(self, batch: int, programs: Iterable[ProgramInfo]) -> None:
        """Note programs that hide no event, while their batch is being loaded."""
        for one in programs:
            self._own[one.id] = _Noted(one.id, one.tag, one.loaded_ns, one.user)
            self._batches[batch].append(one.id)
        self._publish()

    def forget(self, batch: int) -> None:
        """Remove the notes of a batch, whose programs are unloaded."""
        for number in self._batches.pop(batch, ()):
            self._own.pop(number, None)
        self._publish()

    def _publish(self) -> None:
        """Write the present state to the note; otherwise others take the programs for foreign."""
        note = _Note(tuple(self._own.values()), loading=bool(self._loading))
        try:
            if note == _Note():
                self._remove()
                return
            if self._fd < 0:
                self._claim()
            data = msgspec.json.encode(note)
            # The text never gets shorter: whoever reads meanwhile gets the old or the new one, or
            # no whole one.
            write_all(self._fd, data.ljust(os.fstat(self._fd).st_size), 0)
        except (OSError, UnsafePath) as error:
            _LOG.warning("programs_not_noted", folder=str(self._run / _FOLDER), error=str(error))

    def _claim(self) -> None:
        """Create the note, locked, and remove those of killed processes."""
        with self._folder(make_mode=_FOLDER_MODE) as folder:
            for entry in folder.entries()[:_NOTES_MAX]:
                with suppress(OSError, UnsafePath):
                    _remove_dead(folder, entry.name)
            self._name = f"{os.getpid()}-{id(self):x}"
            self._fd = folder.create(self._name, mode=_MODE)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def _remove(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with self._folder() as folder:
                folder.remove(self._name, missing_ok=True)

    def _folder(self, make_mode: int | None = None) -> Folder:
        """Open the folder of notes. Raises OSError, UnsafePath."""
        with open_folder(self._run, make_mode=make_mode) as above:
            owners = (os.geteuid(), os.fstat(above.fd).st_uid)
        return open_folder(
            self._run / _FOLDER,
            Trust.ROOTED,
            owners=owners,
            make_mode=make_mode,
            owner_from_above=True,
        )

    def passes(self, number: int) -> bool | None:
        """Whether a note says of this program that it hides no event.

        A run that the kernel skips hides an event all the same, and is counted: then the
        answer is no.

        Returns:
            None if that cannot be told yet.
        """
        try:
            info = _info(number)
        except KernelError as error:  # without CAP_SYS_ADMIN no program can be queried
            return None if error.errno == errno.ENOENT else False
        wanted = _Noted(number, info.tag, info.loaded_ns, info.user)
        undecided = False
        for note, held in self._all():
            if note is not None and wanted in note.programs:
                return info.recursion_misses == 0
            undecided |= held and (note is None or note.loading)
        return None if undecided else False

    def _all(self) -> Iterator[tuple[_Note | None, bool]]:
        """Yield all notes, None for one that is being written, and whether its process lives."""
        try:
            folder = self._folder()
        except (OSError, UnsafePath):
            return
        with folder:
            for entry in folder.entries()[:_NOTES_MAX]:
                with suppress(OSError, UnsafePath), opened(folder.open(entry.name)) as fd:
                    yield decoded(os.pread(fd, _NOTE_BYTES, 0), _Note), _is_held(fd)


def _remove_dead(folder: Folder, name: str) -> None:
    with opened(folder.open(name)) as fd:
        # A process is about to lock an empty one.
        if os.fstat(fd).st_size and not _is_held(fd):
            folder.remove(name, missing_ok=True)


def _is_held(fd: int) -> bool:
    """Whether another open file holds the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _info(number: int) -> ProgramInfo:
    """Return the program of an id. Raises KernelError, ENOENT if it is gone."""
    try:
        fd = _syscalls.bpf_open_id("program", number)
    except OSError as error:
        message = f"cannot ask about BPF program {number}"
        raise bpf_calls.refused(error.errno or 0, message) from error
    with opened(fd):
        return bpf_calls.program_info(fd)
