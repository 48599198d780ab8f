# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of engines."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> None:
    """Look for no leaks: chDB and Spark keep threads and a process until this one ends."""
