# SPDX-License-Identifier: Apache-2.0
"""Segments with any damage: nothing dies, hangs, grows, or touches what is sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.damage_runs import check_cases
from tests.support.damage_templates import make_templates
from tests.support.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1800)
def test_damage(tmp_path: Path) -> None:
    """Each file fails alone; limits of time and memory hold for each case."""
    templates = tmp_path / "templates"
    make_templates(templates)
    check_cases("tests.support.damage", templates, tmp_path, examples(4_000))
