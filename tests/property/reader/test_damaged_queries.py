# SPDX-License-Identifier: Apache-2.0
"""Damaged files in `query`, `events`, `flame` and `export`: what is sound is shown."""

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
def test_any_damage(tmp_path: Path) -> None:
    """No change of bytes ends in a traceback, a hang, much memory or fewer rows than are sound."""
    templates = tmp_path / "templates"
    make_templates(templates)
    check_cases("tests.support.asked_damage", templates, tmp_path, examples(800))
