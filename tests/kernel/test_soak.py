# SPDX-License-Identifier: Apache-2.0
"""The first half minute of `make soak`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.soak.soak import soak

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.generator import Generator

SECONDS: Final = 30
# All of it is warm-up: the arenas of the allocator fill for some minutes.
GROWTH_BYTES: Final = 8 << 20


@pytest.mark.usefixtures("tracefs")
def test_nothing_grows(tmp_path: Path, generator: Generator) -> None:
    """Memory, descriptors, mappings and the disk are flat under load, rotation and hotplug.

    At the end each record that the ledgers of the kept segments have is a row of a query.
    """
    soaked = soak(tmp_path, generator, SECONDS)
    assert soaked.problems(GROWTH_BYTES) == [], soaked.looks
    assert soaked.looks[-1].produced > 0
