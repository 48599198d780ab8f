# SPDX-License-Identifier: Apache-2.0
"""The one plug-in boundary: a source turns a session's plan into rings that are ready to drain.

Past `open` no code knows which source a ring came from, only its kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from collectord._native._core import RingMap
    from collectord.kernel.port import Kernel
    from collectord.model import Basis, Geometry, Produced, RingKind, RingLabel
    from collectord.plan.session import SessionPlan


@dataclass(frozen=True, slots=True)
class CounterFd:
    """One event's counter, which feeds one ring.

    Attributes:
        fd: the event's descriptor.
        event_index: `EventPlan.index`.
        event_id: the id that its samples carry.
        read_format: what read(2) of it gives.
    """

    fd: int
    event_index: int
    event_id: int
    read_format: int


@dataclass(frozen=True, slots=True)
class RingHandle:
    """A mapped ring and the counters that tell what went into it.

    Attributes:
        map: its mapping.
        map_fd: the descriptor that was mapped.
        wakeup_fd: what to poll; on a real kernel the same descriptor.
        kind: how it is drained.
        basis: what its balance rests on.
        geometry: effective sizes.
        label: whose ring it is.
        counters: one per event and target that writes into it.
        time_offset: `Core.add_ring`'s, of samples.
        time_trailer: `Core.add_ring`'s, of other records.
    """

    map: RingMap
    map_fd: int
    wakeup_fd: int
    kind: RingKind
    basis: Basis
    geometry: Geometry
    label: RingLabel
    counters: tuple[CounterFd, ...]
    time_offset: int
    time_trailer: int


class OpenSource(Protocol):
    """A source's open rings; the ExitStack given to `open` closes them."""

    @property
    def rings(self) -> tuple[RingHandle, ...]:
        """All rings, in the plan's order."""

    @property
    def event_ids(self) -> Mapping[int, tuple[int, ...]]:
        """Ids that samples carry, by `EventPlan.index`."""

    @property
    def target_fds(self) -> tuple[int, ...]:
        """Readable once a target of a process or thread scope has exited; else empty."""

    def enable_sideband(self) -> None:
        """Start to record names and mappings, before any sample can need them."""

    def running_state(self) -> bytes:
        """What ran before `enable_sideband`, as whole records in the sideband's layout."""

    def enable(self) -> None:
        """Start to count."""

    def disable(self) -> None:
        """Stop. Counters are final afterwards."""

    def read_produced(self, ring: RingHandle) -> Produced:
        """Read the kernel's counters of a ring."""

    def suppressed_by(self, event_index: int) -> tuple[int, ...]:
        """Ids of foreign BPF programs that can hide this event from every counter."""


class Source(Protocol):
    """Opens the sessions of one source kind."""

    def __call__(
        self,
        kernel: Kernel,
        plan: SessionPlan,
        stack: ExitStack,
        *,
        exclude_tids: tuple[int, ...] = (),
    ) -> OpenSource:
        """Open all of a plan or nothing.

        Args:
            kernel: makes the privileged calls.
            plan: what to open. A COMMAND scope must have the child's pid in `scope.pids`.
            stack: gets everything that was opened.
            exclude_tids: threads whose events are left out where the plan says `exclude_self`.

        Raises:
            KernelError: of the classes that `kernel.refusal` tells apart.
            UsageError: the kernel refuses a filter; with its reason.
        """
