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
    from collectord.kernel.values.kept_rings import Prior
    from collectord.model import LossKey, Produced, RingLabel
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.open_program import Counts, OpenProgram
    from collectord.source.ring import RingHandle
    from collectord.source.trace_end import LastingInstance
    from collectord.source.window import Held


@dataclass(frozen=True, slots=True)
class LateRing:
    """A ring that the kernel made after the opening, for a CPU that came online; nobody drains it.

    Attributes:
        label: its label in ledger and metrics.
        capacity_bytes: its size.
        produced: the kernel's counters; `unread` records may be taken out of it at the end.
    """

    label: RingLabel
    capacity_bytes: int
    produced: Produced


class Sideband(Protocol):
    """The ability to record names and mappings, for readers of the samples."""

    def enable_sideband(self) -> None:
        """Start recording the sideband, before any sample can need it."""

    def running_state(self) -> bytes:
        """Return the tasks that ran before `enable_sideband`, as whole records of the sideband."""


class Recording(Protocol):
    """The ability to take windows of a flight recorder's rings.

    Attributes:
        stands_still: its rings stop from `pause` to `resume`; otherwise they stay readable.
    """

    stands_still: bool

    @property
    def freeze_fds(self) -> tuple[int, ...]:
        """Descriptors, readable when a ring may be frozen; none where `frozen` is polled."""

    def frozen(self) -> bool:
        """Whether the kernel has stopped a ring for `freeze_on`, and it is still stopped.

        `resume` restarts the rings that this call has found.

        Raises:
            KernelError: the state cannot be read.
        """

    def pause(self) -> None:
        """Stop a flight recorder's rings, so that their windows can be taken.

        Records that come meanwhile are lost and the kernel counts them. Rings that can be read
        while they are written go on. A `resume` always follows, unless the session ends.

        Raises:
            KernelError: a ring cannot be stopped; `resume` is called all the same.
        """

    def resume(self) -> None:
        """Restart the rings: their windows are in memory. Also after a `pause` that failed.

        Raises:
            KernelError: a ring cannot be started again.
        """


class Pausable(Protocol):
    """The ability to disable the session's events for a time."""

    def disable_events(self) -> None:
        """Disable the events that cause records of data. Raises KernelError."""

    def enable(self) -> None:
        """Enable them again, as `OpenSource.enable` did first. Raises KernelError."""


class Suppressible(Protocol):
    """The ability to detect foreign BPF programs, which can hide events from every counter."""

    def suppressed_by(self, event_index: int) -> tuple[int, ...] | None:
        """Return ids of programs that can hide this event; None if an owner is unknown yet.

        Raises:
            KernelError: they cannot be listed.
        """


class SharedLosses(Protocol):
    """The ability to report losses that the kernel does not count by ring."""

    def shared_losses(self) -> Mapping[LossKey, int]:
        """Return the losses that the kernel counts for all rings together.

        Raises:
            KernelError: the counter cannot be read.
        """


class LateSource(Protocol):
    """The ability to find rings of CPUs that come online after the opening."""

    def late_rings(self, *, last: bool) -> tuple[LateRing, ...]:
        """Return rings of CPUs that came online since the opening, and that belong to the scope.

        Args:
            last: the source is disabled: the rings' content is counted, if it was not known
                before.

        Raises:
            KernelError: their counters cannot be read.
        """


class Hotplug(Protocol):
    """The ability to replace the rings of a CPU that was offline."""

    def stop(self, cpu: int) -> None:
        """Stop counting in the rings of a CPU, if the kernel has not. Raises KernelError."""

    def leave(self, cpu: int) -> None:
        """Close the rings of a CPU; nobody drains or reads them any more."""

    def join(self, cpu: int) -> tuple[RingHandle, ...]:
        """Open the rings of a CPU that is online, disabled, and return them.

        They have the labels of the rings that they replace, and samples the same ids in files.

        Raises:
            KernelError: they cannot be opened; nothing of them is left open.
        """

    def enable(self, rings: Sequence[RingHandle]) -> None:
        """Start counting in rings of `join`. Raises KernelError."""


class Following(Protocol):
    """The ability to observe processes that come and go.

    The kernel may use a pid again, so `take` gives a process a number. It is then passed to
    `start`, to `is_over`, to `release`, and at last to `forget`.
    """

    def take(self, pid: int) -> int:
        """Open the events of all threads of a process, disabled, and return its number.

        Raises:
            NoSuchTarget: it has exited, or is about to; nothing of it is left open.
            KernelError: they cannot be opened; likewise.
        """

    def ids(self, ring: RingHandle) -> Mapping[int, int]:
        """Return the ids that samples in a ring may carry, each with the id that files know."""

    def start(self, number: int) -> bool:
        """Start counting; return whether it still ran then, so that its end is counted.

        Raises:
            KernelError: its events cannot be enabled.
        """

    def is_over(self, number: int) -> bool:
        """Whether a process that was started has exited, with all children that inherited."""

    def release(self, number: int) -> None:
        """Close the events of the ring; what they have counted stays counted.

        Raises:
            KernelError: they cannot be read; they stay open.
        """

    def forget(self, number: int) -> None:
        """Forget the ids of a released process, once all its records are drained."""


