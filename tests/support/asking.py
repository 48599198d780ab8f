# SPDX-License-Identifier: Apache-2.0
"""Statements of `collectord query` of whose results nothing is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from collectord.cli import query

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

Rows = list[dict[str, Any]]
# The rows of a statement, by the statement and the other words of the command.
Ask = Callable[..., Rows]


def asking(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return what carries out a statement, and asserts that nothing is said on stderr."""

    def ask(statement: str, *words: str | Path) -> Rows:
        status = query.run(["--json", statement, *map(str, words)])
        told = capsys.readouterr()
        assert (status, told.err) == (0, "")
        return [json.loads(line) for line in told.out.splitlines()]

    return ask
