# SPDX-License-Identifier: Apache-2.0
"""Numbers and lists of names in messages."""

from __future__ import annotations

from collectord.text.wording import counted, some_of


def test_a_number_has_its_noun() -> None:
    """One alone has no plural."""
    told = [counted(count, "host") for count in (0, 1, 2000)]
    assert told == ["0 hosts", "1 host", "2,000 hosts"]


def test_of_many_names_the_number_is_told() -> None:
    """Those beyond the most that are named are counted."""
    assert some_of(["a", "b"], 2) == "a, b"
    assert some_of(["a", "b", "c", "d"], 2) == "a, b and 2 more"
