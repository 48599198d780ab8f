# SPDX-License-Identifier: Apache-2.0
"""Pauses with one cause and with several, of a session whose source only counts its calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collectord.errors import KernelError
from collectord.model import PAUSES, GapCause, ScopeKind
from collectord.session.pause import Pause, Pauses

SHED, REQUEST = PAUSES


class Rig:
    """A pause, the events that it disables, and the notes that it makes."""

    def __init__(self) -> None:
        self.enabled = True
        self.refuses = False
        plan: Any = SimpleNamespace(
            rings=(), freezes=False, scope=SimpleNamespace(kind=ScopeKind.SYSTEM)
        )
        abilities: Any = SimpleNamespace(pausable=(self,))
        self.pauses = Pauses()
        self.added: list[GapCause] = []
        covered: Any = SimpleNamespace(add_gap=lambda cause, _ns: self.added.append(cause))
        self.pause = Pause(plan, abilities, self.pauses, covered)

    def disable_events(self) -> None:
        """Stop the events, unless the test has them refuse."""
        self._set(enabled=False)

    def enable(self) -> None:
        """Let the events go on, unless the test has them refuse."""
        self._set(enabled=True)

    def _set(self, *, enabled: bool) -> None:
        if self.refuses:
            raise KernelError("no", errno=1)
        self.enabled = enabled

    def windows(self) -> list[tuple[GapCause, bool]]:
        """Return the cause of each noted pause, and whether it is over."""
        noted = self.pauses.to_json(0)
        return [(one["cause"], one["until_ns"] is not None) for one in noted]


@pytest.mark.parametrize("order", [PAUSES, PAUSES[::-1]])
def test_the_last_cause_ends_a_pause(order: tuple[GapCause, GapCause]) -> None:
    """Each is counted as long as it is the first one; the events stay disabled between them."""
    rig = Rig()
    first, second = order
    rig.pause.begin(first)
    rig.pause.begin(second)
    rig.pause.begin(second)
    assert (rig.enabled, rig.pause.causes, rig.windows()) == (False, order, [(first, False)])
    rig.pause.end(first)
    assert (rig.enabled, rig.pause.causes) == (False, (second,))
    assert rig.windows() == [(first, True), (second, False)]
    rig.pause.end(first)
    assert rig.pause.lasts
    rig.pause.end(second)
    assert (rig.enabled, rig.pause.lasts) == (True, False)
    assert rig.windows() == [(first, True), (second, True)]
    assert rig.added == [first, second]


def test_the_second_cause_may_end_first() -> None:
    """The time is that of the first, and nothing is noted of the second."""
    rig = Rig()
    rig.pause.begin(SHED)
    rig.pause.begin(REQUEST)
    rig.pause.end(REQUEST)
    assert (rig.enabled, rig.pause.causes, rig.windows()) == (False, (SHED,), [(SHED, False)])
    rig.pause.poll()
    rig.pause.close()
    assert (rig.enabled, rig.pause.causes, rig.added) == (False, (), [SHED, SHED])


def test_a_pause_that_the_kernel_refuses_has_no_cause() -> None:
    """The session goes on, or stays paused."""
    rig = Rig()
    rig.refuses = True
    with pytest.raises(KernelError):
        rig.pause.begin(REQUEST)
    assert (rig.enabled, rig.pause.lasts) == (True, False)
    rig.refuses = False
    rig.pause.begin(REQUEST)
    rig.refuses = True
    with pytest.raises(KernelError):
        rig.pause.end(REQUEST)
    assert (rig.enabled, rig.pause.causes) == (False, (REQUEST,))
