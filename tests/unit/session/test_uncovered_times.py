# SPDX-License-Identifier: Apache-2.0
"""The times in which a session lacks something on a CPU."""

from __future__ import annotations

import time

from collectord.session.uncovered_times import UncoveredTimes


def test_times_follow_each_other() -> None:
    """Each change of what is lacking ends a time, and the same again does not."""
    uncovered = UncoveredTimes()
    uncovered.note("")
    assert uncovered.to_json(0) == []
    began_ns = time.monotonic_ns()
    for lacks in ("CPU 1: offline", "CPU 1: offline", "CPU 1-2: offline", "", ""):
        uncovered.note(lacks)
    first, second = uncovered.to_json(0)
    assert (first["lacks"], second["lacks"]) == ("CPU 1: offline", "CPU 1-2: offline")
    assert began_ns <= first["since_ns"] <= first["until_ns"] <= second["since_ns"]
    assert uncovered.to_json(second["until_ns"]) == []
    uncovered.note("CPU 2: offline")
    (lasting,) = uncovered.to_json(second["until_ns"])
    assert lasting["until_ns"] is None
