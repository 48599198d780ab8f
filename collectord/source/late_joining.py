# SPDX-License-Identifier: Apache-2.0
"""Rings of ftrace and blktrace for CPUs that come online for the first time since the opening.

The kernel makes such a ring by itself, and records into it. It stays when its CPU goes offline
again, and so is never replaced.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collectord.source.ring import RingHandle

_Taken = TypeVar("_Taken", bound="RingHandle")
_Ring_contra = TypeVar("_Ring_contra", bound="RingHandle", contravariant=True)


class Growing(Protocol[_Ring_contra]):
    """A source that takes rings while it runs."""

    def add_ring(self, ring: _Ring_contra) -> None:
        """Add a ring to the rings of the source."""

    def drop_ring(self, cpu: int) -> None:
        """Forget the ring of a CPU."""


class LateJoining(Generic[_Taken]):
    """Opens the rings that the kernel made late. See `source.base.Hotplug`.

    Args:
        source: has the rings that are open.
        open_late: opens the ring of a CPU, which a stack closes.
        stack: closes all that is opened.
    """

    def __init__(
        self,
        source: Growing[_Taken],
        open_late: Callable[[int, ExitStack], _Taken],
        stack: ExitStack,
    ) -> None:
        self._source = source
        self._open_late = open_late
        self._closers: dict[int, ExitStack] = {}
        stack.callback(self._close)

    def _close(self) -> None:
        for closer in self._closers.values():
            closer.close()

    def stop(self, cpu: int) -> None:
        """Do nothing: the source stops all rings at once."""

    def leave(self, cpu: int) -> None:
        """Close a ring that could not be taken in; it is read at the end."""
        if cpu in self._closers:
            self._source.drop_ring(cpu)
            self._closers.pop(cpu).close()

    def join(self, cpu: int) -> tuple[RingHandle, ...]:
        """Open the ring of a CPU, in which there are events already."""
        with ExitStack() as own:
            ring = self._open_late(cpu, own)
            self._source.add_ring(ring)
            self._closers[cpu] = own.pop_all()
        return (ring,)

    def enable(self, rings: Sequence[RingHandle]) -> None:
        """Do nothing: the kernel records into them already."""
