# SPDX-License-Identifier: Apache-2.0
"""The plan of everything that is opened: the sessions, and the core that drains them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collectord.plan.drain_threads import DrainThreads
from collectord.plan.sink_plan import RetentionPlan
from collectord.text.foreign import plain
from collectord.text.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord.plan.session_plan import SessionPlan


@dataclass(frozen=True, slots=True)
class CorePlan:
    """Sizes of the native core for `_core.Core`, and its drain threads.

    Attributes:
        drain: the threads, each with a shard of the rings.
        cpus: that were online when it was planned.
    """

    chunks: int
    chunk_bytes: int
    flush_ns: int
    floor_bytes: int
    drain: DrainThreads = field(default_factory=DrainThreads)
    cpus: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the core for `check --json`."""
        sizes = plain(self, "drain")
        return {"shards": self.shards, **sizes, "drain": self.drain.to_dict()}

    @property
    def shards(self) -> int:
        """Number of drain threads, one for each shard."""
        return len(self.drain.threads)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of everything that will be opened.

    Attributes:
        sessions: in the order of the configuration.
        core: sizes of the native core.
        warnings: what will probably fail or shrink, each with its remedy.
        files: file descriptors that the sessions need, one thread per task scope; the soft
            RLIMIT_NOFILE must be raised to hold them.
        reserved_files: descriptors that are kept free for segments, whoever else asks for one.
        pinned_bytes: memory of perf rings as it counts against the mlock budget.
        settings: those of the configuration that are not a session's, by their dotted keys.
    """

    sessions: tuple[SessionPlan, ...]
    core: CorePlan
    warnings: tuple[str, ...] = ()
    files: int = 0
    reserved_files: int = 0
    pinned_bytes: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def retention(self) -> RetentionPlan:
        """The limits of the state directory; none for single files, which are never deleted."""
        rotated = (s.sink.retention for s in self.sessions if s.sink.single_file is None)
        return next(rotated, RetentionPlan())

    @property
    def ftrace_bytes(self) -> int:
        """Memory of ftrace rings, which no limit counts; the initial size for flight recorders."""
        return sum(
            ring.data_bytes
            for session in self.sessions
            if session.payload.has_instance
            for ring in session.rings
        )

    @property
    def slots_bytes(self) -> int:
        """Memory of BPF flight recorders on the CPUs that are recorded, which no limit counts."""
        rings = (ring for session in self.sessions for ring in session.rings)
        return sum(ring.data_bytes for ring in rings if ring.slots)

    @property
    def ring_bytes(self) -> int:
        """Memory of all rings, as they begin."""
        return self.pinned_bytes + self.ftrace_bytes + self.slots_bytes

    def describe(self) -> list[str]:
        """Return the plan as `check` prints it, a line each."""
        lines = [line for session in self.sessions for line in session.describe()]
        staging = show_bytes(self.core.chunks * self.core.chunk_bytes)
        lines.append(
            f"total {show_bytes(self.ring_bytes)} of rings, "
            f"{self.files} descriptors, "
            f"{staging} of staging, {self.core.drain.describe()}"
        )
        lines += [f"warning: {warning}" for warning in self.warnings]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for `check --json`."""
        return {
            "sessions": [session.to_dict() for session in self.sessions],
            "core": self.core.to_dict(),
            "pinned_bytes": self.pinned_bytes,
            "ftrace_bytes": self.ftrace_bytes,
            "slots_bytes": self.slots_bytes,
            "files": self.files,
            "settings": dict(self.settings),
            "warnings": list(self.warnings),
        }
