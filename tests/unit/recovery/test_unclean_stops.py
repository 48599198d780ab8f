# SPDX-License-Identifier: Apache-2.0
"""The count of unclean stops, over processes and over damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.recovery.unclean_stops import count_unclean_stops

if TYPE_CHECKING:
    from pathlib import Path


def test_unclean_stops_are_counted_over_processes(tmp_path: Path) -> None:
    """Each process finds what those before it counted, and a clean start adds nothing."""
    assert count_unclean_stops(tmp_path, add=False) == 0
    assert not list(tmp_path.iterdir())
    assert count_unclean_stops(tmp_path, add=True) == 1
    assert count_unclean_stops(tmp_path, add=True) == 2
    assert count_unclean_stops(tmp_path, add=False) == 2


def test_damaged_count_begins_anew(tmp_path: Path) -> None:
    """A count that is not a number costs nothing but itself."""
    (tmp_path / ".unclean_stops").write_text("many\n")
    assert count_unclean_stops(tmp_path, add=True) == 1
