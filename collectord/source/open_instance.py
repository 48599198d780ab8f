# SPDX-License-Identifier: Apache-2.0
"""The open instance of an ftrace session: what its rings have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.errors import KernelError
from collectord.kernel.values.ring_stats import stats_text
from collectord.source.window import Fill, grown, needed_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import ExitStack

    from collectord.codec.trace_dat_head import Metadata
    from collectord.kernel.port import Kernel
    from collectord.plan.ftrace_plan import FtracePlan
    from collectord.source.ftrace_ring import FtraceRing
    from collectord.source.trace_counts import LateTraceRings
    from collectord.source.trace_end import LastingInstance
    from collectord.source.window import Held


class OpenInstance:
    """The common part of an instance's rings. See `source.base.Tracing`."""

    def __init__(
        self,
        kernel: Kernel,
        lasting: LastingInstance,
        ftrace: FtracePlan,
        rings: tuple[FtraceRing, ...],
        late: LateTraceRings,
    ) -> None:
        self.id = lasting.opened.id
        self.name = lasting.opened.name  # its directory below `instances`
        self.lasting = lasting
        self.lasts = ftrace.lasts
        self._kernel = kernel
        self._plan = ftrace
        self.late = late
        self.sizes = {ring.label.cpu: ring.geometry.data_bytes for ring in rings}
        self._stats_fds = {ring.label.cpu: ring.stats_fd for ring in rings}
        self.grew = False

    def add_ring(self, ring: FtraceRing) -> None:
        """Add a ring to the drained rings; it is not late any more."""
        cpu = ring.label.cpu
        self.sizes[cpu], self._stats_fds[cpu] = ring.geometry.data_bytes, ring.stats_fd
        self.grew |= bool(self._plan.keep_ns)
        self.late.leave_out(cpu)

    def drop_ring(self, cpu: int) -> None:
        """Put a ring back among the late ones."""
        del self.sizes[cpu], self._stats_fds[cpu]
        self.late.take_back(cpu)

    def metadata(self) -> Metadata:
        """Return formats of the session's events and of markers, and the names they refer to."""
        return self._kernel.trace_metadata(self.id)

    def comms(self) -> Mapping[int, bytes]:
        """Return names of tasks by thread id, as many as were seen until now."""
        return self._kernel.task_comms(self.id)

    def learn_comms(self) -> None:
        """Keep the names that the kernel has now, for later `comms`."""
        self._kernel.learn_comms(self.id)

    def ring_stats(self) -> Mapping[int, str]:
        """Return the text of each `stats`, as trace-cmd keeps it."""
        texts = {cpu: stats_text(cpu, fd) for cpu, fd in self._stats_fds.items()}
        return texts | self.late.texts()

    def late_pages(self, cpus: Iterable[int], stack: ExitStack) -> Mapping[int, Iterator[bytes]]:
        """Return sub-buffers of the rings that the kernel made since. Raises KernelError."""
        return self.late.pages(cpus, stack)

    def mark(self, text: str) -> int:
        """Write a marker into the ring of a CPU that is traced."""
        return self._kernel.mark_instance(self.id, text)

    def other_readers(self) -> str:
        """Return other processes that have the instance's files open, in words."""
        return ", ".join(map(str, self._kernel.instance_users(self.id)))

    def keep_window(self, rings: Iterable[Held]) -> str:
        """Grow rings to hold `keep_ns`, within `max_bytes`; return why they cannot.

        The kernel records nothing in the whole instance while it resizes a ring, and does not
        count the events that it skips (__tracing_resize_ring_buffer() in kernel/trace/trace.c).
        """
        if not self._plan.keep_ns:
            return ""
        fills = [
            Fill(ring.cpu, self.sizes[ring.cpu], ring.used_bytes, ring.window_ns) for ring in rings
        ]
        for cpu, size in grown(fills, self._plan.keep_ns, self._plan.max_bytes).items():
            self.grew = True
            try:
                self._kernel.resize_ring(self.id, cpu, size)
            except KernelError as error:  # memory may become free, and a mapping be removed
                return str(error)
            self.sizes[cpu] = size
        needed = sum(needed_bytes(fill, self._plan.keep_ns) for fill in fills)
        if needed > self._plan.max_bytes:
            most = f"`max` is {self._plan.max_bytes >> 20} MiB"
            return f"{needed >> 20} MiB would be needed to keep all, and {most}"
        return ""
