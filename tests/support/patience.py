# SPDX-License-Identifier: Apache-2.0
"""The time limit after which a test takes slowness for a hang, in one place.

An emulated machine is slow. COLLECTORD_PATIENCE is the factor for all limits there; no test
asserts a time, so nothing else depends on it.
"""

from __future__ import annotations

import os
from typing import Final

FACTOR: Final = float(os.environ.get("COLLECTORD_PATIENCE", "1"))


def patient(seconds: float) -> float:
    """Return this machine's limit for an action of up to `seconds` on real processors."""
    return seconds * FACTOR
