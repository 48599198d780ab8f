# SPDX-License-Identifier: Apache-2.0
"""Frozen values that pass between the stages: load, probe, plan, open, drain, sink, close."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The directory of the unit and of tmpfiles.d, which lasts until the next boot.
RUN_DIRECTORY: Final = "/run/collectord"
CONTROL_SOCKET: Final = f"{RUN_DIRECTORY}/control.sock"
# The folder of incidents, beside those of the sessions.
INCIDENTS: Final = "incidents"
# The end of a frame of the kernel in a folded stack, as flame graphs have it.
KERNEL_MARK: Final = "_[k]"
# The streams that the core has places for, one for each session and kind of source; see chunk.h.
STREAMS_MAX: Final = 64


class Basis(StrEnum):
    """The basis of a ring's balance (docs/ledger.md)."""

    EXACT = "exact"
    LOST_ONLY = "lost_only"
    NONE = "none"

    @staticmethod
    def weakest(bases: list[Basis]) -> Basis:
        """Return the weakest basis of the parts, the basis of the whole; `none` without parts."""
        order = [Basis.NONE, Basis.LOST_ONLY, Basis.EXACT]
        return min(bases, key=order.index, default=Basis.NONE)


class GapCause(StrEnum):
    """The reason why a session recorded nothing for a time."""

    STOP = "stop"
    KILL = "kill"
    BOOT = "boot"
    RELOAD = "reload"  # what took its place could only be opened after it
    SHED = "shed"  # it was paused, because the cost was over the budget
    REQUEST = "request"  # it was paused, because somebody asked for it


# The causes of pauses; the others end a process.
PAUSES: Final = (GapCause.SHED, GapCause.REQUEST)


class Stage(StrEnum):
    """The stage on the way from kernel to disk where a record was lost."""

    KERNEL_RING = "kernel_ring"
    PROGRAM = "program"
    STAGING = "staging"
    SINK = "sink"


class Reason(StrEnum):
    """The reason why a record was lost."""

    RING_FULL = "ring_full"
    PAUSED = "paused"
    TRUNCATED = "truncated"
    OVERRUN = "overrun"
    COMMIT_OVERRUN = "commit_overrun"
    DROPPED = "dropped"
    RECURSION = "recursion"
    QUARANTINED = "quarantined"
    DISK_FULL = "disk_full"
    UNCOVERED = "uncovered"


LossKey = tuple[Stage, Reason]

# Losses in the kernel that rings of several kinds have.
RING_FULL: Final[LossKey] = (Stage.KERNEL_RING, Reason.RING_FULL)
RING_PAUSED: Final[LossKey] = (Stage.KERNEL_RING, Reason.PAUSED)
RING_OVERRUN: Final[LossKey] = (Stage.KERNEL_RING, Reason.OVERRUN)
RING_DROPPED: Final[LossKey] = (Stage.KERNEL_RING, Reason.DROPPED)
RING_UNCOVERED: Final[LossKey] = (Stage.KERNEL_RING, Reason.UNCOVERED)


def loss_name(key: LossKey) -> str:
    """Return `<stage>/<reason>`, as JSON and the summary name a loss."""
    return "/".join(key)


def loss_key(name: str) -> LossKey:
    """Return the loss that `loss_name` names so. Raises ValueError."""
    stage, _, reason = name.partition("/")
    return Stage(stage), Reason(reason)


