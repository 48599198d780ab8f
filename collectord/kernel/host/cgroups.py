# SPDX-License-Identifier: Apache-2.0
"""The cgroup hierarchy that perf events know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_TYPES: Final = ("cgroup", "cgroup2")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def cgroup_root(mountinfo: str) -> Path | None:
    """Return the mount point of the hierarchy that has the perf_event controller.

    In cgroup1 it is the hierarchy mounted with that controller; without such a mount cgroup2 has
    it, and needs no setting for it.

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


def place(root: Path, path: str) -> Path:
    """Return the directory that a cgroup's path means: the hierarchy's `root`, or one below it.

    As in perf `/` is the root of the hierarchy, and `/a` is `a` below it. The directory need not
    exist.
    """
    given = Path(path)
    if given.is_absolute() and within(root, given):
        return given
    return root / path.lstrip("/")


def within(root: Path, directory: Path) -> bool:
    """Whether a directory belongs to the hierarchy mounted at `root`, by whatever mount."""
    try:
        return directory.stat().st_dev == root.stat().st_dev
    except OSError:
        return False


def _unescaped(path: str) -> str:
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), path)
