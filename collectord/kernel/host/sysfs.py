# SPDX-License-Identifier: Apache-2.0
"""Small files of sysfs and procfs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from collectord.folders.folder import opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Most files have a page, lists of CPUs as much as they need.
_READ_BYTES: Final = 64 << 10


def text(path: Path) -> str:
    """Read a file and strip its text; "" if it cannot be read."""
    try:
        with opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
            return os.read(fd, _READ_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def number(path: Path, base: int = 10) -> int | None:
    """Return the number in a file, None if there is none."""
    try:
        return int(text(path), base)
    except ValueError:
        return None


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder by name, none if there is no such folder."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def files(folder: Path) -> dict[str, str]:
    """Read the files of a folder, in the order of their names; none if there is no folder."""
    return {path.name: text(path) for path in entries(folder)}


def numbered(folder: Path, prefix: str) -> Iterator[tuple[int, Path]]:
    """Yield entries named `prefix` and a number, e.g. "node0", in the order of the numbers."""
    names = ((path.name.removeprefix(prefix), path) for path in entries(folder))
    found = ((int(rest), path) for rest, path in names if rest.isdecimal() and rest.isascii())
    yield from sorted((n, path) for n, path in found if path.name == f"{prefix}{n}")
