# SPDX-License-Identifier: Apache-2.0
"""/proc/kallsyms: the kernel's list of its symbols, which may hide their addresses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# Lines of functions, and of those of modules.
FUNCTIONS: Final = re.compile(rb"^[0-9a-f]+ [tTwW] .*\n", re.MULTILINE)
OF_MODULES: Final = re.compile(rb"^[0-9a-f]+ [tTwW] .*\t\[.*\n", re.MULTILINE)
_ZERO: Final = re.compile(rb"0+ ")


def are_hidden(functions: Sequence[bytes]) -> bool:
    """Whether addresses read as 0: without CAP_SYSLOG, or with kernel.kptr_restrict at 2.

    Other symbols may be at 0 even so: Linux 6.12 on x86 begins with its per-CPU variables, there.

    Args:
        functions: lines of functions, from the beginning of the list.
    """
    return bool(functions) and _ZERO.match(functions[0]) is not None
