# SPDX-License-Identifier: Apache-2.0
"""Names of Linux capabilities, and those that this process has in effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.folders.trust import effective_mask

if TYPE_CHECKING:
    from pathlib import Path

# include/uapi/linux/capability.h, by bit.
_NAMES: Final = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID"),
    *("SETUID", "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST"),
    *("NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO"),
    *("SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE"),
    *("SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE"),
    *("AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM"),
    *("BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE"),
)


def decode(mask: int) -> frozenset[str]:
    """Return the names of the set bits; bits without a known name are left out."""
    return frozenset(f"CAP_{name}" for bit, name in enumerate(_NAMES) if mask >> bit & 1)


def effective_capabilities(proc: Path) -> frozenset[str]:
    """Return the effective set; empty if it cannot be read."""
    return decode(effective_mask(proc))
