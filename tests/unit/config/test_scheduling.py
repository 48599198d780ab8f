# SPDX-License-Identifier: Apache-2.0
"""Priority and CPUs of drain threads, as they are spelt."""

from __future__ import annotations

import pytest

from collectord.config.scheduling import AUTO, FIFO, NICE, NORMAL, DrainCpus, DrainPriority
from collectord.errors import UsageError


@pytest.mark.parametrize(
    ("text", "policy", "level"),
    [
        ("auto", AUTO, 0),
        ("normal", NORMAL, 0),
        ("nice:-20", NICE, -20),
        (" nice:19 ", NICE, 19),
        ("nice:0", NICE, 0),
        ("fifo:1", FIFO, 1),
        ("fifo:99", FIFO, 99),
    ],
)
def test_priorities(text: str, policy: str, level: int) -> None:
    """A word, or a policy with its level; it is shown as it was spelt."""
    priority = DrainPriority.parse(text)
    assert (priority.policy, priority.level) == (policy, level)
    assert str(priority) == text.strip()


@pytest.mark.parametrize(
    "text",
    ["", "nice", "nice:-21", "nice:20", "fifo", "fifo:0", "fifo:-1", "fifo:100", "rr:1", "-10", 5],
)
def test_no_priorities(text: object) -> None:
    """Anything else is refused, with what is allowed."""
    with pytest.raises(UsageError, match='"fifo:1" to "fifo:99"'):
        DrainPriority.parse(text)


def test_cpus() -> None:
    """A list of CPUs, or the plan's choice."""
    assert DrainCpus.parse("auto").cpus == ()
    assert DrainCpus.parse("2-3,5").cpus == (2, 3, 5)


@pytest.mark.parametrize("text", ["", "any", "3-2", "1,,2", "99999", 5])
def test_no_cpus(text: object) -> None:
    """Anything else is refused, with what is allowed."""
    with pytest.raises(UsageError, match='"auto", or CPUs as in "2-3,5"'):
        DrainCpus.parse(text)
