# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all verbs: statements that are asked, and the log of the whole process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import structlog

from collectord.cli import fleet
from tests.support.asking import asking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.asking import Ask


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return what gives the rows of a statement, of which nothing is missing."""
    return asking(capsys)


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Put the configuration back, which most verbs make anew for the whole process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def run(store: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return what runs `fleet` over a module's store: {status, output, complaints}."""

    def ran(*words: str) -> tuple[int, str, str]:
        status = fleet.run([*words, "--store", str(store)])
        told = capsys.readouterr()
        return status, told.out, told.err

    return ran
