# SPDX-License-Identifier: Apache-2.0
"""A library with one function, to place uprobes on."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Probed:
    """The library, loaded into this process.

    Attributes:
        path: its file.
        place: of the function, as uprobes name it.
        loaded: `loaded.probed(n)` gives n + 1.
    """

    path: Path
    place: str
    loaded: ctypes.CDLL


def build(folder: Path) -> Probed:
    """Compile and load the library."""
    source, path = folder / "probed.c", folder / "libprobed.so"
    source.write_text("int probed(int n) { return n + 1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", path, source], check=True)
    loaded = ctypes.CDLL(str(path))
    return Probed(path, f"{path}:{_file_offset(loaded):#x}", loaded)


def _file_offset(loaded: ctypes.CDLL) -> int:
    address = ctypes.cast(loaded.probed, ctypes.c_void_p).value
    assert address is not None
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, *_ = line.split()
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return address - start + int(offset, 16)
    raise AssertionError(loaded)
