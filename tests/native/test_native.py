# SPDX-License-Identifier: Apache-2.0
"""The C core's own tests, under the compiler's warnings and three sanitizers, and the fuzzers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

_HERE: Final = Path(__file__).resolve().parent
# Kept between runs: an unchanged core is not built again.
_BUILD: Final = _HERE.parent.parent / "build" / "native"
_BUILDS: Final = {
    "gcc": ("-DCMAKE_C_COMPILER=gcc",),
    # This one builds the fuzzers, too, which are made of the same core.
    "address": ("-DCMAKE_C_COMPILER=clang", "-DCOLLECTORD_FUZZ=ON"),
    "thread": ("-DCMAKE_C_COMPILER=clang", "-DCOLLECTORD_SANITIZE=thread"),
}
_FUZZ_TARGETS: Final = len([*_HERE.glob("fuzz_*.c")])
_BUILD_TIMEOUT_S: Final = 300
_TEST_TIMEOUT_S: Final = 120

pytestmark = pytest.mark.timeout(1200)


def _run(command: list[str], timeout_s: float) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"


@pytest.mark.parametrize("build", _BUILDS)
def test_core_passes_its_own_tests(build: str) -> None:
    """The core builds without a warning and each of its C tests passes in this build."""
    directory = str(_BUILD / build)
    _run(["cmake", "-S", str(_HERE), "-B", directory, "-G", "Ninja", *_BUILDS[build]], 60)
    _run(["cmake", "--build", directory], _BUILD_TIMEOUT_S)
    each = ["--output-on-failure", "--parallel", "2", "--timeout", str(_TEST_TIMEOUT_S)]
    _run(["ctest", "--test-dir", directory, *each], 600)


def test_fuzzers_find_nothing() -> None:
    """No input that libFuzzer makes, seen by the address sanitizer, fails a parser of the core."""
    seconds = int(os.environ.get("FUZZ_SECONDS", "60"))
    _run(
        [str(_HERE / "fuzz.sh"), str(_BUILD / "address")],
        _BUILD_TIMEOUT_S + _FUZZ_TARGETS * (seconds + 30),
    )
