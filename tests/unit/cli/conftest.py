# SPDX-License-Identifier: Apache-2.0
"""The log is configured anew by most verbs, for the whole process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Put the configuration back, which is process-wide."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
