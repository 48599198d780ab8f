# SPDX-License-Identifier: Apache-2.0
"""The known name nearest to a misspelt one."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint such as `did you mean "page-faults"?`, or "" if nothing comes near."""
    lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.6)
    return f'did you mean "{lower[found[0]]}"?' if found else ""
