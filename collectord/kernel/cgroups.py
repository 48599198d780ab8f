# SPDX-License-Identifier: Apache-2.0
"""The cgroup hierarchy that perf events know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_TYPES: Final = ("cgroup", "cgroup2")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def cgroup_root(mountinfo: str) -> Path | None:
    """Where the hierarchy is mounted that has the perf_event controller.

    Of cgroup1 it is the one mounted with that controller; without such a mount cgroup2 has it, and
    needs no setting for it.

    Args:
        mountinfo: text of /proc/self/mountinfo.
    """
    found: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        place, _, kind = line.partition(" - ")
        type_name, _, options = kind.split(" ", 2)
        if type_name not in _TYPES:
            continue
        if type_name == "cgroup2" or "perf_event" in options.split(","):
            found.setdefault(type_name, Path(_unescaped(place.split()[4])))
    return found.get("cgroup", found.get("cgroup2"))


def _unescaped(path: str) -> str:
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), path)
