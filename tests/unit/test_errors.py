# SPDX-License-Identifier: Apache-2.0
"""The command that installs extras, in the hints of errors, fits where the program runs."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

import pytest

from collectord.errors import install_command

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("extras", "named"), [(("fleet",), "fleet"), (("query", "symbols"), "query,symbols")]
)
def test_with_pip(extras: tuple[str, ...], named: str) -> None:
    """Pip of the environment installs into it, as in that of the tests."""
    assert install_command(*extras) == f"python3 -m pip install 'collectord[{named}]'"


def test_without_pip_the_environment_is_named(tmp_path: Path) -> None:
    """Those of the Debian package and of `make install` are such ones."""
    root = tmp_path / "environment"
    venv.create(root, with_pip=False)
    script = "from collectord.errors import install_command as made; print(made('query'))"
    done = subprocess.run(
        [root / "bin/python", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"python3 -m pip --python {root} install 'collectord[query]'\n"
    manual = (ROOT / "docs/getting-started.md").read_text()
    for place in ("/usr/lib/collectord", "/opt/collectord"):
        assert done.stdout.strip().replace(str(root), place) in manual
