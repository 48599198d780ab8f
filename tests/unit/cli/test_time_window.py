# SPDX-License-Identifier: Apache-2.0
"""The time between --since and --until, of all verbs that have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectord import cli
from collectord.errors import UsageError
from collectord.kernel.linux import LinuxKernel

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "words",
    [
        ("answer", "cpu-share"),
        ("events",),
        ("export",),
        ("flame",),
        ("ledger",),
        ("query", "SELECT 1"),
        ("why", "io"),
    ],
    ids=lambda words: words[0],
)
def test_a_time_that_ends_before_it_begins_is_refused(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is taken for a mistake, and not for a time in which nothing happened."""
    status = cli.main(LinuxKernel, [*words, str(tmp_path), "--since", "-1m", "--until", "-2m"])
    assert status == UsageError.exit_code
    assert "--since must be before --until" in capsys.readouterr().err
