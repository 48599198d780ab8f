# SPDX-License-Identifier: Apache-2.0
"""The number of cases that a test generates, in one place.

COLLECTORD_EXAMPLES is a share of the number that a test asks for: `make check` runs few, to end
within a minute; CI and `make test` run all.
"""

from __future__ import annotations

import os
from typing import Final

SHARE: Final = float(os.environ.get("COLLECTORD_EXAMPLES", "1"))
_LEAST: Final = 3


def examples(count: int) -> int:
    """Return how many of `count` cases this run tries."""
    return min(count, max(_LEAST, round(count * SHARE)))
