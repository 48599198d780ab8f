# SPDX-License-Identifier: Apache-2.0
"""Tests that take CPUs offline, and tests that need all of them, wait for each other."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

import pytest

from tests.support import cpus

if TYPE_CHECKING:
    from pathlib import Path

NOW_OR_NEVER = fcntl.LOCK_NB


@pytest.fixture(autouse=True)
def switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide the switch of a CPU that nobody has, and a lock of this test's own."""
    path = tmp_path / "online"
    monkeypatch.setattr(cpus, "_LOCK", tmp_path)
    monkeypatch.setattr(cpus, "switch_of", lambda _: path)
    return path


def test_no_cpu_goes_while_a_test_needs_it() -> None:
    """Several such tests may run at once."""
    with (
        cpus.all_stay(),
        cpus.all_stay(),
        pytest.raises(BlockingIOError),
        cpus._locked(fcntl.LOCK_EX | NOW_OR_NEVER),
    ):
        pass
    with cpus._locked(fcntl.LOCK_EX | NOW_OR_NEVER):
        pass


def test_no_test_that_needs_all_begins_while_one_is_offline(switch: Path) -> None:
    """It comes back with the block's end, and the lock is free again."""
    with cpus.offline(1):
        assert switch.read_text() == "0"
        with pytest.raises(BlockingIOError), cpus._locked(fcntl.LOCK_SH | NOW_OR_NEVER):
            pass
    assert switch.read_text() == "1"
    with cpus._locked(fcntl.LOCK_SH | NOW_OR_NEVER):
        pass
