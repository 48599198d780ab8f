# SPDX-License-Identifier: Apache-2.0
"""Tests that need the machine for themselves, and tests that share it, wait for each other."""

from __future__ import annotations

import fcntl
import threading
from typing import TYPE_CHECKING

import pytest

from tests.support import cpus, sharing
from tests.support.daemons import wait_for

if TYPE_CHECKING:
    from pathlib import Path

NOW_OR_NEVER = fcntl.LOCK_NB


@pytest.fixture(autouse=True)
def switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide the switch of a CPU that nobody has, and locks of this test's own."""
    path = tmp_path / "online"
    entrance = tmp_path / "entrance"
    entrance.touch()
    monkeypatch.setattr(sharing, "_MACHINE", tmp_path)
    monkeypatch.setattr(sharing, "_ENTRANCE", entrance)
    monkeypatch.setattr(cpus, "switch_of", lambda _: path)
    return path


def is_free(operation: int) -> bool:
    """Return whether the machine can be had now."""
    try:
        with sharing._held(operation | NOW_OR_NEVER):
            return True
    except BlockingIOError:
        return False


def test_several_share_and_one_alone_waits_for_all() -> None:
    """Several such tests may run at once."""
    with sharing.shared(), sharing.shared():
        assert is_free(fcntl.LOCK_SH)
        assert not is_free(fcntl.LOCK_EX)
    assert is_free(fcntl.LOCK_EX)


def test_nobody_shares_what_one_has_alone() -> None:
    """It is free again with the block's end."""
    with sharing.alone():
        assert not is_free(fcntl.LOCK_SH)
        assert not is_free(fcntl.LOCK_EX)
    assert is_free(fcntl.LOCK_SH)


def test_no_cpu_goes_while_a_test_needs_it(switch: Path) -> None:
    """It comes back with the block's end."""
    with cpus.offline(1):
        assert switch.read_text() == "0"
        assert not is_free(fcntl.LOCK_SH)
    assert switch.read_text() == "1"
    assert is_free(fcntl.LOCK_SH)


def test_who_waits_for_it_alone_is_next() -> None:
    """Those who share come one after the other, and would leave it no instant."""
    had = threading.Event()

    def take() -> None:
        with sharing.alone():
            had.set()

    waiting = threading.Thread(target=take)
    with sharing.shared():
        waiting.start()
        wait_for(lambda: not is_free(fcntl.LOCK_SH), "one who waits for it alone")
        assert not had.is_set()
    waiting.join()
    assert had.is_set()


def test_tests_that_follow_each_other_wait_once() -> None:
    """The second one does not give way to who came between."""
    machine = sharing.Alone()
    machine.take()
    machine.take()
    assert not is_free(fcntl.LOCK_SH)
    machine.give_back()
    assert is_free(fcntl.LOCK_EX)
    machine.give_back()
