# SPDX-License-Identifier: Apache-2.0
"""Kernel lockdown: how far the running kernel keeps even root away from itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# From this level on tracefs is empty, or its files cannot be opened (LOCKDOWN_TRACEFS).
CONFIDENTIALITY: Final = "confidentiality"
REMEDY: Final = "boot with lockdown=integrity or none; no capability opens it"


def read_lockdown(sys: Path) -> str:
    """The chosen one of `none [integrity] confidentiality`, "" without lockdown.

    Args:
        sys: root of sysfs.
    """
    try:
        words = (sys / "kernel/security/lockdown").read_text().split()
    except OSError:
        return ""
    return next((word.strip("[]") for word in words if word.startswith("[")), "")
