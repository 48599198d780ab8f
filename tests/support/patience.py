# SPDX-License-Identifier: Apache-2.0
"""How long a test waits before it takes slowness for a hang, in one place.

An emulated machine is slow. COLLECTORD_PATIENCE is how many times as long everything may take
there; no test asserts a time, so nothing else depends on it.
"""

from __future__ import annotations

import os
from typing import Final

FACTOR: Final = float(os.environ.get("COLLECTORD_PATIENCE", "1"))


def patient(seconds: float) -> float:
    """How long this machine gets for what may take `seconds` on real processors."""
    return seconds * FACTOR
