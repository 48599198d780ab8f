# SPDX-License-Identifier: Apache-2.0
"""Disks for a test: small ones, and slow ones."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support import features
from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SECTOR_BYTES: Final = 512
# A request that a stalling disk holds up: its size, and the time.
STALLED_BYTES: Final = 4096
STALL_S: Final = 0.5


class SlowDisk(NamedTuple):
    """A file system with a limit of bytes a second for its users.

    Attributes:
        root: where it is mounted.
        prefix: words before the command line of whom it is slow for.
    """

    root: Path
    prefix: tuple[str, ...]


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True)


@contextmanager
def ext4(directory: Path, size_bytes: int) -> Iterator[Path]:
    """Provide an ext4 on a loop device, where O_DIRECT meets a block layer."""
    image = directory.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-b", "4096", "-m", "0", image)
    directory.mkdir()
    _run("mount", "-o", "loop", image, directory)
    try:
        yield directory
    finally:
        _run("umount", directory)
        image.unlink()


@contextmanager
def slow_ext4(
    directory: Path, size_bytes: int, bytes_per_second: int, *, reads: bool = False
) -> Iterator[SlowDisk]:
    """Make an ext4 file system where a cgroup limits writes that bypass the page cache, or reads.

    Processes started with the prefix must have ended when the block ends.
    """
    cgroups = features.write_cgroups()
    assert cgroups is not None, "require write cgroups"
    with ext4(directory, size_bytes) as root:
        number = root.stat().st_dev
        device = f"{os.major(number)}:{os.minor(number)}"
        name, rule = cgroups.read_limit if reads else cgroups.limit
        group = cgroups.root / f"collectord-test-{os.getpid()}"
        group.mkdir()
        try:
            (group / name).write_text(rule.format(device=device, limit=bytes_per_second))
            enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
            yield SlowDisk(root, ("sh", "-c", enter, "sh"))
        finally:
            group.rmdir()


@contextmanager
def frozen(root: Path) -> Iterator[None]:
    """Block writers to a file system until the end of the block."""
    _run("fsfreeze", "--freeze", root)
    try:
        yield
    finally:
        _run("fsfreeze", "--unfreeze", root)


@contextmanager
def suspendable_ext4(directory: Path, size_bytes: int) -> Iterator[tuple[Path, str]]:
    """Provide an ext4 on a device of the device mapper, and the device's name for `suspended`."""
    image, name = directory.with_suffix(".img"), f"collectord-test-{os.getpid()}"
    with image.open("wb") as file:
        file.truncate(size_bytes)
    with ExitStack() as stack:
        made = subprocess.run(
            ["losetup", "--find", "--show", image], capture_output=True, text=True, check=True
        )
        loop = made.stdout.strip()
        stack.callback(_run, "losetup", "--detach", loop)
        table = f"0 {size_bytes // _SECTOR_BYTES} linear {loop} 0"
        _run("dmsetup", "create", name, "--table", table)
        stack.callback(_run, "dmsetup", "remove", "--retry", name)
        device = f"/dev/mapper/{name}"
        _run("mkfs.ext4", "-q", "-b", "4096", "-m", "0", device)
        directory.mkdir()
        _run("mount", device, directory)
        stack.callback(_run, "umount", directory)
        yield directory, name


@contextmanager
def suspended(name: str) -> Iterator[None]:
    """Suspend a device of the device mapper: it serves no request before the block ends."""
    _run("dmsetup", "suspend", "--noflush", "--nolockfs", name)
    try:
        yield
    finally:
        _run("dmsetup", "resume", name)


@contextmanager
def looped(image: Path, size_bytes: int) -> Iterator[str]:
    """Provide a disk of zeros, a loop device of a file that is made."""
    image.write_bytes(bytes(size_bytes))
    words = ["losetup", "--find", "--show", str(image)]
    made = subprocess.run(words, capture_output=True, text=True, check=True)
    loop = made.stdout.strip()
    try:
        yield loop
    finally:
        _run("losetup", "--detach", loop)


@contextmanager
def stalling_disk(directory: Path, stall_s: float = STALL_S) -> Iterator[Callable[..., None]]:
    """Provide a disk that stands still for a time while one block of it is written.

    What it yields makes it do so, for `stall_s` or until the function returns that it is given.
    """
    with ExitStack() as stack:
        root = stack.enter_context(ext4(directory, 32 << 20))
        loop = stack.enter_context(looped(root / "image", 1 << 20))
        inflight = Path("/sys/block", Path(loop).name, "inflight")

        def stall(lasts: Callable[[], None] = lambda: time.sleep(stall_s)) -> None:
            write = ["dd", "if=/dev/zero", f"of={loop}", f"bs={STALLED_BYTES}", "count=1"]
            with ExitStack() as ended:
                with frozen(root):
                    words = [*write, "oflag=direct", "status=none"]
                    writer = ended.enter_context(subprocess.Popen(words))
                    end = time.monotonic() + patient(20)
                    while inflight.read_text().split() != ["0", "1"]:
                        assert time.monotonic() < end
                        time.sleep(0.01)
                    lasts()  # so long does the request
                assert writer.wait(timeout=patient(20)) == 0

        yield stall
