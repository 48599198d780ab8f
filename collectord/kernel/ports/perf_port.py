# SPDX-License-Identifier: Apache-2.0
"""The part of the kernel's port for perf events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.codec.aux_pmu import TimeConversion
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.codec.tracepoint import Tracepoint
    from collectord.codec.tracing_data import TracingData
    from collectord.config.pressure_limit import PressureLimit
    from collectord.facts.kernel_facts import OpenerFacts
    from collectord.kernel.values.counter_reading import CounterReading
    from collectord.kernel.values.kept_rings import GivenRing, KeptRings
    from collectord.kernel.values.kept_staging import KeptStaging, LeftStaging
    from collectord.kernel.values.limits import Purpose


class PerfPort(Protocol):
    """See `Kernel`."""

    def perf_event_open(
        self,
        attr: PerfEventAttr,
        *,
        pid: int,
        cpu: int,
        group_fd: int = -1,
        flags: int = 0,
        purpose: Purpose = ...,
    ) -> int:
        """Open an event, close-on-exec always, and return its descriptor.

        Raises:
            MissingPrivilege, MissingFeature, NoSuchTarget, KernelError: see `errno_mapping`.
        """

    def opener_facts(self, place: str) -> OpenerFacts:
        """Return what an opener may open.

        Args:
            place: the opener's socket.

        Raises:
            KernelError: no opener answers (ENOENT, ECONNREFUSED), or not this user; or it is of
                another version.
        """

    def opener_listens(self, place: str) -> bool:
        """Whether an opener listens at a socket."""

    def kept_rings(
        self, place: str, session: str, digest: str, *, wait_s: float, abort: int = ...
    ) -> KeptRings:
        """Return a session's rings, which an opener holds; it opens them at the first request.

        So it is with BPF programs, which it compiles then.

        They are the caller's alone until it closes `KeptRings.connection`, or ends.

        Args:
            place: the opener's socket.
            session: its name in the configuration.
            digest: of its plan, which the opener has made for itself.
            wait_s: the longest time that the opening may take.
            abort: a descriptor, readable once nobody needs the answer any more.

        Raises:
            KernelError: no opener answers (ENOENT, ECONNREFUSED), or it refuses.
        """

    def hiding_programs(self, connection: int) -> Mapping[int, tuple[int, ...] | None]:
        """Return ids of BPF programs that may hide events whose rings an opener holds.

        The opener looks for them, on each tracepoint of the session, as `query_bpf` does; they
        come by the event's number in the plan.

        Args:
            connection: `KeptRings.connection`.

        Raises:
            KernelError: the opener does not tell in time, or cannot.
        """

    def reopened_rings(self, connection: int, cpu: int) -> tuple[GivenRing, ...]:
        """Return new rings on a CPU that was offline, which an opener holds.

        It closes those that the CPU had. The caller closes the descriptors.

        Args:
            connection: `KeptRings.connection`.
            cpu: one of the plan's.

        Raises:
            KernelError: the opener does not give them.
        """

    def end_kept(self, connection: int) -> None:
        """Ask an opener to close the rings of a session at the end of the connection.

        Args:
            connection: `KeptRings.connection`.

        Raises:
            KernelError: the opener has ended.
        """

    def kept_pressure(self, place: str, limit: PressureLimit) -> int:
        """Ask an opener to let the kernel watch a limit of pressure; see `open_pressure`.

        Args:
            place: the opener's socket.
            limit: one of a trigger in its configuration.

        Raises:
            KernelError: it does not, or does not answer at once.
        """

    def left_staging(self, place: str) -> LeftStaging | None:
        """Return the staging memory of the daemon before this one; None if there was none.

        Args:
            place: the opener's socket.

        Raises:
            KernelError: no opener answers, or another daemon uses it.
        """

    def kept_staging(self, place: str, chunks: int, chunk_bytes: int) -> KeptStaging:
        """Return new staging memory, which an opener keeps; it gives up that of the one before.

        It is the caller's alone until it closes `KeptStaging.connection`, or ends.

        Args:
            place: the opener's socket.
            chunks: the number that the opener has planned for itself.
            chunk_bytes: likewise.

        Raises:
            KernelError: no opener answers, or it refuses.
        """

    def enable(self, fd: int) -> None:
        """Enable an event, inherited children included (PERF_EVENT_IOC_ENABLE)."""

    def disable(self, fd: int) -> None:
        """Disable an event, inherited children included; its counter is final after it."""

    def refresh(self, fd: int) -> None:
        """Enable an event of period 1 until its next overflow (PERF_EVENT_IOC_REFRESH).

        The overflow disables it and its group. Each call adds one overflow: call it once, and once
        after each.
        """

    def set_filter(self, fd: int, text: str) -> None:
        """Give a tracepoint event its filter, or a tracing event its addresses.

        The kernel allows a tracepoint event one filter.

        Raises:
            KernelError: EINVAL for a bad filter (`filter_refusal` has the reason).
        """

    def set_output(self, fd: int, ring_fd: int) -> None:
        """Send the event's records to the ring of `ring_fd`."""

    def event_id(self, fd: int) -> int:
        """Return the id that this event's samples carry."""

    def read_counter(self, fd: int, read_format: int) -> CounterReading:
        """Read the event's counter. It costs an interrupt of the event's CPU if that runs it."""

    def pause_output(self, fd: int, *, paused: bool) -> None:
        """Pause the ring of this event, so that it counts new records as lost, or resume it.

        A record that was begun before is still finished.
        """

    def time_conversion(self) -> TimeConversion:
        """Return how the CPU's counter becomes perf's clock, as far as the kernel tells."""

    def filter_refusal(self, tracepoint: Tracepoint, text: str) -> str:
        """Return the kernel's reason for refusing a tracepoint's filter; "" if unknown."""

    def running_state(
        self, attr: PerfEventAttr, event_id: int, pids: Sequence[int] | None = None
    ) -> bytes:
        """Return these processes, or all, as sideband records with the trailer of this event."""

    def process_state(self, attr: PerfEventAttr, event_id: int, pid: int, time_ns: int) -> bytes:
        """Return one process as such records of this time; empty if it has exited."""

    def tracing_data(self, tracepoints: Sequence[Tracepoint]) -> TracingData:
        """Return formats of these tracepoints, as a perf.data file holds them.

        Raises:
            KernelError: tracefs is absent or may not be read.
        """
