# SPDX-License-Identifier: Apache-2.0
"""Kernel lockdown: how far the running kernel keeps even root away from itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# From this level on tracefs is empty, or its files cannot be opened (LOCKDOWN_TRACEFS).
CONFIDENTIALITY: Final = "confidentiality"
# At these nobody opens a file of debugfs that could change something (LOCKDOWN_DEBUGFS).
CLOSES_DEBUGFS: Final = frozenset({"integrity", CONFIDENTIALITY})
# Where securityfs does not tell: any of the levels, none of them included.
UNKNOWN: Final = "unknown"
INTEGRITY: Final = "integrity"
# Where securityfs does not tell, and tracefs is open all the same.
BELOW_CONFIDENTIALITY: Final = "integrity or none"
NEED: Final = "a kernel without lockdown"
REMEDY: Final = "boot with lockdown=integrity or none; no capability opens it"
LOOK: Final = "to know it, as root: mount -t securityfs securityfs /sys/kernel/security"


def read_lockdown(sys: Path) -> str:
    """The chosen one of `none [integrity] confidentiality`, `UNKNOWN` where it cannot be read.

    A kernel that was built without lockdown has `none`: its securityfs is there without the file.

    Args:
        sys: root of sysfs.
    """
    folder = sys / "kernel/security"
    try:
        words = (folder / "lockdown").read_text().split()
    except FileNotFoundError:
        return "none" if (folder / "lsm").exists() else UNKNOWN
    except OSError:
        return UNKNOWN
    return next((word.strip("[]") for word in words if word.startswith("[")), UNKNOWN)


def deduce(level: str, *, tracefs_open: bool, debugfs_closed: bool) -> str:
    """The level by what it closes, where securityfs does not tell it.

    Args:
        level: as it was read.
        tracefs_open: an instance could be made.
        debugfs_closed: a file there could not be opened, for no other reason than lockdown.
    """
    if level != UNKNOWN or not tracefs_open:
        return level
    return INTEGRITY if debugfs_closed else BELOW_CONFIDENTIALITY
