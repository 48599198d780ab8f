# SPDX-License-Identifier: Apache-2.0
"""Pressure stall information: /proc/pressure (Documentation/accounting/psi.rst)."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, Final

from collectord.config.pressure_limit import RESOURCES
from collectord.errors import MissingFeature
from collectord.kernel.host import errno_mapping
from collectord.kernel.values.moment import Pressure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectord.config.pressure_limit import PressureLimit

_US_NS: Final = 1_000
_LINE: Final = re.compile(
    r"^(some|full) avg10=([\d.]+) avg60=([\d.]+) avg300=([\d.]+) total=(\d+)$", re.MULTILINE
)
_FEATURE: Final = "pressure stall information"
_HINT: Final = "CONFIG_PSI, and psi=1 on the kernel's command line where it is off by default"
_ABSENT: Final = (errno.ENOENT, errno.EOPNOTSUPP)


def open_limit(limit: PressureLimit, proc: Path) -> int:
    """See `Kernel.open_pressure`."""
    line = f"{limit.share} {limit.stall_ns // _US_NS} {limit.window_ns // _US_NS}\0"
    try:
        fd = os.open(_file(limit.resource, proc), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, line.encode())
        except OSError:
            os.close(fd)
            raise
    except OSError as error:
        code = error.errno or errno.EIO
        raise errno_mapping.refused(
            code,
            f"the kernel does not watch {limit}",
            "write",
            errno_mapping.Meaning(
                (*errno_mapping.DENIED, errno.EROFS),
                need="CAP_SYS_RESOURCE; from Linux 6.4 on a window of whole 2s needs none",
            ),
            errno_mapping.Meaning(_ABSENT, feature=_FEATURE, hint=_HINT),
        ) from error
    return fd


def stalled_ns(limit: PressureLimit, proc: Path) -> int:
    """See `Kernel.stalled_ns`."""
    for one in _read(limit.resource, proc):
        if one.share == limit.share:
            return one.total_ns
    raise MissingFeature(
        f"this host does not count {limit.resource} {limit.share}", feature=_FEATURE, hint=_HINT
    )


def read_pressures(proc: Path) -> tuple[Pressure, ...]:
    """Return the pressure of each resource that this host measures."""
    return tuple(one for resource in RESOURCES for one in _read(resource, proc))


def _read(resource: str, proc: Path) -> Iterator[Pressure]:
    try:
        text = _file(resource, proc).read_text()
    except OSError:  # absent, or turned off
        return
    for share, avg10, avg60, avg300, total in _LINE.findall(text):
        yield Pressure(
            resource, share, float(avg10), float(avg60), float(avg300), int(total) * _US_NS
        )


def _file(resource: str, proc: Path) -> Path:
    return proc / "pressure" / resource
