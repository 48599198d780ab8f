# SPDX-License-Identifier: Apache-2.0
"""The command by which a user installs what some verbs need and an installation does not have."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def install_command(*extras: str) -> str:
    """Return the command that installs extras of this program where it runs.

    An environment of a package or of `make install` has no pip: that of the host, of any version
    since 22.3, installs into it.
    """
    where = "" if find_spec("pip") is not None else f"--python {sys.prefix} "
    return f"python3 -m pip {where}install 'collectord[{','.join(extras)}]'"
