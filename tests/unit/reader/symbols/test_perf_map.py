# SPDX-License-Identifier: Apache-2.0
"""Names of code that a process made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from collectord.reader.symbols import perf_map

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def _write(
    root: Path, name: str, text: bytes = b"1000 20 work\n0x2000 0x10 a b;c\nnothing\n"
) -> Path:
    path = root / "tmp" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return path


def test_functions_by_address(tmp_path: Path) -> None:
    """With the name to the end of the line; other lines are ignored."""
    _write(tmp_path, "perf-77.map")
    found = perf_map.of_process(77, tmp_path)
    told = [found.find(at) for at in (0xFFF, 0x1000, 0x101F, 0x1020, 0x2005)]
    assert told == [None, "work", "work", None, "a b;c"]


def test_a_living_process_is_asked_in_its_own_root(tmp_path: Path) -> None:
    """Where it has another number, and another /tmp."""
    process = tmp_path / "proc/77"
    process.mkdir(parents=True)
    (process / "status").write_text("Name:\tx\nNSpid:\t77\t5\n")
    _write(process / "root", "perf-5.map", b"1000 20 inside\n")
    _write(tmp_path, "perf-77.map")
    assert perf_map.of_process(77, tmp_path).find(0x1000) == "inside"


def test_somebody_elses_map_is_no_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may write such a file into /tmp."""
    path = _write(tmp_path, "perf-77.map")
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert perf_map.of_process(77, tmp_path).find(0x1000) is None


def test_what_is_no_file_and_what_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO is not waited for."""
    (tmp_path / "tmp").mkdir()
    os.mkfifo(tmp_path / "tmp/perf-77.map")
    assert perf_map.of_process(77, tmp_path).find(0x1000) is None
    monkeypatch.setattr(perf_map, "MAP_MAX_BYTES", 8)
    _write(tmp_path, "perf-78.map")
    assert perf_map.of_process(78, tmp_path).find(0x1000) is None
