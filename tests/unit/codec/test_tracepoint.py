# SPDX-License-Identifier: Apache-2.0
"""Names of tracepoints as values."""

from __future__ import annotations

import pytest

from collectord.codec.tracepoint import Tracepoint


@pytest.mark.parametrize("text", ["sched:sched_switch", "sched:sched_*", "*:*"])
def test_it_is_spelt_as_it_was_read(text: str) -> None:
    """Text and value say the same, with wildcards too."""
    assert str(Tracepoint.parse(text)) == f"{Tracepoint.parse(text)}" == text


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("sched:sched_switch", True),
        ("sched:*", True),
        ("*:sched_[sw]*", True),
        ("sched:switch", False),
        ("Sched:*", False),
        ("*", False),
    ],
)
def test_both_parts_must_match(pattern: str, *, matches: bool) -> None:
    """A wildcard stands for no part of the other side of the colon."""
    switch = Tracepoint("sched", "sched_switch")
    assert Tracepoint.parse(pattern).matches(switch) is matches
