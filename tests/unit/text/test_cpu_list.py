# SPDX-License-Identifier: Apache-2.0
"""CPU lists."""

from __future__ import annotations

import pytest

from collectord.errors import UsageError
from collectord.text import cpu_list


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", (0,)),
        ("0-3,5", (0, 1, 2, 3, 5)),
        ("5,0-1,1", (0, 1, 5)),
        (" 2 , 4-4\n", (2, 4)),
        ("", ()),
    ],
)
def test_reads_lists(text: str, cpus: tuple[int, ...]) -> None:
    """Numbers and ranges become ascending CPUs, each once; nothing is the empty list."""
    assert cpu_list.parse(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1--2", "1,,2", "3-1", "0-99999", "1;2", "٣"])
def test_refuses_what_is_no_list(text: str) -> None:
    """Anything else is a usage error, a typo that would mean millions of CPUs included."""
    with pytest.raises(UsageError):
        cpu_list.parse(text)


def test_renders_the_shortest_list() -> None:
    """Neighbours become ranges."""
    assert cpu_list.render((5, 0, 1, 2, 3, 5)) == "0-3,5"
    assert cpu_list.render(()) == ""
