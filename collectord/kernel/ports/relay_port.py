# SPDX-License-Identifier: Apache-2.0
"""The part of the kernel's port for block traces and relay channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.codec.blktrace import Setup
    from collectord.kernel.values.relay_files import LeftTrace, OpenedTrace, RelayFile


class RelayPort(Protocol):
    """See `Kernel`."""

    def open_blktrace(self, device: str, setup: Setup, session: str) -> OpenedTrace:
        """Set up a trace of a block device for a session, not started; `close_blktrace` ends it.

        Raises:
            NoSuchTarget: there is no such block device.
            MissingFeature: debugfs is not mounted, or the kernel has no blktrace.
            MissingPrivilege: the device or its relay files may not be opened.
            KernelError: EBUSY; the device is already traced, by a process that the message names.
        """

    def start_blktrace(self, trace: int) -> None:
        """Start a trace, by its id. Raises KernelError."""

    def quiet_blktrace(self, trace: int) -> None:
        """Stop new records of a trace, and wait for those that are being written."""

    def blktrace_dropped(self, trace: int) -> int:
        """Return the records that found no room, on all CPUs. Raises KernelError."""

    def open_late_file(self, trace: int, cpu: int) -> RelayFile:
        """Open the file of a CPU that came online since the setup; `close_late_file` closes it.

        Raises:
            KernelError: ENODEV; the kernel has made none yet. Others: it cannot be opened.
        """

    def close_late_file(self, trace: int, cpu: int) -> None:
        """Close such a file. Records that are still in it count as those of a file not opened."""

    def take_late_records(self, trace: int) -> Mapping[int, int]:
        """Remove the records of files that nobody opened, and count them by CPU.

        These are the files of CPUs that came online since the setup.

        Raises:
            KernelError: they cannot be read.
        """

    def close_blktrace(self, trace: int) -> None:
        """Stop and remove a trace, and close its files."""

    def end_left_traces(self) -> Sequence[LeftTrace]:
        """End traces of block devices that killed processes of this program left."""

    def open_channel(self, path: str) -> tuple[RelayFile, ...]:
        """Open the files of a relay channel: `path` itself, or `path` with each CPU's number.

        The caller closes each with `close`.

        Raises:
            MissingFeature: there are none, or they are not relay files.
            MissingPrivilege, KernelError: they cannot be opened.
        """
