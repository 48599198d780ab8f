# SPDX-License-Identifier: Apache-2.0
"""The licence of a BPF program, in the words that the kernel compares with."""

from __future__ import annotations

from typing import Final

# license_is_gpl_compatible() of include/linux/license.h.
_KERNEL_LICENSES: Final = (
    "GPL",
    "GPL v2",
    "GPL and additional rights",
    "Dual BSD/GPL",
    "Dual MIT/GPL",
    "Dual MPL/GPL",
)
_GPL: Final = frozenset({"GPL-2.0", "GPL-2.0-only", "GPL-2.0-or-later", "GPL-2.0+"})


def kernel_license(text: str) -> str:
    """Return a licence in the kernel's words; "" if GPL-only helpers are closed to it.

    Args:
        text: the kernel's own spelling, or SPDX licences with OR between them.
    """
    if text in _KERNEL_LICENSES:
        return text
    return "GPL" if _GPL & {part.strip(" ()") for part in text.split(" OR ")} else ""
