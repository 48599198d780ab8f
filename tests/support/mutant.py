# SPDX-License-Identifier: Apache-2.0
"""A core that loses a record, to see that the ledger misses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cython_cmake

from tests.support.recording import result_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT: Final = Path(__file__).resolve().parents[2]
# Whatever an installed or editable package would give, the core is this one.
_LAUNCH: Final = """
import importlib.util, sys
name = "collectord._native._core"
spec = importlib.util.spec_from_file_location(name, sys.argv.pop(1))
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
from collectord.__main__ import main
sys.exit(main())
"""


def build(directory: Path) -> Path:
    """Build the core so that it loses the last sample of the first span that has any.

    It is built in `directory`, unless it is there.
    """
    for core in directory.glob("_core*.so"):
        return core
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    options = {
        "CMAKE_BUILD_TYPE": "Debug",
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


def record(
    core: Path, directory: Path, load: Sequence[str | Path], words: Sequence[str | Path]
) -> dict[str, Any]:
    """Record a load with this core into `directory`/out; return the session."""
    program = (sys.executable, "-c", _LAUNCH, core, "record", *words)
    done = subprocess.run(
        [*program, "--output-dir", directory / "out", "--json", "--", *load],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return result_of(done.stdout)
