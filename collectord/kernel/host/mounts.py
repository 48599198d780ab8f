# SPDX-License-Identifier: Apache-2.0
"""Mounts, as /proc/PID/mountinfo tells of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_ESCAPED: Final = re.compile(rb"\\([0-3][0-7]{2})")


class Mount(NamedTuple):
    """A mount.

    Attributes:
        root: the folder of the file system that is mounted, `/` for all of it.
        place: where it is mounted.
        kind: the type of the file system.
        options: those of the file system.
    """

    root: Path
    place: Path
    kind: bytes
    options: tuple[bytes, ...]


def mounts(mountinfo: bytes) -> Iterator[Mount]:
    """Yield the mounts in their order.

    Args:
        mountinfo: content of /proc/PID/mountinfo.
    """
    for line in filter(None, mountinfo.split(b"\n")):
        where, _, what = line.partition(b" - ")
        _, _, _, root, place = where.split(b" ")[:5]
        kind, _, options = what.split(b" ", 2)
        yield Mount(_path(root), _path(place), kind, tuple(options.split(b",")))


def _path(escaped: bytes) -> Path:
    """Return a path, of which the kernel escapes white space and backslashes."""
    return Path(os.fsdecode(_ESCAPED.sub(lambda octal: bytes([int(octal[1], 8)]), escaped)))
