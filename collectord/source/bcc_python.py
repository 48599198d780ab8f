# SPDX-License-Identifier: Apache-2.0
"""The interpreter that has bcc: a virtual environment's, or the system's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.source import bcc_child

if TYPE_CHECKING:
    from collections.abc import Sequence

# Places to find bcc: a virtual environment that sees the system's packages, then the system.
PYTHONS: Final = (sys.executable, "/usr/bin/python3")
_FIND_TIMEOUT_S: Final = 10.0
_FIND: Final = """
import importlib.util
spec = importlib.util.find_spec("bcc")
print(*(spec.submodule_search_locations or ()) if spec else (), sep="\\n")
"""
_VERSION: Final = re.compile(r"""^__version__\s*=\s*["']([^"']+)""", re.MULTILINE)
# Files of bcc; the PyPI package of that name has neither.
_LIBBCC: Final = "libbcc.py"
_VERSION_FILE: Final = "version.py"


def find_python(
    candidates: Sequence[str] = PYTHONS,
) -> tuple[str, str]:
    """Return the first interpreter that has bcc and its bcc's version, or "" and the reason.

    No code of bcc is run.
    """
    problems = []
    for python in dict.fromkeys(candidates):
        version, problem = _bcc_of(python)
        if version:
            return python, version
        problems.append(f"{python}: {problem}")
    return "", "; ".join(problems)


def _bcc_of(python: str) -> tuple[str, str]:
    """Return the version of an interpreter's bcc, or "" and the reason why it has none."""
    try:
        found = subprocess.run(  # noqa: S603 - ourselves, or the distribution's
            [python, "-I", "-c", _FIND],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_FIND_TIMEOUT_S,
            check=True,
            cwd="/",
            env=bcc_child.ENVIRONMENT,
        )
    except OSError as error:
        return "", error.strerror or str(error)
    except subprocess.SubprocessError:
        return "", "it does not run"
    folders = [Path(os.fsdecode(line)) for line in found.stdout.splitlines() if line]
    if not folders:
        return "", "it has no bcc"
    for folder in folders:
        if (folder / _LIBBCC).is_file():
            try:
                version = _VERSION.search((folder / _VERSION_FILE).read_text())
            except OSError:
                version = None
            return version[1] if version else "unknown", ""
    return "", f"{folders[0]} is another bcc, not that of the BPF Compiler Collection"
