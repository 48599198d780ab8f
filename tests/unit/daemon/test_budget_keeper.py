# SPDX-License-Identifier: Apache-2.0
"""Which sessions the budget pauses, when, and when they come back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from collectord.daemon.budget_keeper import BudgetKeeper
from collectord.errors import KernelError
from collectord.model import GapCause
from collectord.session.cost_meter import Cost

SECOND: Final = 1_000_000_000
STEP_S: Final = 5
BUDGET: Final = 0.01


class OneSession:
    """A session that is its own pause, and the troubles that it was told of."""

    def __init__(
        self, name: str, loss_class: str = "spare", cost_ns: int = 1, ends_ns: int = 0
    ) -> None:
        self.plan = SimpleNamespace(
            name=name, source="perf", loss_class=loss_class, ends_ns=ends_ns
        )
        self.cost_ns = cost_ns
        self.possible = True
        self.refuses = False
        self.causes: set[GapCause] = set()
        self.trouble = ""

    @property
    def pause(self) -> OneSession:
        """The pause of the session."""
        return self

    @property
    def lasts(self) -> bool:
        """Whether it is paused."""
        return bool(self.causes)

    def begin(self, cause: GapCause) -> None:
        """Pause."""
        assert cause not in self.causes
        if self.refuses:
            raise KernelError("no", errno=1)
        self.causes.add(cause)

    def end(self, cause: GapCause) -> None:
        """Resume."""
        if self.refuses:
            raise KernelError("no", errno=1)
        self.causes.remove(cause)

    def note(self, about: str, trouble: str) -> None:
        """Keep the trouble."""
        assert about == "pause"
        self.trouble = trouble


def a_meter(budget: float) -> Any:  # noqa: ANN401 - as much of one as is read
    """Return a meter whose figures the test sets."""
    return SimpleNamespace(cost=Cost(budget=budget), lately_ns=lambda one: one.cost_ns)


class Rig:
    """Sessions, and a keeper to which time passes at a cost that the test sets."""

    def __init__(
        self, *sessions: OneSession, pauses: str = "normal", budget: float = BUDGET
    ) -> None:
        self.sessions = sessions
        self.meter = a_meter(budget)
        self.keeper = BudgetKeeper(self.meter, pauses)
        self.now_s = 1000

    def paused(self) -> list[str]:
        """Return the names of the sessions that are paused."""
        return [one.plan.name for one in self.sessions if GapCause.SHED in one.causes]

    def spend(self, ratio: float, seconds: int) -> list[str]:
        """Let time pass at a cost; return which sessions are paused then."""
        self.meter.cost = Cost(ratio=ratio, budget=self.meter.cost.budget)
        live: Any = self.sessions
        for _ in range(0, seconds, STEP_S):
            self.keeper.poll(live, self.now_s * SECOND)
            self.now_s += STEP_S
        return self.paused()


def test_what_matters_least_and_costs_most_is_paused_first() -> None:
    """One a minute, and never what must not lose."""
    rig = Rig(
        OneSession("must", "must-not-lose", 9),
        OneSession("dear", "normal", 8),
        OneSession("spare", cost_ns=1),
        OneSession("dearer", cost_ns=2),
        OneSession("idle", cost_ns=0),
    )
    assert rig.spend(0.011, 60) == []
    assert rig.spend(0.011, 5) == ["dearer"]
    assert rig.spend(0.011, 55) == ["dearer"]
    assert rig.spend(0.011, 5) == ["spare", "dearer"]
    assert rig.spend(0.011, 600) == ["dear", "spare", "dearer"]
    assert [bool(one.trouble) for one in rig.sessions] == [False, True, True, True, False]


def test_what_somebody_has_started_is_paused_first() -> None:
    """It goes before others of its class, even if they cost more."""
    rig = Rig(OneSession("dear", cost_ns=9), OneSession("started", ends_ns=1))
    assert rig.spend(0.02, 65) == ["started"]
    assert rig.spend(0.02, 60) == ["dear", "started"]


def test_only_the_configured_classes_are_paused() -> None:
    """By default the spare ones, of those that can be paused; none without a budget."""
    for pauses, budget, expected in (
        ("none", BUDGET, []),
        ("spare", BUDGET, ["spare"]),
        ("normal", BUDGET, ["normal", "spare"]),
        ("normal", 0.0, []),
    ):
        other = OneSession("other")
        other.possible = False
        rig = Rig(
            OneSession("normal", "normal"),
            OneSession("spare"),
            other,
            pauses=pauses,
            budget=budget,
        )
        assert rig.spend(1.0, 600) == expected


def test_a_short_peak_pauses_nothing() -> None:
    """Nor does a cost that goes up and down around the budget."""
    rig = Rig(OneSession("spare"))
    for _ in range(10):
        assert rig.spend(0.02, 55) == []
        assert rig.spend(0.009, 5) == []


def test_sessions_come_back_when_there_is_room() -> None:
    """The last one first, five minutes after another; a cost near the budget is no room."""
    rig = Rig(OneSession("one", cost_ns=2), OneSession("two"))
    assert rig.spend(0.02, 130) == ["one", "two"]
    assert rig.spend(0.008, 3600) == ["one", "two"]
    assert rig.spend(0.006, 300) == ["one", "two"]
    assert rig.spend(0.006, 5) == ["one"]
    assert rig.sessions[1].trouble == ""
    assert rig.spend(0.006, 295) == ["one"]
    assert rig.spend(0.006, 5) == []


def test_each_pause_is_followed_by_a_longer_wait() -> None:
    """A session that comes back only to be paused again would flap; an hour is the most."""
    rig = Rig(OneSession("one"))
    for minutes in (5, 10, 20, 40, 60, 60):
        assert rig.spend(0.02, 65) == ["one"]
        assert rig.spend(0.001, 60 * minutes) == ["one"]
        assert rig.spend(0.001, 5) == []


def test_what_the_kernel_refuses_is_tried_again() -> None:
    """The session goes on, or stays paused, meanwhile."""
    one = OneSession("one")
    rig = Rig(one)
    one.refuses = True
    assert rig.spend(0.02, 130) == []
    one.refuses = False
    assert rig.spend(0.02, 60) == ["one"]
    one.refuses = True
    assert rig.spend(0.001, 305) == ["one"]
    one.refuses = False
    assert rig.spend(0.001, 300) == []


def test_what_somebody_paused_is_neither_paused_nor_resumed() -> None:
    """A pause on request is no budget's, and outlasts that of the budget."""
    dear, one = OneSession("dear", cost_ns=9), OneSession("one")
    rig = Rig(dear, one)
    dear.begin(GapCause.REQUEST)
    assert rig.spend(0.02, 130) == ["one"]
    one.begin(GapCause.REQUEST)
    assert rig.spend(0.001, 305) == []
    assert dear.causes == one.causes == {GapCause.REQUEST}


def test_a_session_that_is_gone_is_forgotten() -> None:
    """Another is resumed in its place."""
    one, two = OneSession("one", cost_ns=2), OneSession("two")
    rig = Rig(one, two)
    assert rig.spend(0.02, 130) == ["one", "two"]
    rig.sessions = (one,)
    assert rig.spend(0.001, 305) == []
