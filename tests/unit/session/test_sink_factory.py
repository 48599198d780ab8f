# SPDX-License-Identifier: Apache-2.0
"""A session's files describe the process that wrote them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from collectord.session.sink_factory import command_line

if TYPE_CHECKING:
    import pytest


def test_long_command_lines_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file has the command line: one of megabytes ends with three dots."""
    monkeypatch.setattr(sys, "argv", ["collectord", "record", "x" * 9000, "y" * 9000, "z"])
    assert command_line() == ("collectord", "record", "x" * 9000, "...")
