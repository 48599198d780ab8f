# SPDX-License-Identifier: Apache-2.0
"""Waiting for a running core, as tests of the binding do."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord._native import _core


def await_core(core: _core.Core, is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds, which is looked at with each notice of the core."""
    poll = select.poll()
    poll.register(core.notify_fd, select.POLLIN)
    while not is_so():
        assert poll.poll(10_000), "the core is silent"
        os.eventfd_read(core.notify_fd)
