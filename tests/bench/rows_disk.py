# SPDX-License-Identifier: Apache-2.0
"""The rows of the table about the native core alone, fed from rings in memory."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.bench.collectors import ROOT
from tests.bench.row import Row

if TYPE_CHECKING:
    from tests.bench.row import Settings

_BUILD: Final = ROOT / "build" / "bench-native"
_BYTES: Final = 2 << 30
_NULL_BYTES: Final = 8 << 30
_GB: Final = 1e9
_SHARE: Final = 0.9
_GB_PER_SECOND: Final = 2.0
_NO_FIO: Final = "disk: fio is not installed, nothing to compare with: apt-get install fio"


def _feeder() -> Path:
    """Build the program that feeds a core, as the tests of the core are built."""
    for words in (
        ("-S", ROOT / "tests/native", "-B", _BUILD, "-G", "Ninja"),
        ("--build", _BUILD, "--target", "feed"),
    ):
        subprocess.run(["cmake", *words], check=True, stdout=subprocess.DEVNULL)
    return _BUILD / "feed"


def _feed(feeder: Path, file: Path, size_bytes: int) -> dict[str, Any]:
    done = subprocess.run(
        [feeder, file, str(size_bytes)], check=True, capture_output=True, text=True
    )
    return dict(json.loads(done.stdout))


def _fio(file: Path) -> float:
    """Return the GB a second that fio writes, direct, 1 MiB at a time, four in flight."""
    done = subprocess.run(
        [
            *("fio", "--name=write", "--rw=write", "--direct=1", "--ioengine=libaio"),
            *("--bs=1M", "--iodepth=4", f"--size={_BYTES}", f"--filename={file}"),
            "--output-format=json",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(json.loads(done.stdout)["jobs"][0]["write"]["bw_bytes"]) / _GB


def _rates(settings: Settings, feeder: Path) -> tuple[list[float], list[float]]:
    """Return GB a second of the core and of fio, round after round, each into a new file."""
    ours, peer = [], []
    with tempfile.TemporaryDirectory(dir=settings.directory.parent) as name:
        for number in range(settings.repeats):
            mine, other = (Path(name) / f"{who}-{number}" for who in ("core", "fio"))
            fed = _feed(feeder, mine, _BYTES)
            mine.unlink()
            ours.append(fed["bytes"] / fed["seconds"] / _GB)
            if shutil.which("fio"):
                peer.append(_fio(other))
                other.unlink()
    return ours, peer


def _figures(rates: list[float]) -> str:
    if not rates:
        return "-"
    return f"{statistics.median(rates):.2f} GB/s ({min(rates):.2f}-{max(rates):.2f})"


def disk(settings: Settings) -> list[Row]:
    """Feed a core from memory: its writes beside fio's, and its drain without a disk."""
    feeder = _feeder()
    ours, peer = _rates(settings, feeder)
    times = statistics.median(peer) / statistics.median(ours) if peer else math.nan
    null = _feed(feeder, Path("/dev/null"), _NULL_BYTES)
    drain, writer = null["drain_cpu_seconds"], null["writer_cpu_seconds"]
    each = null["bytes"] / _GB
    return [
        Row(
            "core fed from memory, to the disk: fio's rate, of ours",
            _figures(ours),
            _figures(peer),
            times,
            1 / _SHARE,
            "x",
            () if peer else (_NO_FIO,),
        ),
        Row(
            "core fed from memory, to /dev/null: CPU of all its threads",
            f"{each / (drain + writer):.1f} GB/s per core, {each / drain:.1f} of the drain's",
            "-",
            (drain + writer) / each,
            1 / _GB_PER_SECOND,
            "s/GB",
        ),
    ]
