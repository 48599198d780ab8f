# SPDX-License-Identifier: Apache-2.0
"""A user without privilege, whom the test's own process can be for a while."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - loaded at a first connection, when Python may be out of reach
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SOMEBODY: Final = 65_534


@contextmanager
def somebody(*groups: int) -> Iterator[None]:
    """Be a user without privilege, with these supplementary groups, for a block."""
    before = os.getgroups(), os.getegid()
    os.setgroups(groups)
    os.setegid(SOMEBODY)
    os.seteuid(SOMEBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(before[1])
        os.setgroups(before[0])
