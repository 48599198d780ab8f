# SPDX-License-Identifier: Apache-2.0
"""CPUs: which there may be, and which are online."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from collectord.errors import KernelError
from collectord.plan import cpu_list

_FOLDER: Final = "devices/system/cpu"


def online(sys: Path = Path("/sys")) -> tuple[int, ...]:
    """CPUs that are online. Raises KernelError where sysfs cannot tell."""
    return _read(sys / _FOLDER / "online")


def possible(sys: Path = Path("/sys")) -> tuple[int, ...]:
    """CPUs that may ever come online. Raises KernelError where sysfs cannot tell."""
    return _read(sys / _FOLDER / "possible")


def count(sys: Path = Path("/sys")) -> int:
    """How many CPUs are plugged in, counted up to the last one. Raises as `online`."""
    return max(_read(sys / _FOLDER / "present"), default=-1) + 1


def _read(path: Path) -> tuple[int, ...]:
    try:
        return cpu_list.parse(path.read_text())
    except OSError as error:
        raise KernelError(
            f"cannot read {path}", syscall="open", errno=error.errno or 0, hint="mount sysfs"
        ) from error
