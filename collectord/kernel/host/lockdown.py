# SPDX-License-Identifier: Apache-2.0
"""Kernel lockdown: how far the running kernel restricts even root."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# From this level on tracefs is empty, or its files cannot be opened (LOCKDOWN_TRACEFS).
CONFIDENTIALITY: Final = "confidentiality"
# At these levels nobody opens a file of debugfs that could change something (LOCKDOWN_DEBUGFS).
CLOSES_DEBUGFS: Final = frozenset({"integrity", CONFIDENTIALITY})
# securityfs does not tell: any of the levels, none of them included.
UNKNOWN: Final = "unknown"
INTEGRITY: Final = "integrity"
# securityfs does not tell, but tracefs is open.
BELOW_CONFIDENTIALITY: Final = "integrity or none"
NEED: Final = "a kernel without lockdown"
REMEDY: Final = "boot with lockdown=integrity or none; no capability opens it"
LOOK: Final = "to see it, as root: mount -t securityfs securityfs /sys/kernel/security"


def read_lockdown(sys: Path) -> str:
    """Return the chosen one of `none [integrity] confidentiality`, `UNKNOWN` if unreadable.

    A kernel that was built without lockdown has `none`: its securityfs exists without the file.

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
    """Deduce the level from what it closes, where securityfs does not tell it.

    Args:
        level: the level as it was read.
        tracefs_open: an instance could be made.
        debugfs_closed: a file there could not be opened, for no other reason than lockdown.
    """
    if level != UNKNOWN or not tracefs_open:
        return level
    return INTEGRITY if debugfs_closed else BELOW_CONFIDENTIALITY
