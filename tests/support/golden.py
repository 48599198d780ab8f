# SPDX-License-Identifier: Apache-2.0
"""Formats and pages that a kernel gave, as they were captured from it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

GOLDEN: Final = Path(__file__).resolve().parent.parent / "golden" / "kernel-6.18"
