# SPDX-License-Identifier: Apache-2.0
"""Disks for a test: small ones, and slow ones."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tests.support import features

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class SlowDisk(NamedTuple):
    """A file system that takes so many bytes a second, of whom it was made for.

    Attributes:
        root: where it is mounted.
        prefix: words before the command line of whom it is slow for.
    """

    root: Path
    prefix: tuple[str, ...]


@contextmanager
def ext4(directory: Path, size_bytes: int) -> Iterator[Path]:
    """An ext4 on a loop device, where O_DIRECT meets a block layer."""
    image = directory.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-b", "4096", "-m", "0", image], check=True)
    directory.mkdir()
    subprocess.run(["mount", "-o", "loop", image, directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)
        image.unlink()


@contextmanager
def slow_ext4(directory: Path, size_bytes: int, bytes_per_second: int) -> Iterator[SlowDisk]:
    """The same, where a cgroup limits what is written past the page cache.

    Whoever is started with the prefix has to have ended when the block ends.
    """
    cgroups = features.write_cgroups()
    assert cgroups is not None, "require write cgroups"
    with ext4(directory, size_bytes) as root:
        number = root.stat().st_dev
        device = f"{os.major(number)}:{os.minor(number)}"
        name, rule = cgroups.limit
        group = cgroups.root / f"collectord-test-{os.getpid()}"
        group.mkdir()
        try:
            (group / name).write_text(rule.format(device=device, limit=bytes_per_second))
            enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
            yield SlowDisk(root, ("sh", "-c", enter, "sh"))
        finally:
            group.rmdir()
