# SPDX-License-Identifier: Apache-2.0
"""The difference between two plans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from collectord.plan.difference import Kind, difference
from collectord.text.foreign import encode_json
from collectord.text.units import Bytes
from tests.support.commands import planned

if TYPE_CHECKING:
    from collectord.plan.plan import Plan


def document(plan: Plan) -> dict[str, Any]:
    """Return a plan as a daemon shows it."""
    shown: dict[str, Any] = json.loads(encode_json(plan.to_dict()))
    return shown


EXEC = document(planned("sched:sched_process_exec"))


def test_a_plan_does_not_differ_from_itself() -> None:
    """Nor do remarks make a difference: nothing depends on them."""
    assert difference(EXEC, EXEC).is_empty
    (session,) = EXEC["sessions"]
    remarked = {**EXEC, "sessions": [{**session, "notes": ["x"], "degraded": ["y"]}]}
    assert difference(EXEC, remarked).is_empty


def test_sessions_of_one_plan_only() -> None:
    """They are added or removed, in the order of the old plan and then of the new one."""
    (session,) = EXEC["sessions"]
    other = {**EXEC, "sessions": [{**session, "name": "b"}, {**session, "source": "bpf"}]}
    found = difference(EXEC, other)
    assert [(one.name, one.source, one.kind) for one in found.sessions] == [
        ("exec", "perf", Kind.REMOVED),
        ("b", "perf", Kind.ADDED),
        ("exec", "bpf", Kind.ADDED),
    ]


def test_each_place_that_differs_is_named() -> None:
    """An event more is one change; a value of an event has its path."""
    (session,) = EXEC["sessions"]
    first, *others = session["events"]
    changed = {**session, "mode": "x", "events": [{**first, "cpus": [1]}, *others, {"name": "n"}]}
    (found,) = difference(EXEC, {**EXEC, "sessions": [changed]}).sessions
    assert found.kind is Kind.CHANGED
    assert [(one.path, one.old, one.new) for one in found.changes] == [
        ("mode", "stream", "x"),
        ("events[0].cpus[0]", None, 1),
        (f"events[{len(session['events'])}]", None, {"name": "n"}),
    ]


def test_words_are_short() -> None:
    """Long values and many changes are cut."""
    (session,) = EXEC["sessions"]
    changed = {**session, "files": "x" * 500, "rings": [{"n": n} for n in range(100)]}
    lines = [*difference(EXEC, {**EXEC, "sessions": [changed]}).describe()]
    assert lines[0] == "session exec (perf): changed"
    assert max(map(len, lines)) < 200
    assert len(lines) == 10
    assert lines[-1].startswith("  and ")
    assert lines[-1].endswith(" more")


def test_the_core_is_shared() -> None:
    """Its sizes differ for all sessions at once."""
    found = difference(EXEC, document(planned("sched:sched_process_exec", chunk=Bytes(1 << 19))))
    assert not found.is_empty
    assert ("chunk_bytes", 1 << 20, 1 << 19) in [
        (one.path, one.old, one.new) for one in found.core
    ]
    assert [one.kind for one in found.sessions] == [Kind.UNCHANGED]
    assert "core: changed" in [*found.describe()]
