# SPDX-License-Identifier: Apache-2.0
"""A block device of a test's own, requests to it, and the reports of blktrace's tools."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Iterator

DEBUGFS: Final = Path("/sys/kernel/debug")
REQUEST_BYTES: Final = 4096
_DISK_BYTES: Final = 16 << 20
_LIMIT_S: Final = patient(60)


@contextmanager
def disk(directory: Path) -> Iterator[Path]:
    """Provide a loop device that nobody else uses."""
    image = directory / "disk.img"
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    made = subprocess.run(
        ["losetup", "--find", "--show", image], capture_output=True, text=True, check=True
    )
    device = Path(made.stdout.strip())
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def write_requests(device: Path, count: int) -> None:
    """Make so many write requests of one block each, around the page cache."""
    with mmap.mmap(-1, REQUEST_BYTES) as data:
        fd = os.open(device, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        try:
            for number in range(count):
                at = number * REQUEST_BYTES % _DISK_BYTES
                assert os.pwrite(fd, data, at) == REQUEST_BYTES
        finally:
            os.close(fd)


def traces_of(device: Path) -> list[str]:
    """Return the files of a trace of the device, sorted."""
    folder = DEBUGFS / "block" / device.name
    return sorted(path.name for path in folder.glob("trace*"))


def parsed(base: Path) -> Counter[str]:
    """Return the events that blkparse lists, by action and kind of request: "C W", "Q WS" ..."""
    return Counter(" ".join(words) for words in _listed(base, "%a %d"))


def values(base: Path) -> Counter[tuple[str, ...]]:
    """Return the events that blkparse lists, with their values.

    They are CPU, number, action, kind, device, sector, bytes, error and thread; notes have none.
    """
    listed = _listed(base, "%c %s %a %d %D %S %N %e %p")
    return Counter(tuple(words) for words in listed if words[2] != "m")


def _listed(base: Path, form: str) -> Iterator[list[str]]:
    done = subprocess.run(
        ["blkparse", "-q", "-i", base.name, "-f", f"= {form}\\n"],
        cwd=base.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=_LIMIT_S,
    )
    return (line.split()[1:] for line in done.stdout.splitlines() if line.startswith("= "))


def tools_say(base: Path) -> dict[str, list[Any]]:
    """Return the output of blktrace's other tools for a set of files.

    Returns:
        blkparse: the action, place and size of each event of a write, sorted.
        btt: how many writes it measures each stage of.
        blkrawverify: how many records of each CPU are invalid, where they are not 0.
        btrecord: how many of the requests a replay would leave out, likewise.
        iowatcher: what its graphs are about.
    """
    name = base.name

    def tool(*words: str) -> str:
        done = subprocess.run(
            words, cwd=base.parent, capture_output=True, text=True, check=True, timeout=_LIMIT_S
        )
        return done.stdout + done.stderr

    listed = tool("blkparse", "-q", "-a", "write", "-i", name, "-f", "= %a %d %S %n\\n")
    tool("blkparse", "-q", "-O", "-a", "write", "-i", name, "-d", f"{name}.writes")
    tool("blkrawverify", name)
    tool("iowatcher", "-t", name, "-o", f"{name}.svg")
    checked = base.with_name(f"{name}.verify.out").read_text()
    drawn = base.with_name(f"{name}.svg").read_text()
    replayed = re.findall(r"(\d+) pkts \(replay\)", tool("btrecord", "-v", "-d", ".", name))
    queued = sum(count for what, count in parsed(base).items() if what.startswith("Q "))
    left_out = queued - sum(map(int, replayed))
    return {
        "blkparse": sorted(line for line in listed.splitlines() if line.startswith("= ")),
        "btt": re.findall(
            r"^(\w2\w) .* (\d+)$", tool("btt", "-i", f"{name}.writes"), re.MULTILINE
        ),
        "blkrawverify": re.findall(r"valid \+ +([1-9]\d*) invalid", checked),
        "btrecord": [str(left_out)] if left_out else [],
        "iowatcher": re.findall(r">(Device IO|Throughput|IOPs|Latency|Queue Depth)", drawn),
    }


def written(found: Counter[str]) -> int:
    """Count completed writes among those that blkparse lists."""
    return sum(n for what, n in found.items() if what.startswith("C ") and "W" in what)


def events(found: Counter[str]) -> int:
    """Return all events among what blkparse lists; notes are none."""
    return sum(n for what, n in found.items() if not what.startswith("m"))


def bases(directory: Path) -> list[Path]:
    """Return names of the sets of files below a directory, as for blkparse, oldest first."""
    return sorted({path.with_suffix("").with_suffix("") for path in _first_files(directory)})


def _first_files(directory: Path) -> Iterator[Path]:
    yield from directory.rglob("*.blktrace.0")
