# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the kernel lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectord.kernel.linux import LinuxKernel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def btf(require: Callable[[str], None]) -> None:
    """Skip the test if the kernel has no types of its own."""
    require("BTF")


@pytest.fixture
def kernel(tracefs: Path) -> LinuxKernel:
    """Return the running kernel, with tracefs mounted."""
    assert tracefs.is_dir()
    return LinuxKernel()
