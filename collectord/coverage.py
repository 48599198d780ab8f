# SPDX-License-Identifier: Apache-2.0
"""Which CPUs are seen. A CPU without rings is uncovered time, not loss: nothing was produced."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from collectord.model import RingRole, ScopeKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from collectord.plan.session import SessionPlan

_LOG: Final = structlog.get_logger()


class Coverage:
    """The CPUs that are online, and those on which nothing that is to be seen goes unseen.

    The kernel detaches events from a CPU that goes offline; it does not attach them again.
    """

    def __init__(self, sessions: Sequence[SessionPlan], online: Iterable[int]) -> None:
        self.online = frozenset(online)
        rings = (
            r for s in sessions for r in s.rings if r.role is RingRole.DATA and s.watches_cpus
        )
        gates = (
            cpu for s in sessions if s.bpf is not None and s.bpf.programs for cpu in s.bpf.cpus
        )
        self._planned = frozenset((*(ring.cpu for ring in rings if ring.cpu >= 0), *gates))
        open_ones = (s for s in sessions if s.rings or (s.bpf is not None and s.bpf.programs))
        self._all_wanted = any(
            s.scope.kind is ScopeKind.SYSTEM and s.watches_cpus for s in open_ones
        )
        self._detached: frozenset[int] = frozenset()
        self._uncovered_ns = 0
        self._counted_ns = time.monotonic_ns()

    @property
    def covered(self) -> frozenset[int]:
        """CPUs, online or not, that have all the rings they should have."""
        return (self._planned if self._all_wanted else self.online) - self._detached

    def uncovered_ns(self) -> int:
        """Time so far that CPUs were without rings that they should have had, added up."""
        now_ns = time.monotonic_ns()
        uncovered = (self._planned | self.online) - self.covered
        self._uncovered_ns += len(uncovered) * (now_ns - self._counted_ns)
        self._counted_ns = now_ns
        return self._uncovered_ns

    def change(self, online: Iterable[int]) -> None:
        """From now on these CPUs are online."""
        self.uncovered_ns()
        self.online = frozenset(online)
        self._detached |= self._planned - self.online
        _LOG.warning("cpus_changed", online=sorted(self.online), uncovered=sorted(self._detached))

    async def follow(self) -> None:
        """Follow hotplug until cancelled."""
        from collectord.kernel.cpu_watch import CpuWatch  # noqa: PLC0415  # 13 MiB and 0.2 s

        async with CpuWatch() as watch:
            async for online in watch:
                self.change(online)
