# SPDX-License-Identifier: Apache-2.0
"""The names of rings in logs and results."""

from __future__ import annotations

import pytest

from collectord.model import RingLabel, RingRole


@pytest.mark.parametrize(
    ("cpu", "tid", "place"), [(3, -1, "cpu3"), (-1, 1234, "tid1234"), (-1, -1, "all")]
)
def test_a_ring_is_named_by_whom_it_is_for(cpu: int, tid: int, place: str) -> None:
    """A name has one CPU, one thread, or all CPUs."""
    assert str(RingLabel("s", "bpf", RingRole.DATA, cpu, tid)) == f"s/bpf/data/{place}"
