# SPDX-License-Identifier: Apache-2.0
"""Rings that join a session: opened once, and closed if they cannot be taken in."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from collectord.errors import KernelError
from collectord.source.late_joining import LateJoining


def test_a_ring_that_cannot_be_taken_in_is_closed_and_may_join_again() -> None:
    """The other rings stay as they are, and the session's end closes what is open."""
    rings: list[int] = []
    open_files: list[int] = []

    def open_late(cpu: int, stack: ExitStack) -> Any:  # noqa: ANN401 - a ring
        open_files.append(cpu)
        stack.callback(open_files.remove, cpu)
        if cpu == 9:
            raise KernelError("no ring")
        return SimpleNamespace(label=SimpleNamespace(cpu=cpu))

    source: Any = SimpleNamespace(
        add_ring=lambda ring: rings.append(ring.label.cpu), drop_ring=rings.remove
    )
    with ExitStack() as stack:
        joining = LateJoining(source, open_late, stack)
        joining.leave(3)
        assert [ring.label.cpu for ring in joining.join(3)] == [3]
        joining.join(4)
        assert (rings, open_files) == ([3, 4], [3, 4])
        joining.stop(3)
        joining.leave(3)
        assert (rings, open_files) == ([4], [4])
        with pytest.raises(KernelError):
            joining.join(9)
        assert (rings, open_files) == ([4], [4])
        joining.enable(joining.join(3))
        assert rings == [4, 3]
    assert open_files == []
