# SPDX-License-Identifier: Apache-2.0
"""Tests of the filters that leave threads out of tracepoints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from collectord.kernel.values.trace_filter import without_threads


def _passes(filter_: str, pid: int) -> bool:
    """Evaluate a filter of comparisons of common_pid as the kernel does."""
    python = filter_.replace("&&", " and ").replace("||", " or ")
    return bool(eval(python, {"__builtins__": {}}, {"common_pid": pid}))  # noqa: S307


@given(st.sets(st.integers(2, 40), min_size=1), st.integers(1, 45))
def test_exactly_the_threads_are_left_out(tids: set[int], pid: int) -> None:
    """Every task passes the filter but for the threads that are to be left out."""
    assert _passes(without_threads("", tids), pid) is (pid not in tids)


def test_the_filter_of_the_user_holds_too() -> None:
    """A task passes if the user's own filter lets it pass as well, whatever operators that has."""
    filter_ = without_threads("common_pid == 7 || common_pid == 8", [8, 9, 11])
    assert [pid for pid in range(15) if _passes(filter_, pid)] == [7]


def test_later_tasks_need_one_comparison() -> None:
    """The first comparison passes tasks that began later; one id between has a single one."""
    assert without_threads("", [5, 6, 8, 20]) == (
        "(common_pid > 20 || common_pid < 5 || common_pid == 7 "
        "|| (common_pid > 8 && common_pid < 20))"
    )


def test_without_threads_nothing_changes() -> None:
    """A filter without threads to leave out is the user's own."""
    assert without_threads("id == 3", []) == "(id == 3)"
    assert without_threads("", []) == ""
