# SPDX-License-Identifier: Apache-2.0
"""Numbers and lists of names in messages."""

from __future__ import annotations

from collectord.text.wording import counted, some_of, were


def test_a_number_has_its_noun() -> None:
    """And its verb: one alone has no plural."""
    told = [f"{counted(count, 'host')} {were(count)}" for count in (0, 1, 2000)]
    assert told == ["0 hosts were", "1 host was", "2,000 hosts were"]


def test_of_many_names_the_number_is_told() -> None:
    """Those beyond the most that are named are counted."""
    assert some_of(["a", "b"], 2) == "a, b"
    assert some_of(["a", "b", "c", "d"], 2) == "a, b and 2 more"
