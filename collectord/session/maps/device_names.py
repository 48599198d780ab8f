# SPDX-License-Identifier: Apache-2.0
"""Names of this host's network interfaces and block devices, by number.

Interfaces are those of this process's network namespace; a program may see others, whose numbers
mean nothing here, or another interface.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

_MINOR_BITS: Final = 20  # bits of the minor number in a dev_t inside the kernel
_MINOR_MASK: Final = (1 << _MINOR_BITS) - 1
_DUMP_PAUSE_S: Final = 1.0


class HostNames:
    """Names (`codec.bpf_show.Names`) that are looked up at first use and kept.

    All interfaces are read at once. A number that is not among them makes them be read again, once
    a second at most: the interface may be new.

    Args:
        sys: root of sysfs.
    """

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._sys = sys
        self._interfaces: dict[int, str] = {}
        self._devices: dict[int, str] = {}
        self._dumped_s = -_DUMP_PAUSE_S

    def interface(self, ifindex: int) -> str:
        """Return the name of a network interface, its number if it has none."""
        now_s = time.monotonic()
        if ifindex not in self._interfaces and now_s - self._dumped_s >= _DUMP_PAUSE_S:
            self._dumped_s = now_s
            # pyroute2 runs an event loop of its own, and this thread may have one already.
            with ThreadPoolExecutor(1) as other:
                self._interfaces |= other.submit(_interfaces).result()
        return self._interfaces.get(ifindex, str(ifindex))

    def device(self, dev: int) -> str:
        """Return the name of a block device by its `dev_t`, MAJOR:MINOR if it has none."""
        if dev not in self._devices:
            number = f"{dev >> _MINOR_BITS}:{dev & _MINOR_MASK}"
            try:
                name = (self._sys / "dev/block" / number).readlink().name
            except OSError:
                return number
            self._devices[dev] = name
        return self._devices[dev]

    def interfaces(self) -> dict[int, str]:
        """Return the names of all network interfaces."""
        self.interface(0)
        return self._interfaces

    def devices(self) -> dict[int, str]:
        """Return the names of all block devices by their `dev_t`."""
        found = {}
        for path in (self._sys / "dev/block").glob("*:*"):
            major, minor = map(int, path.name.split(":"))
            found[major << _MINOR_BITS | minor] = path.readlink().name
        return found


def _interfaces() -> dict[int, str]:
    """Return the names of all interfaces; none where netlink is out of reach."""
    # Only a caller that meets a number pays for the import.
    from pyroute2.iproute.linux import IPRoute  # noqa: PLC0415
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

    try:
        with IPRoute() as netlink:  # type: ignore[no-untyped-call]  # no annotations
            return {
                link["index"]: str(link.get_attr("IFLA_IFNAME")) for link in netlink.get_links()
            }
    except (OSError, NetlinkError):
        return {}
