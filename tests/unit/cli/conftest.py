# SPDX-License-Identifier: Apache-2.0
"""The fixture of tests that configure the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Configuration is process-wide: put it back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