class Tracing(Protocol):
    """The ability to use an instance of ftrace."""

    @property
    def name(self) -> str:
        """The instance's directory below `instances`."""

    @property
    def lasting(self) -> LastingInstance:
        """The instance's beginning and end, and the note about it in case of a crash."""

    def metadata(self) -> Metadata:
        """Return the metadata of a trace.dat of these rings. Raises KernelError."""

    def comms(self) -> Mapping[int, bytes]:
        """Return names of tasks by thread id, as many as were seen until now; reads files."""

    def learn_comms(self) -> None:
        """Keep the names that the kernel has now, for later `comms`; reads one file."""

    def ring_stats(self) -> Mapping[int, str]:
        """Return the kernel's counters by CPU, as `trace-cmd report --stat` shows them.

        Raises:
            KernelError: they cannot be read.
        """

    def late_pages(self, cpus: Iterable[int], stack: ExitStack) -> Mapping[int, Iterator[bytes]]:
        """Return sub-buffers of rings that nobody drained, by CPU, taken as they are iterated.

        Args:
            cpus: CPUs of `LateSource.late_rings`, once no event is recorded any more.
            stack: closes the rings.

        Raises:
            KernelError: a ring cannot be opened; during iteration, it cannot be read.
        """

    def mark(self, text: str) -> int:
        """Write a marker into a ring.

        Returns:
            bytes of it that were taken: the kernel cuts at a sub-buffer or 4 KiB.

        Raises:
            KernelError: nothing is recorded, or the ring is full and does not overwrite.
        """

    def other_readers(self) -> str:
        """Return other processes that have the rings open, with their pids; "" if none is seen."""

    def keep_window(self, rings: Iterable[Held]) -> str:
        """Grow the rings of a flight recorder until they hold what they are to keep.

        Args:
            rings: what they hold, by the last reading.

        Returns:
            why they cannot grow, "" while they can; in a stream nothing is done.
        """


class Outliving(Protocol):
    """The ability to record on after this process, for the next one."""

    def outlive(self) -> bool:
        """Leave the rings recording when the session is closed, unless that is not possible.

        Nobody may drain them any more: their unread records are left to the next process.

        Returns:
            whether they will record on.
        """


class Programs(Protocol):
    """The ability to run BPF programs."""

    @property
    def programs(self) -> Sequence[OpenProgram]:
        """The programs that run."""

    def counts(self, program: OpenProgram) -> Mapping[int, Counts]:
        """Return a program's counts of its submissions, by CPU; empty if it does not count.

        Raises:
            KernelError: its counters cannot be read.
        """


class Lasting(Protocol):
    """The ability to go on with rings that outlive this process.

    Attributes:
        prior: what is known of them, and of those that they replace.
        resumed: an earlier process drained them; without it they are new.
        in_bytes: it is of the trace in their AUX areas, and not of their events.
        names: the last segment has names and mappings of tasks, which the next one needs.
    """

    prior: Prior
    resumed: bool
    in_bytes: bool
    names: bool

    def count_lost(self, losses: Mapping[LossKey, int]) -> None:
        """Count what earlier processes had taken, or not told, as lost in this session."""

    def shared_losses(self) -> Mapping[LossKey, int]:
        """Return the losses that `count_lost` has counted."""

    def note(self, state: str) -> None:
        """Write the text that the next process gets with `prior`. Raises KernelError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """Abilities of a source beyond draining: for each the object that has it, or none."""

    sideband: tuple[Sideband, ...] = ()
    recording: tuple[Recording, ...] = ()
    suppressible: tuple[Suppressible, ...] = ()
    shared: tuple[SharedLosses, ...] = ()
    late: tuple[LateSource, ...] = ()
    hotplug: tuple[Hotplug, ...] = ()
    pausable: tuple[Pausable, ...] = ()
    following: tuple[Following, ...] = ()
    tracing: tuple[Tracing, ...] = ()
    programs: tuple[Programs, ...] = ()
    lasting: tuple[Lasting, ...] = ()
    outliving: tuple[Outliving, ...] = ()


class OpenSource(Protocol):
    """The open rings of a source; the ExitStack given to `open` closes them."""

    @property
    def rings(self) -> tuple[RingHandle, ...]:
        """All rings, in the plan's order."""

    @property
    def abilities(self) -> Abilities:
        """The abilities beyond draining; declared at the opening, and the same from then on."""

    @property
    def event_ids(self) -> Mapping[int, tuple[int, ...]]:
        """Ids that samples carry, by `EventPlan.index`."""

    @property
    def target_fds(self) -> tuple[int, ...]:
        """Descriptors, readable once a target of a process or thread scope has exited."""

    def add_stream(self, core: Core) -> Stream:
        """Add a stream to the core that takes its rings, and return it."""

    def enable(self) -> None:
        """Start counting."""

    def disable(self) -> None:
        """Stop counting. Counters are final afterwards."""

    def read_produced(self, ring: RingHandle) -> Produced:
        """Read the kernel's counters of a ring."""


class Source(Protocol):
    """A function that opens the sessions of one source kind."""

    def __call__(
        self,
        kernel: Kernel,
        plan: SessionPlan,
        stack: ExitStack,
        *,
        exclude_tids: tuple[int, ...] = (),
        abort: int = -1,
    ) -> OpenSource:
        """Open all of a plan or nothing.

        Args:
            kernel: makes the privileged calls.
            plan: what to open. A COMMAND scope must have the child's pid in `scope.pids`.
            stack: receives everything that was opened.
            exclude_tids: threads whose events are left out where the plan says `exclude_self`.
            abort: a descriptor; once it is readable, what takes long is given up with an error.

        Raises:
            KernelError: its classes are those of `errno_mapping`.
            UsageError: the kernel refuses a filter; with its reason.
        """
