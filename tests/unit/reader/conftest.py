# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of readers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """A stack that closes all that the test opens."""
    with ExitStack() as made:
        yield made
