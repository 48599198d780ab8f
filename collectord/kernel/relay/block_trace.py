# SPDX-License-Identifier: Apache-2.0
"""blktrace of one block device: set up, started, quieted and removed.

Facts of kernel/trace/blktrace.c, and their consequences:

- BLKTRACESETUP makes a relay channel `trace` in debugfs's `block/NAME`, one file for each CPU
  that is online, and beside them `dropped`, the number of records that found no room on all CPUs.
- Whoever can open the device may set a trace up; the files belong to root.
- BLKTRACESTOP flushes: it ends the sub-buffer that is being written, and counts a drop on each CPU
  whose buffer is full then, though no record was lost. So a trace is first quieted, by an empty
  mask of actions in sysfs, then drained, and stopped when no buffer is full any more.
- A trace outlives its process, see `block_trace_note`. A file that is opened again is read on from
  where the last reader stopped, so a successor with the same plan goes on with it.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from collectord._native import _syscalls
from collectord.codec.blktrace import Setup, setup_name
from collectord.errors import KernelError, UnsafePath
from collectord.kernel.host import errno_mapping
from collectord.kernel.host.errno_mapping import DENIED, Meaning
from collectord.kernel.host.fd_holders import holders_below
from collectord.kernel.relay import debugfs
from collectord.kernel.relay.block_device import (
    TRACE,
    kernel_name,
    open_device,
    sysfs_folder,
    tear_down,
)
from collectord.kernel.relay.block_trace_note import LockedNote, TraceNote
from collectord.kernel.relay.left_block_traces import count_records, end_left, is_of
from collectord.kernel.relay.relay_channel import open_file
from collectord.kernel.values.relay_files import NOT_KEPT, Keep, RelayFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LOG: Final = structlog.get_logger()
_MEANINGS: Final = (
    Meaning(
        (errno.ENOTTY, errno.EOPNOTSUPP),
        feature="blktrace",
        hint="a kernel with CONFIG_BLK_DEV_IOTRACE",
    ),
    Meaning(DENIED, "CAP_SYS_ADMIN"),
    Meaning((errno.ENOMEM, errno.EINVAL), hint="smaller or fewer sub-buffers"),
)
# linux/time.h; the time of a new inode is this clock's.
CLOCK_REALTIME_COARSE: Final = 5


class Blktrace:
    """A trace of one device, set up and not started.

    Attributes:
        name: the kernel's name of the device.
        files: the relay file of each CPU that was online at the setup.
        kept: descriptor of the memory for a successor, NOT_KEPT if there is to be none.
        resumed: an earlier process has set it up.
    """

    def __init__(
        self,
        fd: int,
        name: str,
        files: tuple[RelayFile, ...],
        *,
        folder: Path,
        dropped_fd: int,
        mask: Path,
        note: LockedNote,
        noted: TraceNote,
        kept: int = NOT_KEPT,
        resumed: bool = False,
    ) -> None:
        self.name = name
        self.files = files
        self.kept = kept
        self.resumed = resumed
        self._note = note
        self._noted = noted
        self._leaves = False
        self._fd = fd
        self._folder = folder
        self._dropped_fd = dropped_fd
        self._mask = mask
        self._running = False
        self._late: dict[int, ExitStack] = {}

    def start(self) -> None:
        """Start the trace; one that is resumed may run already. Raises KernelError."""
        try:
            self._control(_syscalls.blktrace_start, "start")
        except KernelError as error:
            if not self.resumed or error.errno != errno.EINVAL:
                raise
        self._running = True

    def leave(self) -> None:
        """Leave the trace as it is, to a successor, when it is closed."""
        self._leaves = True

    def quiet(self) -> None:
        """Stop new records, and wait for those that are being written."""
        if not self._running:
            return
        if self._noted.digest:  # a successor would find a trace without records
            self._noted = msgspec.structs.replace(self._noted, digest="")
            with suppress(KernelError):
                self._note.write(self._noted)
        try:
            # Without a trace a write would set up another kind of trace.
            if self._mask.read_text().strip() != "disabled":
                self._mask.write_text("0")
            # Wait until every CPU was outside of all code that runs with preemption off, as
            # tracepoints do, so that all records that were begun are complete.
            _syscalls.membarrier_global()
        except OSError as error:
            _LOG.info("trace_not_quieted", device=self.name, error=str(error))
            self.end()

    def dropped(self) -> int:
        """Return the records that found no room, on all CPUs. Raises KernelError."""
        try:
            return int(os.pread(self._dropped_fd, 64, 0))
        except (OSError, ValueError) as error:
            code = error.errno or 0 if isinstance(error, OSError) else 0
            raise KernelError(
                f"{self.name}: its count of dropped records no longer exists",
                syscall="read",
                errno=code,
                hint="another process ended the trace",
            ) from error

    def open_late(self, cpu: int) -> RelayFile:
        """Open the file of a CPU that came online since the setup.

        Raises:
            KernelError: ENODEV; the kernel has made none yet. Others: it cannot be opened.
        """
        path = self._folder / f"{TRACE}{cpu}"
        if not path.exists():
            raise KernelError(f"{self.name}: no relay file for CPU {cpu}", errno=errno.ENODEV)
        with ExitStack() as own:
            fd = open_file(path, own)
            self._late[cpu] = own.pop_all()
        return RelayFile(cpu, fd)

    def close_late(self, cpu: int) -> None:
        """Close the file of such a CPU."""
        self._late.pop(cpu).close()

    def close_all_late(self) -> None:
        """Close the files of the CPUs that came online later."""
        while self._late:
            self._late.popitem()[1].close()

    def take_late(self) -> dict[int, int]:
        """Read the files that nobody opened, and count their records.

        The records are removed from the files.

        Raises:
            KernelError: they cannot be read.
        """
        opened = {file.cpu for file in self.files} | self._late.keys()
        try:
            found = dict(debugfs.numbered(self._folder, TRACE))
            return {cpu: count_records(path) for cpu, path in found.items() if cpu not in opened}
        except OSError as error:
            raise KernelError(
                f"{self.name}: files of CPUs that came online cannot be read",
                syscall="read",
                errno=error.errno or 0,
            ) from error

    def _stop(self) -> None:
        if self._running:
            self._running = False
            self._control(_syscalls.blktrace_stop, "stop")

    def end(self) -> None:
        """Stop the trace, unless it is left. Its files still exist."""
        if self._leaves:
            return
        with suppress(KernelError):  # somebody else ended it
            self._stop()

    def remove(self) -> None:
        """Remove the trace, and the note about it, unless it is left."""
        if self._leaves:
            self._note.release()
            return
        tear_down(self._fd)
        self._note.remove()

    def _control(self, call: Callable[[int], None], verb: str) -> None:
        try:
            call(self._fd)
        except OSError as error:
            raise KernelError(
                f"cannot {verb} the trace of {self.name}",
                syscall="ioctl",
                errno=error.errno or 0,
                hint="another process ended it" if error.errno == errno.EINVAL else "",
            ) from error


def open_trace(
    device: str, setup: Setup, keep: Keep, stack: ExitStack, *, proc: Path, sys: Path
) -> Blktrace:
    """Set up a trace, or go on with one that was left for this plan; the stack ends it.

    Another trace that a killed process of ours left is ended first.

    Raises:
        NoSuchTarget: there is no such block device.
        MissingFeature: debugfs is not mounted, or the kernel has no blktrace.
        MissingPrivilege: the device or the relay files may not be opened.
        KernelError: EBUSY; the device is already traced, by a process that the message names.
    """
    root = debugfs.find(proc)
    if root is None:
        raise debugfs.absent()
    with ExitStack() as own:
        fd, number = open_device(device, own)
        note = LockedNote(number, proc=proc)
        folder = root / "block" / kernel_name(number, sys)
        noted, kept = _left_for(keep, note, folder, own)
        resumed = noted is not None
        if noted is None:
            with ExitStack() as undo:
                undo.callback(note.restore)
                note.write(_intent(device, keep.session, note.left))
                folder = root / "block" / _set_up(fd, device, setup, note.left, folder, proc=proc)
                undo.pop_all()
            noted = TraceNote(
                device=device, session=keep.session, inode=_inode(folder), digest=keep.digest
            )
        trace: Blktrace | None = None

        def remove() -> None:
            if trace is not None:
                trace.remove()
            elif resumed:
                note.release()
            else:
                tear_down(fd)
                note.remove()

        own.callback(remove)
        if keep.digest and not resumed:
            kept = note.make_memory(keep.memory_bytes)
            own.callback(os.close, kept)
        note.write(noted)
        files = tuple(
            RelayFile(cpu, open_file(path, own)) for cpu, path in debugfs.numbered(folder, TRACE)
        )
        dropped_fd = _open_below(folder / "dropped", own)
        mask = sysfs_folder(number, sys) / "trace/act_mask"
        trace = Blktrace(
            fd,
            folder.name,
            files,
            folder=folder,
            dropped_fd=dropped_fd,
            mask=mask,
            note=note,
            noted=noted,
            kept=kept,
            resumed=resumed,
        )
        own.callback(trace.close_all_late)
        own.callback(trace.end)
        stack.push(own.pop_all())
    return trace


def _left_for(
    keep: Keep, note: LockedNote, folder: Path, stack: ExitStack
) -> tuple[TraceNote | None, int]:
    """Return the note of the trace that was left for this plan, and its memory; None without."""
    left = note.left
    if left is None or not keep.digest or left.digest != keep.digest or left.since_ns:
        return None, NOT_KEPT
    if not left.inode or left.inode != _inode(folder):
        return None, NOT_KEPT
    try:
        kept = note.memory()
    except (OSError, UnsafePath) as error:
        _LOG.warning("trace_not_resumed", device=left.device, error=str(error))
        return None, NOT_KEPT
    stack.callback(os.close, kept)
    if os.fstat(kept).st_size < keep.memory_bytes:
        return None, NOT_KEPT
    return left, kept


def _set_up(
    fd: int, device: str, setup: Setup, left: TraceNote | None, folder: Path, *, proc: Path
) -> str:
    """Set up a trace, and return the device's name. A trace that we left is ended first."""
    asked = setup.encode()
    try:
        made = _syscalls.blktrace_setup(fd, asked)
    except OSError as error:
        if error.errno != errno.EBUSY or left is None or not is_of(left, folder, proc):
            raise _refused(error, device, folder, proc) from error
        leftover = end_left(fd, left, folder)
        _LOG.warning("trace_left_behind", **leftover._asdict())
        try:
            made = _syscalls.blktrace_setup(fd, asked)
        except OSError as again:
            raise _refused(again, device, folder, proc) from again
    return setup_name(made)


