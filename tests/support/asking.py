# SPDX-License-Identifier: Apache-2.0
"""Verbs that show records, of whose results nothing is missing: `query` and `events`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from collectord.cli import events, query

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


def shown(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[str]:
    """Return the lines of `events WORDS`, which succeeds and complains of nothing."""
    assert events.run(list(map(str, words))) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def objects(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Rows:
    """Return the objects of `events --json WORDS`, one a line."""
    return [json.loads(line) for line in shown(capsys, "--json", *words)]
