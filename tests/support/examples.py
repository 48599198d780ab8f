# SPDX-License-Identifier: Apache-2.0
"""How many cases a test makes up, in one place.

COLLECTORD_EXAMPLES is a share of what a test asks for: `make check` looks at few, for an answer
within a minute; CI and `make test` at all.
"""

from __future__ import annotations

import os
from typing import Final

SHARE: Final = float(os.environ.get("COLLECTORD_EXAMPLES", "1"))
_LEAST: Final = 3


def examples(count: int) -> int:
    """How many of `count` cases this run looks at."""
    return min(count, max(_LEAST, round(count * SHARE)))
