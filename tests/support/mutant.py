# SPDX-License-Identifier: Apache-2.0
"""A core that loses a record, to see that the ledger misses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import cython_cmake

_ROOT: Final = Path(__file__).resolve().parents[2]


def build(directory: Path) -> Path:
    """Build the core so that it loses the last sample of the first span that has any.

    What `directory` holds of an earlier build is used again.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    options = {
        "CMAKE_BUILD_TYPE": "RelWithDebInfo",
        "CMAKE_MODULE_PATH": Path(cython_cmake.__file__).parent / "cmake",
        "COLLECTORD_MUTATION": "ON",
        "Python_EXECUTABLE": sys.executable,
    }
    words = [f"-D{key}={value}" for key, value in options.items()]
    native = _ROOT / "collectord/_native"
    commands: tuple[list[str | Path], ...] = (
        ["cmake", "-S", native, "-B", directory, "-G", "Ninja", *words],
        ["cmake", "--build", directory, "--target", "_core"],
    )
    for command in commands:
        done = subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    (core,) = directory.glob("_core*.so")
    return core
