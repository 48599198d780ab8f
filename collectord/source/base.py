# SPDX-License-Identifier: Apache-2.0
"""The one plug-in boundary: a source turns a session's plan into rings that are ready to drain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from collectord._native._core import Core, Stream
    from collectord.codec.trace_dat_head import Metadata
    from collectord.kernel.port import Kernel
    from collectord.model import LossKey, Produced, RingLabel
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.bpf import Counts, OpenProgram
    from collectord.source.ring import RingHandle
    from collectord.source.window import Held


@dataclass(frozen=True, slots=True)
class LateRing:
    """A ring that the kernel made since the opening, for a CPU that came online; nobody drains it.

    Attributes:
        label: whose it is.
        capacity_bytes: of it.
        produced: the kernel's counters; what is `unread` may be taken out of it at the end.
    """

    label: RingLabel
    capacity_bytes: int
    produced: Produced


class Sideband(Protocol):
    """Records names and mappings, for readers of the samples."""

    def enable_sideband(self) -> None:
        """Start to record them, before any sample can need them."""

    def running_state(self) -> bytes:
        """What ran before `enable_sideband`, as whole records in the sideband's layout."""


class Recording(Protocol):
    """Has rings of a flight recorder, whose windows can be taken.

    Attributes:
        stands_still: its rings do, from `pause` to `resume`; else they can be read meanwhile.
    """

    stands_still: bool

    @property
    def freeze_fds(self) -> tuple[int, ...]:
        """Readable when a ring may have been frozen; none where `frozen` must be asked."""

    def frozen(self) -> bool:
        """Whether the kernel has stopped a ring, as `freeze_on` asks, and it stands still yet.

        `resume` lets those go on that this call has found.

        Raises:
            KernelError: it cannot be told.
        """

    def pause(self) -> None:
        """Have a flight recorder's rings stand still, so that their windows can be taken.

        What comes meanwhile is lost and the kernel counts it. Rings that can be read while they
        are written go on. Always followed by `resume`, unless the session ends.

        Raises:
            KernelError: a ring cannot be stopped; `resume` is called all the same.
        """

    def resume(self) -> None:
        """Let the rings go on: their windows are in memory. Also after a `pause` that failed.

        Raises:
            KernelError: a ring cannot be started again.
        """


class Suppressible(Protocol):
    """Records events that foreign BPF programs can hide from every counter."""

    def suppressed_by(self, event_index: int) -> tuple[int, ...] | None:
        """Ids of programs that can hide this event; None if it cannot be told yet whose one is.

        Raises:
            KernelError: they cannot be listed.
        """


class SharedLosses(Protocol):
    """Loses records that the kernel does not tell by ring."""

    def shared_losses(self) -> Mapping[LossKey, int]:
        """What the kernel counts as lost of all rings together.

        Raises:
            KernelError: it cannot be read.
        """


class LateSource(Protocol):
    """Has a ring of every CPU, of one that comes online after the opening too."""

    def late_rings(self, *, last: bool) -> tuple[LateRing, ...]:
        """Rings of CPUs that came online since the opening, and that belong to the scope.

        Args:
            last: the source is disabled: what they hold is counted, if that was not known before.

        Raises:
            KernelError: their counters cannot be read.
        """


class Tracing(Protocol):
    """Has an instance of ftrace."""

    @property
    def name(self) -> str:
        """The instance's directory below `instances`."""

    def metadata(self) -> Metadata:
        """What a trace.dat of these rings says beside its events. Raises KernelError."""

    def comms(self) -> Mapping[int, bytes]:
        """Names of tasks by thread id, as many as have been seen until now; reads files."""

    def learn_comms(self) -> None:
        """Keep the names that the kernel has now, for later `comms`; reads one file."""

    def ring_stats(self) -> Mapping[int, str]:
        """The kernel's counters by CPU, as `trace-cmd report --stat` shows them.

        Raises:
            KernelError: they cannot be read.
        """

    def late_pages(self, cpus: Iterable[int], stack: ExitStack) -> Mapping[int, Iterator[bytes]]:
        """Whole sub-buffers of rings that nobody drained, by CPU, as they are taken.

        Args:
            cpus: of `LateSource.late_rings`, once nothing comes any more.
            stack: closes the rings.

        Raises:
            KernelError: a ring cannot be opened; as the pages come, that one cannot be read.
        """

    def mark(self, text: str) -> int:
        """Write a marker into a ring.

        Returns:
            bytes of it that were taken: the kernel cuts at a sub-buffer or 4 KiB.

        Raises:
            KernelError: nothing is recorded, or the ring is full and does not overwrite.
        """

    def other_readers(self) -> str:
        """Other processes that have the rings open, with their pids; "" if none is seen."""

    def keep_window(self, rings: Iterable[Held]) -> str:
        """Let the rings of a flight recorder grow until they hold what they are to keep.

        Args:
            rings: what they hold, as of the last reading.

        Returns:
            why they cannot, "" while they can; in a stream nothing is done.
        """


class Programs(Protocol):
    """Runs BPF programs."""

    @property
    def programs(self) -> Sequence[OpenProgram]:
        """The programs that run."""

    def counts(self, program: OpenProgram) -> Mapping[int, Counts]:
        """What a program counted of its submissions, by CPU; nothing if it does not count.

        Raises:
            KernelError: its counters cannot be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a source can do beyond being drained: under each head who does it, nobody or one."""

    sideband: tuple[Sideband, ...] = ()
    recording: tuple[Recording, ...] = ()
    suppressible: tuple[Suppressible, ...] = ()
    shared: tuple[SharedLosses, ...] = ()
    late: tuple[LateSource, ...] = ()
    tracing: tuple[Tracing, ...] = ()
    programs: tuple[Programs, ...] = ()


class OpenSource(Protocol):
    """A source's open rings; the ExitStack given to `open` closes them."""

    @property
    def rings(self) -> tuple[RingHandle, ...]:
        """All rings, in the plan's order."""

    @property
    def abilities(self) -> Abilities:
        """What it can do beside; declared as it is opened, and the same from then on."""

    @property
    def event_ids(self) -> Mapping[int, tuple[int, ...]]:
        """Ids that samples carry, by `EventPlan.index`."""

    @property
    def target_fds(self) -> tuple[int, ...]:
        """Readable once a target of a process or thread scope has exited; else empty."""

    def add_stream(self, core: Core) -> Stream:
        """Have a stream in the core that takes its rings."""

    def enable(self) -> None:
        """Start to count."""

    def disable(self) -> None:
        """Stop. Counters are final afterwards."""

    def read_produced(self, ring: RingHandle) -> Produced:
        """Read the kernel's counters of a ring."""


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
            KernelError: of the classes that `errno_mapping` tells apart.
            UsageError: the kernel refuses a filter; with its reason.
        """
