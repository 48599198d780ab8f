# SPDX-License-Identifier: Apache-2.0
"""CPU hotplug: sysfs tells which CPUs are online, the kernel's uevents which of them were offline.

Between two polls a CPU may go and come back, which sysfs does not show: its uevents wait in the
socket until the next poll. They reach the initial network namespace only, and a socket that
overflows loses some; then such an absence goes unnoticed, and any longer one is still seen.
"""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import KernelError
from collectord.text import cpu_list

if TYPE_CHECKING:
    from typing import Self

    from collectord.kernel.port import Kernel

_TEXT_BYTES: Final = 4096  # size of a file in sysfs, at most
_MESSAGE_BYTES: Final = 4096  # UEVENT_BUFFER_SIZE is 2048, and the header precedes that
_MESSAGES_MAX: Final = 10_000  # in one poll, which a storm of other devices' must not prolong
# The kernel repeats what is written to a device's `uevent`, and marks it.
_BY_WRITE: Final = b"\0SYNTH_UUID="
_OFFLINE: Final = re.compile(rb"offline@/devices/system/cpu/cpu(\d+)\0")


class CpuChange(NamedTuple):
    """The CPUs that are online, and those that went offline since the last poll, back or not."""

    online: frozenset[int]
    left: frozenset[int]


class CpuWatch:
    """A poller of this host's CPUs.

    Args:
        kernel: opens what tells of them.

    Raises:
        KernelError: sysfs does not tell.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._file, uevents = kernel.open_cpu_news()
        self._text = ""
        self._online: frozenset[int] = frozenset()
        self._uevents: socket.socket | None = None  # without one sysfs alone tells
        if uevents >= 0:
            self._uevents = socket.socket(fileno=uevents)
            self._uevents.settimeout(0)
        self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kernel.close(self._file)
        if self._uevents is not None:
            self._kernel.close(self._uevents.detach())

    def fileno(self) -> int:
        """Return a descriptor, readable when CPUs may have gone or come; -1 if there is none."""
        return self._uevents.fileno() if self._uevents is not None else -1

    def poll(self) -> CpuChange:
        """Return the online CPUs, and those that were offline since the last poll.

        Raises:
            KernelError: sysfs does not tell.
        """
        # Uevents come first: a CPU that goes offline after them is missing in sysfs or in the next
        # poll.
        left = self._reported_offline()
        before = self._online
        self._read()
        return CpuChange(self._online, left | (before - self._online))

    def _read(self) -> None:
        try:
            text = os.pread(self._file, _TEXT_BYTES, 0).decode()
        except OSError as error:
            raise KernelError(
                "cannot read which CPUs are online", syscall="pread", errno=error.errno or 0
            ) from error
        if text != self._text:
            self._text, self._online = text, frozenset(cpu_list.parse(text))

    def _reported_offline(self) -> frozenset[int]:
        """Return CPUs that went offline, by the kernel's messages since the last call."""
        found: set[int] = set()
        if self._uevents is None:
            return frozenset()
        for _ in range(_MESSAGES_MAX):
            try:
                message, (sender, _) = self._uevents.recvfrom(_MESSAGE_BYTES)
            except BlockingIOError:
                break
            except OSError:  # ENOBUFS: some are lost, the next ones are not
                continue
            said = _OFFLINE.match(message)
            if said is not None and sender == 0 and _BY_WRITE not in message:
                found.add(int(said[1]))
        return frozenset(found)
