# SPDX-License-Identifier: Apache-2.0
"""How often triggers may fire, by a clock that the tests set."""

from __future__ import annotations

from collectord.daemon.incidents.trigger_gate import (
    Counted,
    TriggerGate,
    decode_counts,
    encode_counts,
)
from collectord.session.incident_status import Suppression

SECOND = 10**9
DAY = 86_400 * SECOND
START = 1_700_000_000 * SECOND
COOLDOWN = 60 * SECOND


def fires(gate: TriggerGate, now_ns: int, *, busy: bool = False) -> Suppression | None:
    """Meet the condition of a trigger; return why no incident is made, None if one is."""
    cause = gate.refusal(now_ns, busy=busy)
    if cause is None:
        gate.note(now_ns)
    return cause


def test_the_time_after_an_incident() -> None:
    """A trigger makes no other before its cool-down is over, and counts what it held back."""
    gate = TriggerGate(COOLDOWN, 100)
    assert fires(gate, START) is None
    assert fires(gate, START) is Suppression.COOLDOWN
    assert fires(gate, START + COOLDOWN - 1) is Suppression.COOLDOWN
    assert gate.counted.suppressed == {"cooldown": 2}
    assert gate.refusal(START + COOLDOWN, busy=False) is None
    assert gate.note(START + COOLDOWN) == {"cooldown": 2}
    assert fires(gate, START + COOLDOWN + 1) is Suppression.COOLDOWN
    assert gate.note(START + 3 * COOLDOWN) == {"cooldown": 1}
    assert gate.counted.suppressed == {"cooldown": 3}


def test_so_many_a_day() -> None:
    """Those of the last 24 hours count, whatever the calendar says."""
    gate = TriggerGate(0, 3)
    assert [fires(gate, START + hour * 3600 * SECOND) for hour in range(5)] == [
        *(None, None, None),
        *(Suppression.PER_DAY, Suppression.PER_DAY),
    ]
    assert fires(gate, START + DAY - 1) is Suppression.PER_DAY
    assert fires(gate, START + DAY) is None
    assert fires(gate, START + DAY + 1) is Suppression.PER_DAY
    assert gate.counted.made == 4


def test_one_incident_at_a_time() -> None:
    """While one is made nothing else is asked."""
    gate = TriggerGate(COOLDOWN, 1)
    assert fires(gate, START, busy=True) is Suppression.BUSY
    assert gate.counted.fired_ns == []
    assert fires(gate, START) is None


def test_a_clock_that_is_set_back() -> None:
    """Incidents of the future do not count: no trigger is silent for years."""
    gate = TriggerGate(COOLDOWN, 1)
    assert fires(gate, START + 1000 * DAY) is None
    assert fires(gate, START) is None
    assert fires(gate, START + 1) is Suppression.COOLDOWN


def test_the_next_daemon_goes_on() -> None:
    """Cool-down, day and counts are those of the one before; damage begins anew."""
    gate = TriggerGate(COOLDOWN, 2)
    assert fires(gate, START) is None
    assert fires(gate, START + COOLDOWN) is None
    assert fires(gate, START + COOLDOWN + 1) is Suppression.COOLDOWN
    kept = decode_counts(encode_counts({"a": gate.counted}))["a"]
    after = TriggerGate(COOLDOWN, 2, kept)
    assert fires(after, START + COOLDOWN + 2) is Suppression.COOLDOWN
    assert fires(after, START + 2 * COOLDOWN) is Suppression.PER_DAY
    assert (kept.made, kept.suppressed) == (2, {"cooldown": 2, "per_day": 1})
    for damaged in (b"", b"{", b'{"a": 7}', b'{"a": {"made": "x"}}', b"\xff"):
        assert decode_counts(damaged) == {}


def test_requests_without_end_take_no_memory() -> None:
    """They have no limit, so only the newest are remembered."""
    gate = TriggerGate(0, 1, Counted())
    for number in range(2500):
        gate.note(START + number)
    assert len(gate.counted.fired_ns) <= 1001
    assert gate.counted.made == 2500