# The only pairs that a source kind can produce. Ledger, metrics and the --json result are
# keyed by this table, so each pair exists at 0 from the first scrape and no other ever appears.
LOSS_PAIRS: Final[dict[str, tuple[LossKey, ...]]] = {
    "perf": (
        RING_FULL,
        RING_PAUSED,
        RING_DROPPED,
        (Stage.STAGING, Reason.QUARANTINED),
        (Stage.STAGING, Reason.DROPPED),
        (Stage.SINK, Reason.DISK_FULL),
        (Stage.SINK, Reason.DROPPED),
    ),
    "bpf": (
        (Stage.PROGRAM, Reason.RECURSION),
        (Stage.PROGRAM, Reason.DROPPED),
        RING_FULL,
        RING_DROPPED,
        (Stage.STAGING, Reason.QUARANTINED),
        (Stage.STAGING, Reason.DROPPED),
        (Stage.SINK, Reason.DISK_FULL),
        (Stage.SINK, Reason.DROPPED),
    ),
    "tracefs": (
        RING_OVERRUN,
        (Stage.KERNEL_RING, Reason.COMMIT_OVERRUN),
        RING_DROPPED,
        RING_UNCOVERED,
        (Stage.STAGING, Reason.QUARANTINED),
        (Stage.STAGING, Reason.DROPPED),
        (Stage.SINK, Reason.DISK_FULL),
        (Stage.SINK, Reason.DROPPED),
    ),
    "relay": (
        RING_DROPPED,
        RING_OVERRUN,
        RING_UNCOVERED,
        (Stage.STAGING, Reason.QUARANTINED),
        (Stage.SINK, Reason.DISK_FULL),
        (Stage.SINK, Reason.DROPPED),
    ),
}


def source_kind(label: str) -> str:
    """Return the kind of a source by its label: "relay-2" is a relay source."""
    return label.partition("-")[0]


def loss_pairs(source: str) -> tuple[LossKey, ...]:
    """Return the pairs of a source's kind, by its label."""
    return LOSS_PAIRS[source_kind(source)]


class EvictReason(StrEnum):
    """The limit for which a segment was deleted."""

    AGE = "age"
    QUOTA = "quota"
    FREE_SPACE = "free_space"


class Transport(StrEnum):
    """The way in which pages of an ftrace ring are taken out of the kernel."""

    READ = "read"
    MMAP = "mmap"
    SPLICE = "splice"


class RingRole(StrEnum):
    """`data` rings carry counted events; `sideband` rings carry the dummy event's records.

    `aux` names the AUX area of a data ring, where the two are distinguished.
    """

    DATA = "data"
    SIDEBAND = "sideband"
    AUX = "aux"


class ScopeKind(StrEnum):
    """The ways in which perf attaches an event (design: scopes)."""

    SYSTEM = "system"
    CPUS = "cpus"
    PROCESS = "process"
    THREAD = "thread"
    COMMAND = "command"
    USER = "user"
    CGROUP = "cgroup"
    COMM = "comm"
    EXECUTABLE = "executable"
    UNIT = "unit"


# Scopes of all processes that match a pattern, also those that begin later.
FOLLOWING: Final = (ScopeKind.COMM, ScopeKind.EXECUTABLE, ScopeKind.UNIT)
# Scopes whose events follow tasks; the others observe whole CPUs.
TASK_SCOPES: Final = (
    ScopeKind.PROCESS,
    ScopeKind.THREAD,
    ScopeKind.COMMAND,
    ScopeKind.USER,
    *FOLLOWING,
)
# The mode of a session whose rings are overwritten, and read only on request.
FLIGHT_RECORDER: Final = "flight-recorder"
# The session of `collectord record`: several processes may have one of this name at a time.
RECORD_SESSION: Final = "record"


