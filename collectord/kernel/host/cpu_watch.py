# SPDX-License-Identifier: Apache-2.0
"""CPU hotplug: sysfs tells which CPUs are online, the kernel's uevents which of them were offline.

Between two polls a CPU may go and come back, which sysfs does not show: its uevents wait in the
socket until the next poll. They reach the initial network namespace only, and a socket that
overflows loses some; then such an absence goes unnoticed, and any longer one is still seen.
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.kernel.host import cpus
from collectord.text import cpu_list

if TYPE_CHECKING:
    from typing import Self

_KOBJECT_UEVENT: Final = 15  # NETLINK_KOBJECT_UEVENT, include/uapi/linux/netlink.h
_KERNEL_GROUP: Final = 1
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
        sys: root of sysfs.
    """

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._file = cpus.OnlineFile(sys)
        self._text = ""
        self._online: frozenset[int] = frozenset()
        self._read()
        self._uevents: socket.socket | None = None
        with suppress(OSError):  # there is no such socket here: sysfs alone tells
            self._uevents = _listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._uevents is not None:
            self._uevents.close()

    def poll(self) -> CpuChange:
        """Return the online CPUs, and those that were offline since the last poll.

        Raises:
            KernelError: sysfs does not tell.
        """
        # Uevents come first: a CPU that goes offline after them is missing in sysfs or in the next
        # poll.
        left = self._told()
        before = self._online
        self._read()
        return CpuChange(self._online, left | (before - self._online))

    def _read(self) -> None:
        text = self._file.read()
        if text != self._text:
            self._text, self._online = text, frozenset(cpu_list.parse(text))

    def _told(self) -> frozenset[int]:
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


def _listen() -> socket.socket:
    uevents = socket.socket(
        socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _KOBJECT_UEVENT
    )
    try:
        uevents.bind((0, _KERNEL_GROUP))
    except OSError:
        uevents.close()
        raise
    return uevents
