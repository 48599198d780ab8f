# SPDX-License-Identifier: Apache-2.0
"""Block traces that an earlier process left: recognised by their notes, kept, or ended."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from collectord._native import _syscalls
from collectord._native._core import scan_blktrace
from collectord.errors import KernelError, UnsafePath
from collectord.kernel.host.fd_holders import holders_below
from collectord.kernel.relay import block_trace_note, debugfs
from collectord.kernel.relay.block_device import (
    TRACE,
    kernel_name,
    open_device,
    sysfs_folder,
    tear_down,
)
from collectord.kernel.relay.block_trace_note import LockedNote
from collectord.kernel.values.relay_files import LeftTrace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from collectord.kernel.relay.block_trace_note import TraceNote

_READ_BYTES: Final = 1 << 20


def kept_memories(proc: Path) -> dict[str, int]:
    """Return the memory of each trace that was left for a successor, by its device."""
    found = {}
    for number in block_trace_note.numbers():
        with suppress(KernelError, OSError, UnsafePath), ExitStack() as stack:
            note = LockedNote(number, proc=proc)
            stack.callback(note.release)
            if note.left is not None and note.left.digest:
                found[note.left.device] = note.memory()
    return found


def end_leftovers(
    proc: Path, sys: Path, ends: Callable[[TraceNote], bool] = lambda _note: True
) -> list[LeftTrace]:
    """End the traces that processes of ours left; their devices may be gone.

    Args:
        proc: root of procfs.
        sys: root of sysfs.
        ends: whether that is to be done with one.
    """
    root = debugfs.find(proc)
    ended = []
    for number in block_trace_note.numbers() if root is not None else ():
        with suppress(KernelError, OSError), ExitStack() as stack:
            note = LockedNote(number, proc=proc)  # unless a process has it
            stack.callback(note.release)
            left = note.left
            if left is not None and not ends(left):
                continue
            if root is not None and left is not None and sysfs_folder(number, sys).exists():
                folder = root / "block" / kernel_name(number, sys)
                if is_of(left, folder, proc):
                    ended.append(_end(left, folder, stack))
                    if ended[-1].problem:  # the next start recognises it by its note
                        continue
            note.remove()
    return ended


def _end(left: TraceNote, folder: Path, stack: ExitStack) -> LeftTrace:
    try:
        fd, _ = open_device(left.device, stack)
    except KernelError as error:
        return LeftTrace(left.device, left.session, problem=str(error))
    return end_left(fd, left, folder)


def is_of(left: TraceNote, folder: Path, proc: Path) -> bool:
    """Whether the trace of a device is the one that a killed process noted."""
    try:
        found = (folder / "dropped").stat()
    except OSError:
        return False
    if left.inode == found.st_ino:
        return True
    made_since = left.since_ns and found.st_mtime_ns >= left.since_ns
    return bool(made_since) and not any(holders_below(f"/block/{folder.name}/", proc))


def end_left(fd: int, left: TraceNote, folder: Path) -> LeftTrace:
    """Stop and remove a trace, and count the records that it still holds."""
    with suppress(OSError):
        _syscalls.blktrace_stop(fd)
    dropped = unread = 0
    with suppress(OSError, ValueError):
        dropped = int((folder / "dropped").read_text())
    with suppress(OSError):
        unread = sum(count_records(path) for _, path in debugfs.numbered(folder, TRACE))
    tear_down(fd)
    return LeftTrace(left.device, left.session, unread, dropped)


def count_records(path: Path) -> int:
    """Count the records in a relay file; a killed reader may have read part of one."""
    with path.open("rb", buffering=0) as file:
        data = b"".join(iter(lambda: file.read(_READ_BYTES), b""))
    return scan_blktrace(data).events