@dataclass(frozen=True, slots=True)
class Scope:
    """The observed part of the system.

    Attributes:
        kind: system, CPUs, tasks, user or cgroup.
        cpus: CPUs to observe; empty means all online ones.
        pids: process ids of a PROCESS scope, thread ids of a THREAD scope.
        uid: user of a USER scope.
        cgroup: path of the cgroup directory of a CGROUP scope.
        pattern: glob of a scope that is FOLLOWING: of the comm, of the path of the executable, or
            of the unit's name.
        limit: the most processes that such a scope observes at a time.
        per_thread: one ring per thread (cpu -1) instead of one per CPU.
        inherit: children are observed too (perf's default for process scopes).
    """

    kind: ScopeKind
    cpus: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    uid: int = -1
    cgroup: str = ""
    pattern: str = ""
    limit: int = 0
    per_thread: bool = False
    inherit: bool = True

    def describe(self) -> str:
        """Return the scope in a few words, as `check` and `--json` print it."""
        words: list[str] = [str(self.kind)]
        if self.pids:
            words.append(",".join(map(str, self.pids)))
        if self.uid >= 0:
            words.append(str(self.uid))
        if self.cgroup:
            words.append(self.cgroup)
        if self.pattern:
            words.append(f"{self.pattern} (up to {self.limit} processes)")
        if self.cpus:
            words.append("cpu " + ",".join(map(str, self.cpus)))
        if self.per_thread:
            words.append("per-thread")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Effective sizes of a mapped ring, in bytes, after rounding and fallback."""

    data_bytes: int
    watermark_bytes: int
    requested_bytes: int


@dataclass(frozen=True, slots=True)
class RingLabel:
    """The owner of a ring, as logs, manifests and `--json` name it.

    A cpu of -1 means no single CPU: the ring of a thread, or with tid -1 of all CPUs.
    """

    session: str
    source: str
    role: RingRole
    cpu: int
    tid: int = -1

    @property
    def has_data(self) -> bool:
        """Whether events are recorded in it, and not only what names them."""
        return self.role is RingRole.DATA

    def __str__(self) -> str:
        place = f"cpu{self.cpu}" if self.cpu >= 0 else f"tid{self.tid}" if self.tid >= 0 else "all"
        return f"{self.session}/{self.source}/{self.role}/{place}"


@dataclass(frozen=True, slots=True)
class Produced:
    """One reading of a ring's kernel counters.

    Attributes:
        value: events that the kernel counted, None if it counts something else.
        lost: records that the kernel could not write (PERF_FORMAT_LOST), None before Linux 6.0.
        per_event: (event id, value, lost) in the order of the ring's counter fds.
        losses: `lost` by stage and reason, if the kernel distinguishes reasons.
        overwritten: events that a flight recorder's ring overwrote with newer ones; None if not
            counted.
        read_events: events that an ftrace ring handed out to any reader; None for others.
        unread: (gauge) events in the ring.
        unread_bytes: (gauge) bytes of these events, approximately.
        oldest_unread_ns: time of the oldest of them, None if there is none.
        now_ns: time of the reading, in the clock of `oldest_unread_ns`.
        resets: times that somebody else emptied the ring and reset its counters.
        uncounted: some events are in none of the counters, as after a reset.
        capacity_bytes: of the ring, if it changes; 0: as it was opened.
    """

    value: int | None
    lost: int | None
    per_event: tuple[tuple[int, int, int], ...] = field(default=())
    losses: Mapping[LossKey, int] = field(default_factory=dict)
    overwritten: int | None = 0
    read_events: int | None = None
    unread: int = 0
    unread_bytes: int = 0
    oldest_unread_ns: int | None = None
    now_ns: int = 0
    resets: int = 0
    uncounted: bool = False
    capacity_bytes: int = 0

    @property
    def oldest_unread_age_ns(self) -> int | None:
        """The age of the oldest unread event, None if there is none."""
        return None if self.oldest_unread_ns is None else self.now_ns - self.oldest_unread_ns


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One reading of the three clocks, in ns, and the distance between the bracket's ends."""

    monotonic_ns: int
    realtime_ns: int
    perf_ns: int
    bracket_ns: int


@dataclass(frozen=True, slots=True)
class SinkStats:
    """A session's segments: those kept, and those that retention deleted, by reason.

    They take `segment_bytes` of the disk, and took `uncompressed_bytes` before compression.
    `unsealed` were closed without a seal, `early` were closed before all records were read that
    name their samples. `oldest_ns` is the Unix time of the last write to the oldest kept one; None
    if none is kept.
    """

    segments: int = 0
    segment_bytes: int = 0
    uncompressed_bytes: int = 0
    compress_errors: int = 0
    deleted: dict[str, int] = field(default_factory=dict)
    write_errors: int = 0
    unsealed: int = 0
    early: int = 0
    oldest_ns: int | None = None


def sum_known(values: Iterable[int | None]) -> int | None:
    """Return the sum, or None if any part is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def less(count: int | None, before: int | None) -> int | None:
    """Return the difference of two counts, or None if one of them is unknown."""
    return None if count is None or before is None else count - before
