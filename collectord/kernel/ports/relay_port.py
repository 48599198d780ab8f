# SPDX-License-Identifier: Apache-2.0
"""The part of the kernel's port for block traces and relay channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from collectord.codec.blktrace import Setup
    from collectord.kernel.values.relay_files import (
        Keep,
        LeftTrace,
        OpenedTrace,
        RelayFile,
    )


class RelayPort(Protocol):
    """See `Kernel`."""

    def open_blktrace(self, device: str, setup: Setup, keep: Keep) -> OpenedTrace:
        """Set up a trace of a block device, not started; `close_blktrace` ends it.

        A trace that a process with the same digest has left goes on.

        Raises:
            NoSuchTarget: there is no such block device.
            MissingFeature: debugfs is not mounted, or the kernel has no blktrace.
            MissingPrivilege: the device or its relay files may not be opened.
            KernelError: EBUSY; the device is already traced, by a process that the message names.
        """

    def start_blktrace(self, trace: int) -> None:
        """Start a trace, by its id; one that goes on may run already. Raises KernelError."""

    def quiet_blktrace(self, trace: int) -> None:
        """Stop new records of a trace, and wait for those that are being written.

        No successor goes on with it from now on.
        """

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

    def leave_blktrace(self, trace: int) -> None:
        """Close the files of a trace, and leave it as it is to a successor."""

    def end_left_traces(self, spared: Collection[str] = ()) -> Sequence[LeftTrace]:
        """End traces of block devices that processes of this program left.

        Args:
            spared: digests of plans that go on with theirs.
        """

    def end_lasting_traces(self) -> Sequence[LeftTrace]:
        """End the traces that were left for a successor."""

    def kept_trace_memories(self) -> Mapping[str, int]:
        """Return the memory of each trace that was left for a successor, by the device's path.

        The caller closes each with `close`.
        """

    def open_channel(self, path: str) -> tuple[RelayFile, ...]:
        """Open the files of a relay channel: `path` itself, or `path` with each CPU's number.

        The caller closes each with `close`.

        Raises:
            MissingFeature: there are none, or they are not relay files.
            MissingPrivilege, KernelError: they cannot be opened.
        """