def _refused(error: OSError, device: str, folder: Path, proc: Path) -> KernelError:
    code = error.errno or 0
    if code == errno.EBUSY:
        who = ", ".join(map(str, holders_below(f"/block/{folder.name}/", proc)))
        hint = f"by {who}" if who else f"no process reads it; `blktrace -d {device} -k` ends it"
        return KernelError(
            f"{device} is already being traced",
            syscall="BLKTRACESETUP",
            errno=code,
            hint=f"{hint}; a device has one trace at a time",
        )
    return errno_mapping.refused(code, f"cannot trace {device}", "BLKTRACESETUP", *_MEANINGS)


def _open_below(path: Path, stack: ExitStack) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise debugfs.refused(error, path) from error
    stack.callback(os.close, fd)
    return fd


def _inode(folder: Path) -> int:
    """Return the inode that tells a device's trace from any other; 0 where there is none."""
    try:
        return (folder / "dropped").stat().st_ino
    except OSError:
        return 0


def _intent(device: str, session: str, left: TraceNote | None) -> TraceNote:
    """Return the note of a trace about to be set up, in place of one that may still exist."""
    since_ns = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
    return TraceNote(
        device=device,
        session=session,
        inode=left.inode if left is not None else 0,
        since_ns=since_ns,
    )
