# SPDX-License-Identifier: Apache-2.0
"""Users and groups, by name or by number."""

from __future__ import annotations

import grp
import pwd

from collectord.errors import UsageError
from collectord.text.nearest import did_you_mean


def user_id(text: str) -> int:
    """Return a user's id. Raises UsageError where nobody has the name."""
    try:
        return int(text) if text.isascii() and text.isdigit() else pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError) as error:  # a number of thousands of digits
        known = (entry.pw_name for entry in pwd.getpwall())
        raise UsageError(f"no user {text!r}", hint=did_you_mean(text, known)) from error


def group_id(text: str) -> int:
    """Return a group's id. Raises UsageError if no group has the name."""
    try:
        return int(text) if text.isascii() and text.isdigit() else grp.getgrnam(text).gr_gid
    except (KeyError, ValueError) as error:  # a number of thousands of digits
        known = (entry.gr_name for entry in grp.getgrall())
        raise UsageError(f"no group {text!r}", hint=did_you_mean(text, known)) from error
